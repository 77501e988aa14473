"""A tour of a hub: find a tool, call it, see a refusal. Start a hub with `make run` and run this file."""

from __future__ import annotations

import asyncio
import sys

from toolhub_client import connect


async def main(address: str) -> None:
    async with connect(address) as hub:
        for hit in await hub.search("current time", limit=3):
            print(f"{hit.score:6.2f}  {hit.tool.name}")

        answer = await hub.invoke("core/util.time.now", {"timezone": "UTC"}, purpose="show the time")
        print("answer:", answer.unwrap())

        refused = await hub.invoke("core/fs.readText", {"path": "../secret"}, purpose="try to leave the workspace")
        print("refused:", refused.error and f"{refused.error.kind}: {refused.error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
