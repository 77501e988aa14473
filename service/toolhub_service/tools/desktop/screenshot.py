"""core/desktop.screenshot: a picture of the display that the operator has configured."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import READ_DESKTOP, WRITE_FS, Annotations, CostHints, Example, ToolLimits
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.process import run_process
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

FOLDER: Final = "screenshots"
PICTURE_MAX_BYTES: Final = 25 * 1024 * 1024
_WORKER: Final = "toolhub_service.tools.desktop.worker"
_MAX_PIXELS: Final = 40_000_000
_TIMEOUT_S: Final = 30.0
_PNG: Final = b"\x89PNG\r\n\x1a\n"


class _Taken(msgspec.Struct, frozen=True):
    """The process's report beside its picture."""

    problem: str = "end"
    """`region`, `size`, `display`, `end`; empty when there is a picture."""
    width: int = 0
    height: int = 0
    """Of the picture; if the region was wrong, of the desktop."""


class DesktopScreenshot(Tool["DesktopScreenshot.In", "DesktopScreenshot.Out"]):
    name = "core/desktop.screenshot"
    description = (
        "Take a screenshot of the desktop on which the hub runs, or of a region of the screen, as a PNG under "
        "screenshots/ of the workspace. For web pages use core/web.screenshot."
    )
    tags = ("desktop", "screenshot", "screen", "display")
    capabilities = frozenset({READ_DESKTOP, WRITE_FS})
    annotations = Annotations(idempotent=True)
    cost = CostHints(latency_ms_p50=500, latency_ms_p95=3_000)
    limits = ToolLimits(timeout_s=60.0)
    examples = (Example("The left upper corner", {"region": "0,0,640,480"}),)

    class In(ToolInput, frozen=True):
        region: Annotated[
            str,
            Meta(
                description="`full`, or left,top,width,height in pixels, such as `0,0,640,480`.",
                pattern=r"^(full|[0-9]{1,5},[0-9]{1,5},[1-9][0-9]{0,4},[1-9][0-9]{0,4})$",
            ),
        ] = "full"

    class Out(ToolOutput, frozen=True):
        path: str
        width: int
        height: int
        sha256: str
        bytes: int

    def __init__(self, display: str) -> None:
        """`display`: such as `:0`; empty: none is configured."""
        self._display = display

    def unavailable_reason(self) -> str:
        if find_spec("mss") is None:
            return "needs what reads a display: toolhub extras install desktop"
        if not self._display:
            return "no display: set desktop.display, such as `:0`, or DISPLAY for the hub"
        return ""

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        return (f"Keep a picture of the desktop ({args.region}) under {FOLDER}/.",)

    async def run(self, args: In, context: ToolContext) -> Out:
        taken, picture = await self._picture(args, context)
        path = f"{FOLDER}/desktop-{hashlib.sha256(context.call_id.encode()).hexdigest()[:12]}.png"
        max_bytes = context.constraints.sandbox.max_write_bytes
        with context.workspace.write_atomic(path, max_bytes=max_bytes) as draft:
            draft.write(picture)
        summary = f"{taken.width} x {taken.height} pixels of the desktop"
        context.proves(EvidenceType.FILE, draft.path, summary, sha256=draft.sha256)
        return self.Out(
            path=draft.path, width=taken.width, height=taken.height, sha256=draft.sha256, bytes=len(picture)
        )

    async def _picture(self, args: In, context: ToolContext) -> tuple[_Taken, bytes]:
        region = None if args.region == "full" else [int(number) for number in args.region.split(",")]
        ends_s = min(context.deadline_s, asyncio.get_running_loop().time() + _TIMEOUT_S)
        kept = ("HOME", "XAUTHORITY", "XDG_RUNTIME_DIR")
        environment = {name: value for name in kept if (value := os.environ.get(name))}
        # The environment is built from nothing: the process that talks to the display gets none of the hub's secrets.
        environment |= {"DISPLAY": self._display, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # -P keeps the working directory out of the path, from which modules would otherwise be imported first.
        program = Program((sys.executable, "-P", "-m", _WORKER), environment, "/", has_input=True)
        given = json.dumps({"region": region, "max_pixels": _MAX_PIXELS}).encode()
        try:
            finished = await run_process(
                program, deadline_s=ends_s, keep_bytes=PICTURE_MAX_BYTES, on_output=lambda *_: None, given=given
            )
        except OSError as error:
            message = "The process that reads the display could not be started. Try again later."
            raise refuse(ErrorKind.EXECUTION_ERROR, message, retryable=True) from error
        line, _, picture = bytes(finished.stdout.kept).partition(b"\n")
        try:
            taken = msgspec.json.decode(line, type=_Taken)
        except msgspec.MsgspecError:
            taken = _Taken()
        if taken.problem == "region":
            size = f"{taken.width} x {taken.height}"
            message = f"The region leaves the desktop, which is {size} pixels. Give one within it."
            raise refuse(ErrorKind.INVALID_INPUT, message, argument="region")
        if taken.problem == "size" or finished.stdout.total_bytes > PICTURE_MAX_BYTES:
            message = "The picture would be too large. Give a smaller region."
            raise refuse(ErrorKind.FILE_TOO_LARGE, message, max_bytes=PICTURE_MAX_BYTES)
        # Only a PNG is stored under that name, whatever the process reports.
        if taken.problem or not picture.startswith(_PNG):
            message = f"The display {self._display} cannot be read. An operator must check desktop.display."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False)
        return taken, picture
