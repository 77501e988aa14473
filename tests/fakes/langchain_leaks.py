"""LangChain tools that repeat the secrets they were made with in every output."""

from __future__ import annotations

import logging

from langchain_core.tools import BaseTool, StructuredTool, ToolException


def leaking_tools(api_key: str, url: str) -> list[BaseTool]:
    secrets = f"{api_key} at {url}"

    def refuses() -> str:
        raise ToolException(f"401 for {secrets}")

    def crashes() -> str:
        print(f"about to crash with {secrets}")
        raise RuntimeError(f"401 for {secrets}")

    async def crashes_here() -> str:
        logging.getLogger("leaks").warning("calling with %s", secrets)
        raise RuntimeError(f"401 for {secrets}")

    def answers() -> str:
        return secrets

    plain = [
        StructuredTool.from_function(code, name=code.__name__, description=f"Made with {secrets}.")
        for code in (refuses, crashes, answers)
    ]
    here = StructuredTool.from_function(coroutine=crashes_here, name="crashes_here", description="Crash.")
    return [*plain, here]
