"""The official MCP conformance suite in client mode, driven through sources of a whole hub. See docs/conformance.md."""
