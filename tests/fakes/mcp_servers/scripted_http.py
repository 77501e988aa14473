"""The scripted server on a port, as a process: `python -m tests.fakes.mcp_servers.scripted_http modern|legacy PORT
[UNLISTED_TOOL …]`.
"""

from __future__ import annotations

import asyncio
import sys

from tests.fakes.mcp_servers.scripted import Script, listed, serving


async def _serve(generation: str, port: int, unlisted: list[str]) -> None:
    async with serving(Script(generation=generation, pages=listed(*unlisted)), port) as url:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
