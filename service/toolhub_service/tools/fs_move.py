"""core/fs.move: another path for a file or a folder, in one step.

The workspace is one file system, so a move is a rename and copies nothing; a file is hashed first, as evidence of what
was moved, and its size is what the result calls bytesCopied.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import (
    DANGER_DESTRUCTIVE,
    READ_FS,
    WRITE_FS,
    Annotations,
    ArgumentRole,
    Example,
    GuardedArgument,
)
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.entries import Removed
from toolhub_service.tools.files import SourceFile, failure_of
from toolhub_service.tools.fs_values import AnyPath, FilePath, Overwrite, Sha256, judge_overwrite, judge_size, target
from toolhub_service.tools.threads import ByteProgress, to_thread, to_thread_if_large
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace import Workspace

# core/fs.deletePath: delete a file or a folder, for good.


class DeletePath(Tool["DeletePath.In", "DeletePath.Out"]):
    name = "core/fs.deletePath"
    description = (
        "Delete a file, a link or an empty folder of the workspace, or with recursive=true a folder and all in it. "
        "There is no way back; confirm must be true. Returns how many files, folders and bytes went."
    )
    tags = ("files", "write", "delete", "remove")
    capabilities = frozenset({WRITE_FS, DANGER_DESTRUCTIVE})
    annotations = Annotations(destructive=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_WRITE),)
    examples = (
        Example("Delete a file", {"path": "old.log", "confirm": True}),
        Example("Delete a folder", {"path": "build", "recursive": True, "confirm": True}),
    )

    class In(ToolInput, frozen=True):
        path: AnyPath
        recursive: Annotated[bool, Meta(description="Delete a folder with all in it.")] = False
        confirm: Annotated[bool, Meta(description="Must be true.")] = False

    class Out(ToolOutput, frozen=True):
        deleted: Annotated[bool, Meta(description="True: what stood there is gone.")]
        files: Annotated[int, Meta(description="Deleted files and links.")]
        folders: Annotated[int, Meta(description="Deleted folders.")]
        bytes: Annotated[int, Meta(description="Size of the deleted files.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        path = _confirmed(args)
        removed = await _remove(context.workspace, path, args.recursive)
        summary = f"deleted {removed.files} files and {removed.folders} folders, {removed.size_bytes} bytes"
        context.proves(EvidenceType.FILE, path, summary)
        return self.Out(deleted=True, files=removed.files, folders=removed.folders, bytes=removed.size_bytes)

    def touches(self, args: In) -> Sequence[str]:
        return (args.path,)

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        path = _confirmed(args)
        counted = context.workspace.count(path)
        if counted.folders and counted.files + counted.folders > 1 and not args.recursive:
            raise failure_of(OSError(errno.ENOTEMPTY, ""), path)
        return (f'Delete "{path}": {counted}. There is no way back.',)


def _confirmed(args: DeletePath.In) -> str:
    """The path that may be deleted. Raises ToolFailure INVALID_INPUT."""
    if not args.confirm:
        message = "Deleting needs confirm true. Make sure of the path, then call again with confirm set to true."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return judge_path(args.path)


async def _remove(workspace: Workspace, path: str, recursive: bool) -> Removed:
    if recursive or workspace.expects:
        return await to_thread(lambda stop: workspace.remove(path, recursive=recursive, stop=stop))
    return workspace.remove(path)


# core/fs.copy: one file to another path, whole or not at all.


class Copy(Tool["Copy.In", "Copy.Out"]):
    name = "core/fs.copy"
    description = (
        "Copy one file of the workspace to another path; missing folders are made. Fails with ALREADY_EXISTS when the "
        "destination is taken and overwrite is false. Folders are not copied: list them and copy each file."
    )
    tags = ("files", "write", "copy")
    capabilities = frozenset({READ_FS, WRITE_FS})
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
            path, copied = await to_thread_if_large(file.size_bytes, copy)
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


class Move(Tool["Move.In", "Move.Out"]):
    name = "core/fs.move"
    description = (
        "Move or rename a file or folder of the workspace in one step; missing folders above the destination are made. "
        "The destination is the new path itself, not the folder to put it in. Fails with ALREADY_EXISTS when it is "
        "taken and overwrite is false; a folder is never replaced."
    )
    tags = ("files", "write", "move", "rename")
    capabilities = frozenset({READ_FS, WRITE_FS})
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
            await to_thread(lambda stop: rename(stop=stop))
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
    sha256, _ = await to_thread_if_large(file.size_bytes, partial(file.digest, on_read=progress.advance))
    progress.finish()
    return sha256
