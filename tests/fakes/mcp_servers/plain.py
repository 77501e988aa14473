"""A server that does as it should: `python -m tests.fakes.mcp_servers.plain [--http PORT] [--generation GENERATION]
[--json] [--unlisted NAME …]`.

Over HTTP it prints `listening on PORT` on standard output once it listens; PORT 0 takes a free one. It speaks both
generations; with `--http` and `--generation 2025-11-25` it does not know server/discover, so that clients shake hands.
Tools: echo, add, sleep, begun, cancelled, fail, progress, big, change, noise, pid, crash.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import Tool

_SLEEPS = {"begun": 0, "cancelled": 0}


class Plain(MCPServer):
    unlisted: frozenset[str] = frozenset()
    """Tools that can be called and are not listed."""

    async def list_tools(self) -> list[Tool]:
        return [tool for tool in await super().list_tools() if tool.name not in self.unlisted]


def server() -> Plain:  # noqa: C901  a list of tools
    mcp = Plain("plain", version="1.0", log_level="CRITICAL")

    @mcp.tool()
    def echo(text: str) -> str:
        """Say it back."""
        return text

    @mcp.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @mcp.tool()
    async def sleep(seconds: float) -> str:
        """Wait."""
        _SLEEPS["begun"] += 1
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            _SLEEPS["cancelled"] += 1
            raise
        return "slept"

    @mcp.tool()
    def begun() -> int:
        """How many sleeps have begun."""
        return _SLEEPS["begun"]

    @mcp.tool()
    def cancelled() -> int:
        """How many sleeps were cancelled."""
        return _SLEEPS["cancelled"]

    @mcp.tool()
    def fail() -> str:
        """Fail."""
        raise ValueError("it failed as asked")

    @mcp.tool()
    async def progress(steps: int, ctx: Context[Any, Any]) -> str:
        """Report progress."""
        for step in range(1, steps + 1):
            await ctx.report_progress(step, steps, f"step {step}")
        return "done"

    @mcp.tool(structured_output=False)
    def big(bytes: int) -> str:
        """So many bytes of text."""
        return "x" * bytes

    @mcp.tool()
    async def change(ctx: Context[Any, Any]) -> str:
        """Add a tool and say so."""
        name = f"added_{len(await mcp.list_tools())}"
        mcp.add_tool(lambda: "here", name=name, description="Added later.")
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return name

    @mcp.tool()
    def noise(text: str) -> str:
        """Write to standard error."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        return "written"

    @mcp.tool()
    def pid() -> int:
        """The server's process."""
        return os.getpid()

    @mcp.tool()
    def crash() -> str:
        """End at once."""
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    return mcp


async def serve_http(mcp: MCPServer, port: int, *, json_response: bool) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    # asyncio sets it only on sockets that say they are TCP, and without it each answer waits for a delayed ACK (40 ms).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    app = mcp.streamable_http_app(json_response=json_response)
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
    sys.stdout.write(f"listening on {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await running.serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    parser.add_argument("--generation", default="both")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--unlisted", nargs="*", default=())
    options = parser.parse_args()
    mcp = server()
    mcp.unlisted = frozenset(options.unlisted)
    if options.generation == "2025-11-25":
        mcp._lowlevel_server._request_handlers.pop("server/discover")
    if options.http is None:
        asyncio.run(mcp.run_stdio_async())
    else:
        asyncio.run(serve_http(mcp, options.http, json_response=options.json))


if __name__ == "__main__":
    main()
