"""A stateless MCP server with one trivial tool: `python -m tests.bench.mcp_server` says `port N`; or `--stdio`."""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


def main() -> None:
    if "--stdio" in sys.argv:
        server.run("stdio")
        return
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"port {listening.getsockname()[1]}", flush=True)
    app = server.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
