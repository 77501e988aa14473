"""`toolhub mcp`: MCP on standard input and output, and the configuration of clients."""
