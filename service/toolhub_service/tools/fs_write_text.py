"""core/fs.writeText: a text file, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_plans import target
from toolhub_service.tools.fs_values import Encoding, FilePath, Overwrite, Sha256, judge_overwrite, judge_size
from toolhub_service.tools.off_loop import heed, off_loop_if_large
from toolhub_service.tools.source_file import CHUNK_BYTES
from toolhub_service.tools.text_encoding import encoded
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import Workspace


class WriteText(Tool["WriteText.In", "WriteText.Out"]):
    name = "core/fs.writeText"
    description = (
        "Write a text file in the workspace, in one step: readers see the old file or the new one. Fails with "
        "ALREADY_EXISTS when the path is taken and overwrite is false. To change a part of a file use core/fs.editText."
    )
    tags = ("files", "write", "text")
    capabilities = frozenset({capability.WRITE_FS})
    annotations = Annotations(destructive=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_WRITE),)
    examples = (
        Example("Write a new file", {"path": "notes/today.md", "text": "# Today\n"}),
        Example("Replace a file", {"path": "notes/today.md", "text": "# Today\n", "overwrite": True}),
    )

    class In(ToolInput, frozen=True):
        path: FilePath
        text: Annotated[str, Meta(description="The whole content.")]
        overwrite: Overwrite = False
        mkdirp: Annotated[bool, Meta(description="Make missing folders.")] = True
        encoding: Encoding = "utf-8"

    class Out(ToolOutput, frozen=True):
        path: str
        bytes: Annotated[int, Meta(description="Bytes written.")]
        sha256: Sha256

    async def run(self, args: In, context: ToolContext) -> Out:
        sandbox = context.constraints.sandbox
        judge_overwrite(args.overwrite, sandbox)
        data = encoded(args.text, args.encoding)
        judge_size(len(data), sandbox.max_write_bytes, "The text")
        written = await off_loop_if_large(len(data), partial(_write, context.workspace, args, data))
        context.proves(EvidenceType.FILE, written.path, f"wrote {written.bytes} bytes", sha256=written.sha256)
        return written

    def touches(self, args: In) -> Sequence[str]:
        return (args.path,) if args.overwrite else ()

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        sandbox = context.constraints.sandbox
        size_bytes = len(encoded(args.text, args.encoding))
        judge_size(size_bytes, sandbox.max_write_bytes, "The text")
        place = target(context.workspace, args.path, sandbox, overwrite=args.overwrite, mkdirp=args.mkdirp)
        return (f"Write {size_bytes:,} bytes to {place}.",)


def _write(workspace: Workspace, args: WriteText.In, data: bytes, stop: threading.Event | None) -> WriteText.Out:
    with workspace.write_atomic(args.path, overwrite=args.overwrite, mkdirp=args.mkdirp) as draft:
        for at in range(0, len(data), CHUNK_BYTES):
            heed(stop)
            draft.write(memoryview(data)[at : at + CHUNK_BYTES])
    return WriteText.Out(path=draft.path, bytes=draft.written_bytes, sha256=draft.sha256)
