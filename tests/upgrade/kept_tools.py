"""Custom tools of the hub whose data is kept. No definition here ever changes: what is kept names its digest."""

from __future__ import annotations

import asyncio

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import EvidenceType, Progress
from toolhub_service.domain.tool import Annotations, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

try:
    from toolhub_service.domain.errors.failure import ErrorKind, refuse
except ImportError:  # the version before, which runs these tools too, has the module elsewhere
    from toolhub_service.domain.errors import ErrorKind, refuse  # type: ignore[no-redef, attr-defined]

READS = Annotations(read_only=True, idempotent=True)
NAME: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}},
    "required": ["name"],
}


class TextIn(ToolInput, frozen=True):
    text: str = ""


class TextOut(ToolOutput, frozen=True):
    text: str


class Echo(Tool[TextIn, TextOut]):
    """A result of more than 1,000 bytes is cut, and the whole of it is kept as an artifact."""

    name = "kept/text.echo"
    description = "Return the text."
    annotations = READS
    limits = ToolLimits(max_result_bytes=1_000)
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        context.proves(EvidenceType.METRIC, "characters", f"returned {len(args.text)}", unit="characters")
        return TextOut(text=args.text)


class Refuses(Echo):
    name = "kept/text.refuse"

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        raise refuse(ErrorKind.INVALID_INPUT, "No text is good enough. Send none.", text=args.text)


class Holds(Tool[TextIn, TextOut]):
    """Waits without end where `held`, which is no part of its definition."""

    name = "kept/text.hold"
    description = "Hold the text, and return it."
    annotations = READS
    In, Out = TextIn, TextOut

    def __init__(self, held: bool = False) -> None:
        self._held = held

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        context.sink.progress(Progress(step=1, total=2, unit="steps", message="half way", eta_s=30.0))
        if self._held:
            await asyncio.Event().wait()
        return TextOut(text=args.text)


class HoldsAnEffect(Holds):
    """The same with a side effect: never run again once it has begun."""

    name = "kept/text.holdEffect"
    annotations = Annotations()


class IgnoresCancelling(Holds):
    name = "kept/text.ignoreCancelling"

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        context.sink.progress(Progress(step=1))
        while self._held:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        return TextOut(text=args.text)


class Writes(Tool[TextIn, TextOut]):
    name = "kept/text.write"
    description = "Write the text down."
    annotations = Annotations()
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        return TextOut(text=f"written: {args.text}")


class Signs(Writes):
    """A policy rule wants a person for it."""

    name = "kept/text.sign"


class SignsSoon(Writes):
    """Likewise, and within a second."""

    name = "kept/text.signSoon"


class Asks(Writes):
    """Asks a person itself."""

    name = "kept/text.ask"

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        answer = context.ask(f"Who signs this? {args.text}", NAME)
        return TextOut(text=f"{args.text}, {answer['name']}")
