"""The file tools that change something: core/fs.writeText, editText, copy, move and deletePath."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.aio.threads import INLINE_BYTES, ByteProgress, raise_if_cancelled, to_thread, to_thread_if_large
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
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
from toolhub_service.guards.paths import check_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.values import (
    AnyPath,
    Encoding,
    FilePath,
    Overwrite,
    Sha256,
    check_overwrite,
    check_size,
    encode_text,
    target,
    undecodable,
)
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace.disk_errors import failure_of
from toolhub_service.tools.workspace.files import CHUNK_BYTES, SourceFile
from toolhub_service.tools.workspace.workspace import Workspace


class DeletePath(Tool["DeletePath.In", "DeletePath.Out"]):
    name = "core/fs.deletePath"
    description = (
        "Delete a file, a link or an empty folder of the workspace, or with recursive=true a folder and all in it. "
        "This cannot be undone; confirm must be true. Returns how many files, folders and bytes went."
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
        deleted: Annotated[bool, Meta(description="True: the path no longer exists.")]
        files: Annotated[int, Meta(description="Deleted files and links.")]
        folders: Annotated[int, Meta(description="Deleted folders.")]
        bytes: Annotated[int, Meta(description="Size of the deleted files.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        path = _check_confirmed(args)
        workspace = context.workspace
        # Both may walk a whole tree: to delete it, or to compare it with the state in the plan.
        if args.recursive or workspace.expects:
            removed = await to_thread(lambda stop: workspace.remove(path, recursive=args.recursive, stop=stop))
        else:
            removed = workspace.remove(path)
        summary = f"deleted {removed.files} files and {removed.folders} folders, {removed.size_bytes} bytes"
        context.proves(EvidenceType.FILE, path, summary)
        return self.Out(deleted=True, files=removed.files, folders=removed.folders, bytes=removed.size_bytes)

    def touches(self, args: In) -> Sequence[str]:
        return (args.path,)

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        path = _check_confirmed(args)
        counted = context.workspace.count(path)
        if counted.folders and counted.files + counted.folders > 1 and not args.recursive:
            raise failure_of(OSError(errno.ENOTEMPTY, ""), path)
        return (f'Delete "{path}": {counted}. This cannot be undone.',)


def _check_confirmed(args: DeletePath.In) -> str:
    """Return the path that may be deleted. Raises ToolFailure INVALID_INPUT."""
    if not args.confirm:
        message = "Deleting requires confirm: true. Check the path, then call again with confirm set to true."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return check_path(args.path)


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
        check_overwrite(args.overwrite, sandbox)
        with context.workspace.open_read(args.source) as file:
            check_size(file.size_bytes, sandbox.max_write_bytes, "The file")
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
            check_size(file.size_bytes, sandbox.max_write_bytes, "The file")
            place = target(context.workspace, args.destination, sandbox, overwrite=args.overwrite)
            return (f'Copy the {file.size_bytes:,} bytes of "{file.path}" to {place}.',)


def _copy(
    workspace: Workspace,
    file: SourceFile,
    args: Copy.In,
    progress: ByteProgress,
    stop: threading.Event | None,
) -> tuple[str, Copy.Out]:
    # The copy of a read-only file stays writable for its owner; otherwise the next edit of it would fail.
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
        GuardedArgument("source", ArgumentRole.PATH_READ),
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
        check_overwrite(args.overwrite, context.constraints.sandbox)
        source = check_path(args.source)
        destination = check_path(args.destination)
        workspace = context.workspace
        sha256, size_bytes = "", 0
        if workspace.stat(source).type == "file":
            # A move is a rename and copies nothing; the file is hashed as evidence of what was moved.
            with workspace.open_read(source) as file:
                progress = ByteProgress(context.sink, file.size_bytes)
                size_bytes = file.size_bytes
                digest = partial(file.digest, on_read=progress.advance)
                sha256, _ = await to_thread_if_large(size_bytes, digest)
                progress.finish()
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
        source = check_path(args.source)
        moved = context.workspace.stat(source)
        sandbox = context.constraints.sandbox
        place = target(context.workspace, args.destination, sandbox, overwrite=args.overwrite)
        if moved.type == "dir":
            return (f'Move the folder "{source}" to "{check_path(args.destination)}".',)
        return (f'Move the {moved.size_bytes:,} bytes of "{source}" to {place}.',)


_SHOWN_LINES = 10
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")


class EditText(Tool["EditText.In", "EditText.Out"]):
    name = "core/fs.editText"
    description = (
        "Replace oldText by newText in a UTF-8 text file of the workspace. oldText must match exactly, white space "
        "included, and occur expectedCount times (once by default); otherwise nothing changes and the error says how "
        "often and in which lines it occurs. Give more surrounding text to make a match unique. In a file whose lines "
        "end with CRLF a line end may be written as \\n."
    )
    tags = ("files", "write", "edit", "text")
    capabilities = frozenset({WRITE_FS})
    annotations = Annotations(destructive=True)
    guarded = (
        # Whether a text occurs, how often and in which lines, is part of the answer.
        GuardedArgument("path", ArgumentRole.PATH_READ),
        GuardedArgument("path", ArgumentRole.PATH_WRITE),
    )
    examples = (
        Example("Change one place", {"path": "app.py", "oldText": "retries = 3", "newText": "retries = 5"}),
        Example("Change both places", {"path": "a.md", "oldText": "teh", "newText": "the", "expectedCount": 2}),
    )

    class In(ToolInput, frozen=True):
        path: FilePath
        old_text: Annotated[str, Meta(description="Exact text to replace.", min_length=1)]
        new_text: Annotated[str, Meta(description="What takes its place; may be empty.")]
        expected_count: Annotated[int, Meta(description="How often oldText must occur.", ge=1, le=100_000)] = 1

    class Out(ToolOutput, frozen=True):
        path: str
        replacements: int
        sha256: Sha256

    async def run(self, args: In, context: ToolContext) -> Out:
        sandbox = context.constraints.sandbox
        check_overwrite(True, sandbox)
        # The file is locked with flock(2) while it is read, changed and replaced, so that neither of two edits is lost.
        with context.workspace.open_to_edit(args.path) as file:
            check_size(file.size_bytes, sandbox.max_read_bytes, "The file")
            edit = partial(_edit, context.workspace, file, args, sandbox.max_write_bytes)
            edited = await to_thread_if_large(file.size_bytes, edit)
        summary = f"replaced {edited.replacements} places"
        context.proves(EvidenceType.FILE, edited.path, summary, sha256=edited.sha256)
        return edited

    def touches(self, args: In) -> Sequence[str]:
        return (args.path,)

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        sandbox = context.constraints.sandbox
        check_overwrite(True, sandbox)
        places = f"{args.expected_count} places" if args.expected_count > 1 else "1 place"
        with context.workspace.open_read(args.path) as file:
            check_size(file.size_bytes, sandbox.max_read_bytes, "The file")
            if file.size_bytes > INLINE_BYTES:
                return (
                    f'Replace a text in {places} of "{file.path}", if it occurs as often ({file.size_bytes:,} bytes).',
                )
            after = len(_replace_text(file, args, sandbox.max_write_bytes))
            return (f'Replace a text in {places} of "{file.path}": {after:,} bytes instead of {file.size_bytes:,}.',)


def _edit(
    workspace: Workspace, file: SourceFile, args: EditText.In, max_bytes: int, stop: threading.Event | None
) -> EditText.Out:
    data = _replace_text(file, args, max_bytes, stop)
    with workspace.write_atomic(args.path, overwrite=True, mkdirp=False) as draft:
        draft.write(data)
    return EditText.Out(path=file.path, replacements=args.expected_count, sha256=draft.sha256)


def _replace_text(file: SourceFile, args: EditText.In, max_bytes: int, stop: threading.Event | None = None) -> bytes:
    """Return the file's content with the replacements made. Raises ToolFailure when the text is not found as
    expected."""
    data = b"".join(file.chunks(stop))
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise undecodable(file.path, "utf-8", error.start) from error
    old = encode_text(args.old_text, "utf-8")
    new = encode_text(args.new_text, "utf-8")
    if b"\r\n" in data and _LONE_LINE_FEED.search(data) is None:
        # Models write \n: in a file of CRLF it means the file's own line end, and a mixture helps nobody.
        old = _LONE_LINE_FEED.sub(b"\r\n", old)
        new = _LONE_LINE_FEED.sub(b"\r\n", new)
    count = data.count(old)
    if count != args.expected_count:
        raise _unexpected_count(data, old, count, args.expected_count)
    # The size is checked before the text is built: replacing a frequent short oldText can multiply the size.
    check_size(len(data) + count * (len(new) - len(old)), max_bytes, "The edited file")
    return data.replace(old, new)


def _unexpected_count(data: bytes, old: bytes, count: int, expected: int) -> ToolFailure:
    if count == 0:
        return refuse(ErrorKind.INVALID_INPUT, f"oldText does not occur in the file. {_hint(data, old)}", found=0)
    lines = _lines_of(data, old)
    message = (
        f"oldText occurs {count} times, not {expected}. Add surrounding text until it is unique, "
        "or set expectedCount to the number you mean."
    )
    return refuse(ErrorKind.INVALID_INPUT, message, found=count, expected=expected, lines=lines)


def _hint(data: bytes, old: bytes) -> str:
    if old.replace(b"\n", b"\r\n") in data:
        return "The file's lines end with CRLF: write \\r\\n in oldText and newText."
    if b"".join(old.split()) in b"".join(data.split()):
        return (
            "It occurs with other white space: copy spaces, tabs and line ends exactly as core/fs.readText "
            "returns them."
        )
    return "Read the file again with core/fs.readText and copy the text exactly."


def _lines_of(data: bytes, old: bytes) -> list[int]:
    """Return the line numbers of the first matches."""
    lines: list[int] = []
    at = data.find(old)
    while at >= 0 and len(lines) < _SHOWN_LINES:
        lines.append(data.count(b"\n", 0, at) + 1)
        at = data.find(old, at + len(old))
    return lines


class WriteText(Tool["WriteText.In", "WriteText.Out"]):
    name = "core/fs.writeText"
    description = (
        "Write or create a text file in the workspace, in one step: readers see the old file or the new one. Fails "
        "with ALREADY_EXISTS when the path is taken and overwrite is false. To change a part of a file use "
        "core/fs.editText."
    )
    tags = ("files", "write", "text")
    capabilities = frozenset({WRITE_FS})
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
        check_overwrite(args.overwrite, sandbox)
        data = encode_text(args.text, args.encoding)
        check_size(len(data), sandbox.max_write_bytes, "The text")
        written = await to_thread_if_large(len(data), partial(_write, context.workspace, args, data))
        context.proves(EvidenceType.FILE, written.path, f"wrote {written.bytes} bytes", sha256=written.sha256)
        return written

    def touches(self, args: In) -> Sequence[str]:
        return (args.path,) if args.overwrite else ()

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        sandbox = context.constraints.sandbox
        size_bytes = len(encode_text(args.text, args.encoding))
        check_size(size_bytes, sandbox.max_write_bytes, "The text")
        place = target(context.workspace, args.path, sandbox, overwrite=args.overwrite, mkdirp=args.mkdirp)
        return (f"Write {size_bytes:,} bytes to {place}.",)


def _write(workspace: Workspace, args: WriteText.In, data: bytes, stop: threading.Event | None) -> WriteText.Out:
    with workspace.write_atomic(args.path, overwrite=args.overwrite, mkdirp=args.mkdirp) as draft:
        for at in range(0, len(data), CHUNK_BYTES):
            raise_if_cancelled(stop)
            # A view copies nothing; it is written in pieces so that a cancelled call stops within one.
            draft.write(memoryview(data)[at : at + CHUNK_BYTES])
    return WriteText.Out(path=draft.path, bytes=draft.written_bytes, sha256=draft.sha256)
