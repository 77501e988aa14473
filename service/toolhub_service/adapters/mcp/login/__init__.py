"""Credentials for MCP servers: the hub's own, those that read a list, and those of each caller."""
