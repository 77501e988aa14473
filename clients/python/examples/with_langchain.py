"""The hub's tools as LangChain's: `pip install "clients/python[langchain]"`.

Start a hub with `make run`, then: python with_langchain.py [ADDRESS]
It makes the calls that a model would; `create_agent(model, tools)` of the package langchain asks one.
"""

from __future__ import annotations

import asyncio
import sys

from toolhub_client import connect
from toolhub_client.langchain import load_tools


async def main(address: str = "127.0.0.1:50051") -> None:
    async with connect(address) as hub:
        tools = await load_tools(
            hub, names=["core/util.hash.sha256Text", "core/fs.readText"], purpose="answer the user"
        )
        by_name = {tool.name: tool for tool in tools}
        for name, args in (("core__util_hash_sha256Text", {"text": ""}), ("core__fs_readText", {"path": "../secret"})):
            call = {"type": "tool_call", "id": "call_1", "name": name, "args": args}
            message = await by_name[name].ainvoke(call)
            print(f"{message.status}: {message.content}")  # a refusal is a message, too: it tells the model what to do


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
