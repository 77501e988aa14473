"""A tour of a hub: find a tool, call it, see what fails, exchange an artifact.

Start a hub with `make run` and run this file.
"""

from __future__ import annotations

import asyncio
import sys

from toolhub_client import NotFound, connect


async def main(address: str) -> None:
    async with connect(address) as hub:
        for hit in await hub.search("current time", limit=3):
            print(f"{hit.score:6.2f}  {hit.tool.name}")

        answer = await hub.invoke("core/util.time.now", {"timezone": "UTC"}, purpose="show the time")
        print("answer:", answer.unwrap())

        refused = await hub.invoke("core/fs.readText", {"path": "../secret"}, purpose="try to leave the workspace")
        print("refused:", refused.error and f"{refused.error.kind}: {refused.error}")

        try:
            await hub.get_tool("no/such.tool")
        except NotFound as error:
            print("missing:", error.reason)

        content = b"0123456789" * 100_000
        artifact = await hub.put_artifact(content, name="digits.txt")
        back = await hub.get_artifact(artifact.artifact_id)
        print("artifact:", len(back), "bytes,", "the same" if back == content else "others")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
