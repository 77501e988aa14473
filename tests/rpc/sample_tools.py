"""Tools that do one thing each, so that a test over the wire can bring about what it wants to see."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.domain.tool import Annotations, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

READS = Annotations(read_only=True, idempotent=True)


class TextIn(ToolInput, frozen=True):
    text: str = ""


class TextOut(ToolOutput, frozen=True):
    text: Annotated[str, Meta(max_length=1_000_000)]


class Echo(Tool[TextIn, TextOut]):
    name = "test/text.echo"
    description = "Return the text."
    annotations = READS
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        return TextOut(text=args.text)


class BreaksItsSchema(Tool[TextIn, TextOut]):
    """Answers more than its own schema allows."""

    name = "test/text.lie"
    description = "Break the output schema."
    annotations = READS
    limits = ToolLimits(max_result_bytes=8 * 1024 * 1024)
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        return TextOut(text="x" * 1_000_001)


class Crashes(Tool[TextIn, TextOut]):
    name = "test/text.crash"
    description = "Fail in a way nobody foresaw."
    annotations = READS
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        raise ValueError(f"secret hunter2 and {args.text}")


class CrashesMidway(Crashes):
    """The same, as a side effect."""

    name = "test/text.crashMidway"
    annotations = Annotations()


class Waits(Tool[TextIn, TextOut]):
    """Reports that it has started, and waits to be let go."""

    name = "test/text.wait"
    description = "Wait."
    annotations = READS
    In, Out = TextIn, TextOut

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.let_go = asyncio.Event()
        self.stopped = asyncio.Event()
        self.running = 0

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.running += 1
        self.started.set()
        context.sink.progress(Progress(step=1, total=2, unit="halves", message="half way"))
        context.sink.chunk(Chunk(b"so far"))
        try:
            await self.let_go.wait()
        finally:
            self.running -= 1
            self.stopped.set()
        return TextOut(text=args.text)


class SlowToCancel(Waits):
    """Takes its time to clear up after it was cancelled, as a command does that ignores being asked to end."""

    name = "test/text.clearUp"

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.started.set()
        try:
            await self.let_go.wait()
        finally:
            await asyncio.sleep(0.3)
        return TextOut(text=args.text)


class WaitsToWrite(Waits):
    """The same, as a side effect."""

    name = "test/text.waitToWrite"
    annotations = Annotations()


class NumberIn(ToolInput, frozen=True):
    number: int | float = 0


class NumberOut(ToolOutput, frozen=True):
    number: int | float
    next: int | float


class Counts(Tool[NumberIn, NumberOut]):
    name = "test/number.next"
    description = "Return the number and the next one."
    annotations = READS
    In, Out = NumberIn, NumberOut

    async def run(self, args: NumberIn, context: ToolContext) -> NumberOut:
        return NumberOut(number=args.number, next=args.number + 1)
