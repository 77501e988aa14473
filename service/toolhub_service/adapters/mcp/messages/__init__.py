"""Messages of MCP in the hub's own terms, below the SDK and above every transport: HTTP, events, JSON-RPC."""
