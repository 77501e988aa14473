"""A stateless MCP server with one trivial tool: `python -m tests.bench.mcp_echo` says `port N`; or `--stdio`."""

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


def listening_socket() -> socket.socket:
    """Of a stated protocol: asyncio sets TCP_NODELAY on no other, and each answer would wait 40 ms for an ACK."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def main() -> None:
    if "--stdio" in sys.argv:
        server.run("stdio")
        return
    listening = listening_socket()
    print(f"port {listening.getsockname()[1]}", flush=True)
    app = server.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
