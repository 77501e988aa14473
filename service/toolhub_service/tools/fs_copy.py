"""core/fs.copy: one file to another path, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_plans import target
from toolhub_service.tools.fs_values import FilePath, Overwrite, Sha256, judge_overwrite, judge_size
from toolhub_service.tools.off_loop import ByteProgress, off_loop_if_large
from toolhub_service.tools.source_file import SourceFile
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import Workspace


class Copy(Tool["Copy.In", "Copy.Out"]):
    name = "core/fs.copy"
    description = (
        "Copy one file of the workspace to another path; missing folders are made. Fails with ALREADY_EXISTS when the "
        "destination is taken and overwrite is false. Folders are not copied: list them and copy each file."
    )
    tags = ("files", "write", "copy")
    capabilities = frozenset({capability.READ_FS, capability.WRITE_FS})
    annotations = Annotations(destructive=True, supports_progress=True)
    guarded = (
        GuardedArgument("source", ArgumentRole.PATH_READ),
        GuardedArgument("destination", ArgumentRole.PATH_WRITE),
    )
    examples = (Example("Keep a copy", {"source": "report.md", "destination": "old/report.md"}),)

    class In(ToolInput, frozen=True):
        source: FilePath
        destination: FilePath
        overwrite: Overwrite = False

    class Out(ToolOutput, frozen=True):
        bytes_copied: int
        sha256: Sha256

    async def run(self, args: In, context: ToolContext) -> Out:
        sandbox = context.constraints.sandbox
        judge_overwrite(args.overwrite, sandbox)
        with context.workspace.open_read(args.source) as file:
            judge_size(file.size_bytes, sandbox.max_write_bytes, "The file")
            progress = ByteProgress(context.sink, file.size_bytes)
            copy = partial(_copy, context.workspace, file, args, progress)
            path, copied = await off_loop_if_large(file.size_bytes, copy)
        progress.finish()
        summary = f"copied {copied.bytes_copied} bytes from {file.path}"
        context.proves(EvidenceType.FILE, path, summary, sha256=copied.sha256)
        return copied

    def touches(self, args: In) -> Sequence[str]:
        return (args.destination,) if args.overwrite else ()

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        sandbox = context.constraints.sandbox
        with context.workspace.open_read(args.source) as file:
            judge_size(file.size_bytes, sandbox.max_write_bytes, "The file")
            place = target(context.workspace, args.destination, sandbox, overwrite=args.overwrite)
            return (f'Copy the {file.size_bytes:,} bytes of "{file.path}" to {place}.',)


def _copy(
    workspace: Workspace,
    file: SourceFile,
    args: Copy.In,
    progress: ByteProgress,
    stop: threading.Event | None,
) -> tuple[str, Copy.Out]:
    with workspace.write_atomic(args.destination, overwrite=args.overwrite, mode=file.mode | 0o600) as draft:
        for data in file.chunks(stop):
            draft.write(data)
            progress.advance(len(data))
    return draft.path, Copy.Out(bytes_copied=draft.written_bytes, sha256=draft.sha256)
