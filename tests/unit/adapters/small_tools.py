"""Tools small enough to see through, for the tests of what runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import Chunk, EvidenceType, Progress
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class TextIn(ToolInput, frozen=True):
    text: Annotated[str, Meta(description="Any text.")] = ""
    max_chars: int = 100


class TextOut(ToolOutput, frozen=True):
    text: str
    call_id: str = ""


class Echo(Tool[TextIn, TextOut]):
    """Answers with what it was given."""

    name = "test/text.echo"
    description = "Return the text."
    annotations = Annotations(read_only=True, idempotent=True)
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        return TextOut(text=args.text, call_id=context.call_id)


class KeepsArtifact(Tool[TextIn, TextOut]):
    """Keeps its text as an artifact."""

    name = "test/text.keep"
    description = "Keep the text."
    annotations = Annotations(read_only=True)
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        async def chunks() -> AsyncIterator[bytes]:
            yield args.text.encode()

        artifact = await context.keep(chunks(), media_type="text/plain", name="text.txt")
        return TextOut(text="" if artifact is None else artifact.artifact_id)


class LaysEvidence(Tool[TextIn, TextOut]):
    """Reports, writes into its workspace and lays evidence."""

    name = "test/text.prove"
    description = "Write the text to a file."
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        context.sink.progress(Progress(step=1, total=2))
        context.sink.chunk(Chunk(b"half"))
        with context.workspace.write_atomic("note.txt") as draft:
            draft.write(args.text.encode())
        context.proves(EvidenceType.FILE, "note.txt", "written", sha256="00", size="4")
        context.truncated = True
        return TextOut(text=context.workspace.folder)

    def effects(self, args: TextIn, context: ToolContext) -> Sequence[str]:
        return (f"Write {len(args.text)} characters to note.txt.",)

    def upstream(self, args: TextIn) -> str:
        return f"disk:{args.text}"

    def has_side_effects(self, args: TextIn) -> bool:
        return bool(args.text)


class Refuses(Tool[TextIn, TextOut]):
    """Fails in a way it foresaw."""

    name = "test/text.refuse"
    description = "Always refuse."
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        raise refuse(ErrorKind.NOT_FOUND, "There is nothing here. Ask for something else.")


class Crashes(Tool[TextIn, TextOut]):
    """Fails in a way it did not foresee."""

    name = "test/text.crash"
    description = "Always crash."
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        if args.text == "exit":
            raise SystemExit(3)
        raise RuntimeError(f"password={args.text}")

    def effects(self, args: TextIn, context: ToolContext) -> Sequence[str]:
        raise RuntimeError(f"password={args.text}")


class Waits(Tool[TextIn, TextOut]):
    """Waits until it is let go, and records its end."""

    name = "test/text.wait"
    description = "Wait."
    In, Out = TextIn, TextOut

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.let_go = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.started.set()
        try:
            await self.let_go.wait()
        finally:
            self.stopped.set()
        return TextOut(text=args.text, call_id=context.call_id)


class Asks(Tool[TextIn, TextOut]):
    """Asks a person two things, one after the other."""

    name = "test/text.ask"
    description = "Ask first."
    In, Out = TextIn, TextOut

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        first = context.ask(f"May I {args.text}?", {})
        second = context.ask("How?", {"type": "object", "properties": {"how": {"type": "string"}}})
        return TextOut(text=f"{len(first)} {second['how']}")
