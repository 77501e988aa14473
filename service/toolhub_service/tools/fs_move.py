"""core/fs.move: another path for a file or a folder, in one step.

The workspace is one file system, so a move is a rename and copies nothing; a file is hashed first, as evidence of what
was moved, and its size is what the result calls bytesCopied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_plans import target
from toolhub_service.tools.fs_values import AnyPath, Overwrite, judge_overwrite
from toolhub_service.tools.off_loop import ByteProgress, off_loop, off_loop_if_large
from toolhub_service.tools.source_file import SourceFile
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class Move(Tool["Move.In", "Move.Out"]):
    name = "core/fs.move"
    description = (
        "Move or rename a file or folder of the workspace in one step; missing folders above the destination are made. "
        "The destination is the new path itself, not the folder to put it in. Fails with ALREADY_EXISTS when it is "
        "taken and overwrite is false; a folder is never replaced."
    )
    tags = ("files", "write", "move", "rename")
    capabilities = frozenset({capability.READ_FS, capability.WRITE_FS})
    annotations = Annotations(destructive=True, supports_progress=True)
    guarded = (
        GuardedArgument("source", ArgumentRole.PATH_WRITE),
        GuardedArgument("destination", ArgumentRole.PATH_WRITE),
    )
    examples = (Example("Rename a file", {"source": "draft.md", "destination": "final/report.md"}),)

    class In(ToolInput, frozen=True):
        source: AnyPath
        destination: AnyPath
        overwrite: Overwrite = False

    class Out(ToolOutput, frozen=True):
        bytes_copied: Annotated[int, Meta(description="Size of the moved file; 0 for a folder.")]
        sha256: Annotated[str, Meta(description="SHA-256 of the moved file, hex; empty for a folder.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        judge_overwrite(args.overwrite, context.constraints.sandbox)
        source, destination = judge_path(args.source), judge_path(args.destination)
        workspace = context.workspace
        sha256, size_bytes = "", 0
        if workspace.stat(source).type == "file":
            with workspace.open_read(source) as file:
                sha256, size_bytes = await _hashed(file, context), file.size_bytes
        rename = partial(workspace.rename, source, destination, overwrite=args.overwrite)
        if workspace.expects:
            await off_loop(lambda stop: rename(stop=stop))
        else:
            rename()
        context.proves(EvidenceType.FILE, destination, f"moved from {source}, {size_bytes} bytes", sha256=sha256)
        return self.Out(bytes_copied=size_bytes, sha256=sha256)

    def touches(self, args: In) -> Sequence[str]:
        return (args.source, args.destination) if args.overwrite else (args.source,)

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        source = judge_path(args.source)
        moved = context.workspace.stat(source)
        sandbox = context.constraints.sandbox
        place = target(context.workspace, args.destination, sandbox, overwrite=args.overwrite)
        if moved.type == "dir":
            return (f'Move the folder "{source}" to "{judge_path(args.destination)}".',)
        return (f'Move the {moved.size_bytes:,} bytes of "{source}" to {place}.',)


async def _hashed(file: SourceFile, context: ToolContext) -> str:
    progress = ByteProgress(context.sink, file.size_bytes)
    sha256, _ = await off_loop_if_large(file.size_bytes, partial(file.digest, on_read=progress.advance))
    progress.finish()
    return sha256
