"""The MCP endpoint over HTTP: its port, admission, and the fast path of single requests."""
