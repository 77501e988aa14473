"""Tools whose effects can be counted from outside, for hubs that are killed while they run them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from toolhub_service.domain.result import Progress
from toolhub_service.domain.tool import Annotations, CostHints, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

Seconds = Annotated[float, Meta(description="Seconds.", ge=0, le=60)]
Marker = Annotated[str, Meta(description="Names the job, of the caller's choice.", min_length=1, max_length=100)]
_LOOK_S = 0.02
LIMITS = ToolLimits(timeout_s=120.0, max_concurrency=1_000)


class Marked(ToolOutput, frozen=True):
    marker: str


class EffectIn(ToolInput, frozen=True):
    marker: Marker
    before_s: Seconds = 0.0
    after_s: Seconds = 0.0


class EffectOnce(Tool[EffectIn, Marked]):
    """Not to be repeated: each run adds a line to the ledger, which the process that dies leaves behind."""

    name = "chaos/effect.once"
    description = "Wait, write the marker into the ledger, wait."
    limits = LIMITS
    In, Out = EffectIn, Marked

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger

    async def run(self, args: EffectIn, context: ToolContext) -> Marked:
        await asyncio.sleep(args.before_s)
        append(Path(self._ledger), args.marker)
        await asyncio.sleep(args.after_s)
        return Marked(marker=args.marker)


class StepsIn(ToolInput, frozen=True):
    marker: Marker
    steps: Annotated[int, Meta(description="How many.", ge=1, le=10_000)]
    step_s: Seconds = 0.0
    until: Annotated[str, Meta(description="Path of a file without which the last step is not taken.")] = ""


class WorkSteps(Tool[StepsIn, Marked]):
    """May be repeated from the start."""

    name = "chaos/work.steps"
    description = "Take so many steps and tell of each."
    annotations = Annotations(idempotent=True, supports_progress=True)
    limits = LIMITS
    In, Out = StepsIn, Marked

    async def run(self, args: StepsIn, context: ToolContext) -> Marked:
        for step in range(1, args.steps + 1):
            await asyncio.sleep(args.step_s)
            if step == args.steps and args.until:
                await _there(Path(args.until))
            context.sink.progress(Progress(step, args.steps, "steps"))
        return Marked(marker=args.marker)


class ReadIn(ToolInput, frozen=True):
    marker: Marker


class QuickRead(Tool[ReadIn, Marked]):
    name = "chaos/quick.read"
    description = "Give the marker back."
    annotations = Annotations(read_only=True, idempotent=True)
    limits = LIMITS
    In, Out = ReadIn, Marked

    async def run(self, args: ReadIn, context: ToolContext) -> Marked:
        return Marked(marker=args.marker)


class AskedEffect(EffectOnce):
    """The same, for which a person is asked."""

    name = "chaos/effect.asked"


class NapIn(ToolInput, frozen=True):
    marker: Marker
    sleep_s: Seconds = 0.0


class NapJob(Tool[NapIn, Marked]):
    """Always a job; may be repeated."""

    name = "chaos/nap.job"
    description = "Sleep."
    annotations = Annotations(idempotent=True)
    cost = CostHints(is_async=True)
    limits = LIMITS
    In, Out = NapIn, Marked

    async def run(self, args: NapIn, context: ToolContext) -> Marked:
        await asyncio.sleep(args.sleep_s)
        return Marked(marker=args.marker)


class CallsIn(ToolInput, frozen=True):
    marker: Marker
    calls: Annotated[tuple[tuple[str, dict[str, Any]], ...], Meta(description="Tool and arguments of each.")]


class CallsOut(ToolOutput, frozen=True):
    answers: tuple[str, ...]


class CallsMade(Tool[CallsIn, CallsOut]):
    """A program without an interpreter: its calls one after the other, the last two at once."""

    name = "chaos/calls.make"
    description = "Make calls."
    limits = LIMITS
    replays = True
    In, Out = CallsIn, CallsOut

    async def run(self, args: CallsIn, context: ToolContext) -> CallsOut:
        assert context.calls is not None
        calls = context.calls().restrict_to({tool for tool, _ in args.calls}, 100).durable()
        asked = [calls.invoke(tool, given, purpose="chaos") for tool, given in args.calls]
        results = [await each for each in asked[:-2]] + list(await asyncio.gather(*asked[-2:]))
        return CallsOut(answers=tuple("ok" if each.error is None else each.error.kind.value for each in results))


async def _there(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(_LOOK_S)


def append(ledger: Path, marker: str) -> None:
    """One line in one write, whichever processes write at the same time."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{marker} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)


def effects(ledger: Path) -> Iterator[str]:
    """The marker of every effect there was."""
    if ledger.exists():
        yield from (line.split()[0] for line in ledger.read_text().splitlines())
