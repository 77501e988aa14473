"""protobuf <-> domain. Only this package translates between the two."""
