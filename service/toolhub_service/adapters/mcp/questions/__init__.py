"""Questions that MCP servers ask during calls and tasks."""
