"""Tools for hubs in processes of their own: each records its process, and waits until a file exists."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.result import Progress
from toolhub_service.domain.tool import Annotations, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

_LOOK_S = 0.02


class HeldIn(ToolInput, frozen=True):
    until: Annotated[str, Meta(description="Path of the file to wait for.")]
    begun: Annotated[str, Meta(description="Path of a file to make first; empty: none.")] = ""


class HeldOut(ToolOutput, frozen=True):
    pid: int


class HoldOnce(Tool[HeldIn, HeldOut]):
    """A side effect."""

    name = "held/effect.once"
    description = "Say who runs it and wait for a file."
    limits = ToolLimits(timeout_s=120.0)
    In, Out = HeldIn, HeldOut

    async def run(self, args: HeldIn, context: ToolContext) -> HeldOut:
        context.sink.progress(Progress(1, 2, "halves", str(os.getpid())))
        if args.begun:
            Path(args.begun).touch()  # noqa: ASYNC240 - in a test
        until = Path(args.until)
        while not until.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(_LOOK_S)
        return HeldOut(pid=os.getpid())


class HoldSafely(HoldOnce):
    """May be repeated."""

    name = "held/work.again"
    annotations = Annotations(idempotent=True, supports_progress=True)
