"""LangChain tools whose code takes its time to load: until a file is there."""

from __future__ import annotations

import time
from pathlib import Path

from langchain_core.tools import BaseTool, tool


def tools(gate: str) -> list[BaseTool]:
    while not Path(gate).exists():
        time.sleep(0.02)  # code that is imported in a thread has nothing else to wait with
    return [greet]


@tool
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}."
