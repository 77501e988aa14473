"""FastMCP's proxy before an MCP server, one connected client for all calls: `python -m tests.bench.mcp_proxy URL`."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from tests.bench.mcp_server import listening_socket


async def main(url: str) -> None:
    from fastmcp import Client  # type: ignore[import-not-found, unused-ignore]
    from fastmcp.server import create_proxy  # type: ignore[import-not-found, unused-ignore]

    async with Client(url) as client:
        app = create_proxy(client).http_app(stateless_http=True, json_response=True)
        listening = listening_socket()
        print(f"port {listening.getsockname()[1]}", flush=True)
        await uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
