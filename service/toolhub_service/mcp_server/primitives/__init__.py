"""Prompts, resources and skills as MCP clients see them: those of sources, and artifacts of the hub."""
