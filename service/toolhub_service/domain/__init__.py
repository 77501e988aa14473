"""Values and ports: the common language of the hub. Standard library only, no I/O."""
