"""protobuf <-> domain. Nothing else translates between the two."""
