"""Messages and stubs of package toolhub.v1."""
