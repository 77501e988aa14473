"""Values and ports: the common language of the hub. Standard library and msgspec only, no I/O."""
