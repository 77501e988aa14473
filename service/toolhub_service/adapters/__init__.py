"""Adapters: one for each kind of tool (built-in, custom, MCP, n8n, ComfyUI, LangChain, skills); each executes granted
calls. They implement one port, and do not know each other."""
