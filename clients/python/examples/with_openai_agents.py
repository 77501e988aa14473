"""An agent of the OpenAI Agents SDK whose tools are the hub's: `pip install "clients/python[openai-agents]"`.

Start a hub with `make run`, set OPENAI_API_KEY, then: python with_openai_agents.py [ADDRESS] [QUESTION]
"""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, Runner

from toolhub_client import connect
from toolhub_client.openai_agents import load_tools


async def main(address: str = "127.0.0.1:50051", question: str = "What is the SHA-256 of an empty text?") -> None:
    async with connect(address) as hub:
        tools = await load_tools(hub, names=["core/util.*"], purpose="answer the user")
        agent = Agent(name="clerk", instructions="Use the tools; do not guess.", tools=tools)
        print("answer:", (await Runner.run(agent, question)).final_output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
