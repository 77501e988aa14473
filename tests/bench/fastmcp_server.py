"""FastMCP, in a Python of its own: a server with one trivial tool, or a proxy before another server.

    python -m tests.bench.fastmcp_server [URL]

The proxy has one connected client for all calls, its faster way.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import uvicorn

from tests.bench.mcp_echo import listening_socket


def now(timezone: str = "UTC") -> dict[str, Any]:
    """The current date and time in a time zone."""
    moment = datetime.now(ZoneInfo(timezone))
    return {"iso": moment.isoformat(), "epochMs": int(moment.timestamp() * 1000), "timezone": timezone}


async def main(url: str) -> None:
    from fastmcp import Client, FastMCP  # type: ignore[import-not-found, unused-ignore]
    from fastmcp.server import create_proxy  # type: ignore[import-not-found, unused-ignore]

    if not url:
        bare = FastMCP("bench")
        bare.tool(now)
        await serve(bare)
        return
    async with Client(url) as client:
        await serve(create_proxy(client))


async def serve(server: Any) -> None:
    app = server.http_app(stateless_http=True, json_response=True)
    listening = listening_socket()
    print(f"port {listening.getsockname()[1]}", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
