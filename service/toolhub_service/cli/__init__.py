"""The command line, one file a command group. Client commands speak to a hub over gRPC like any other caller."""
