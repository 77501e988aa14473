"""The scripted server on a port, as a process: `python -m tests.fakes.mcp_servers.scripted_http modern|legacy PORT`."""

from __future__ import annotations

import asyncio
import sys

from tests.fakes.mcp_servers.scripted import Script, serving


async def _serve(generation: str, port: int) -> None:
    async with serving(Script(generation=generation), port) as url:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
