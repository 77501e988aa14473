"""MCP servers of our own for tests, on the SDK's server side."""
