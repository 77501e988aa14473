"""LangChain tools that repeat what they were made with wherever they can speak."""

from __future__ import annotations

import logging

from langchain_core.tools import BaseTool, StructuredTool, ToolException


def gossips(api_key: str, url: str) -> list[BaseTool]:
    told = f"{api_key} at {url}"

    def refuses() -> str:
        raise ToolException(f"401 for {told}")

    def crashes() -> str:
        print(f"about to crash with {told}")
        raise RuntimeError(f"401 for {told}")

    async def crashes_here() -> str:
        logging.getLogger("gossip").warning("calling with %s", told)
        raise RuntimeError(f"401 for {told}")

    def says() -> str:
        return told

    plain = [
        StructuredTool.from_function(code, name=code.__name__, description=f"Made with {told}.")
        for code in (refuses, crashes, says)
    ]
    here = StructuredTool.from_function(coroutine=crashes_here, name="crashes_here", description="Crash.")
    return [*plain, here]
