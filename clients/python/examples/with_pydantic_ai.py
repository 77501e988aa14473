"""An agent of pydantic-ai whose tools are the hub's: `pip install "clients/python[pydantic-ai]"`.

Start a hub with `make run`, then: python with_pydantic_ai.py [ADDRESS] [MODEL] [QUESTION]
The model `test` of pydantic-ai asks nobody and calls every tool once.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent

from toolhub_client import connect
from toolhub_client.pydantic_ai import load_tools


async def main(
    address: str = "127.0.0.1:50051", model: str = "test", question: str = "What is the SHA-256 of an empty text?"
) -> None:
    async with connect(address) as hub:
        tools = await load_tools(hub, names=["core/util.hash.sha256Text"], purpose="answer the user")
        agent = Agent(model, instructions="Use the tools; do not guess.", tools=tools)
        print("answer:", (await agent.run(question)).output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
