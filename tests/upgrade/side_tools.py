"""Custom tools that hubs of two versions offer alike, side by side."""

from __future__ import annotations

import asyncio
from pathlib import Path

from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class TextIn(ToolInput, frozen=True):
    text: str = ""


class TextOut(ToolOutput, frozen=True):
    text: str
    hub: str


class Works(Tool[TextIn, TextOut]):
    """Waits while the file `hold` of its hub is there, and says which hub it ran on."""

    name = "side/text.work"
    description = "Work on the text."
    annotations = Annotations(read_only=True, idempotent=True)
    In, Out = TextIn, TextOut

    def __init__(self, hub: str, hold: str) -> None:
        self._hub = hub
        self._hold = Path(hold)

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        while self._hold.exists():  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.02)
        return TextOut(text=args.text, hub=self._hub)


class Signs(Works):
    """Has an effect: policy asks a person."""

    name = "side/text.sign"
    description = "Sign the text."
    annotations = Annotations()
