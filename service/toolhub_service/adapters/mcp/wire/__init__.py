"""One HTTP exchange with an MCP server in the hub's own terms, below the SDK and above every transport."""
