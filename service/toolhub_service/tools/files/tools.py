"""The file tools, core/fs.*: their list, and the tools that read one file."""

from __future__ import annotations

import codecs
import hashlib
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from toolhub_service.aio.threads import to_thread, to_thread_if_large
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Example
from toolhub_service.guards.paths import check_path
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.search import FindFiles, ListDir, SearchText
from toolhub_service.tools.files.values import (
    AnyPath,
    Encoding,
    FilePath,
    FsReadTool,
    Sha256,
    check_encoding,
    check_size,
    iso_time,
    undecodable,
)
from toolhub_service.tools.files.write import Copy, DeletePath, EditText, Move, WriteText
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.tools.workspace.files import SourceFile
from toolhub_service.tools.workspace.workspace import FileType


class Stat(FsReadTool["Stat.In", "Stat.Out"]):
    name = "core/fs.stat"
    description = (
        "Check whether a path of the workspace exists and what it is: its type (file, dir, link, other), size in bytes "
        "and time of change. NOT_FOUND when there is nothing. Use it before reading a file that may be large."
    )
    tags = ("files", "read", "metadata", "exists")
    examples = (Example("Look at a file", {"path": "data/big.csv"}),)

    class In(ToolInput, frozen=True):
        path: AnyPath

    class Out(ToolOutput, frozen=True):
        type: FileType
        size: Annotated[int, Meta(description="Bytes; of no meaning for folders.")]
        modified_at: Annotated[str, Meta(description="ISO 8601, UTC.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        status = context.workspace.stat(args.path)
        context.proves(EvidenceType.FILE, check_path(args.path), f"{status.type} of {status.size_bytes} bytes")
        return self.Out(type=status.type, size=status.size_bytes, modified_at=iso_time(status.modified_at_s))


# core/fs.sha256: the digest of a file, for evidence and for detecting changes.


class FileSha256(FsReadTool["FileSha256.In", "FileSha256.Out"]):
    name = "core/fs.sha256"
    description = (
        "Compute the SHA-256 hash of a file of the workspace, of any size and kind: to prove what was written or to "
        "see whether it changed, without reading it."
    )
    tags = ("files", "read", "hash", "checksum")
    examples = (Example("Hash a file", {"path": "report.pdf"}),)

    class In(ToolInput, frozen=True):
        path: FilePath

    class Out(ToolOutput, frozen=True):
        sha256: Sha256
        bytes: Annotated[int, Meta(description="Size of the file.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        with context.workspace.open_read(args.path) as file:
            sha256, read_bytes = await to_thread_if_large(file.size_bytes, file.digest)
            context.proves(EvidenceType.FILE, file.path, f"hashed {read_bytes} bytes", sha256=sha256)
            return self.Out(sha256=sha256, bytes=read_bytes)


# Reading text from a stream of bytes: some of its lines, truncated at a size, with digest and line count of the whole.

_HEAD_LINES = 20
_HEAD_CHARS = 64 * 1024


class LineReading:
    """Lines `start_line` to `end_line` (from 1, inclusive; None: to the end), at most `max_bytes` of UTF-8."""

    def __init__(self, codec: str, *, start_line: int, end_line: int | None, max_bytes: int) -> None:
        self.truncated = False
        self.head_sha256 = ""
        """Digest of the first 20 lines as UTF-8, at most 64 Ki characters."""
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder(codec)("strict")
        self._start_line = start_line
        self._end_line = end_line
        self._room_bytes = max_bytes
        self._line = 1
        self._open_line = False
        self._kept: list[str] = []
        self._sha256 = hashlib.sha256()

    @property
    def text(self) -> str:
        return "".join(self._kept)

    @property
    def sha256(self) -> str:
        """Return the digest of all bytes read."""
        return self._sha256.hexdigest()

    @property
    def total_lines(self) -> int:
        """Return the number of line feeds, plus one for a last line without."""
        return self._line - 1 + self._open_line

    def take(self, file: SourceFile, stop: threading.Event | None = None) -> None:
        """Read the whole file. Raises ToolFailure INVALID_INPUT when it is not text in the encoding."""
        before_bytes = 0
        for data in file.chunks(stop):
            self._sha256.update(data)
            self._decode(data, before_bytes, file.path)
            before_bytes += len(data)
        self._decode(b"", before_bytes, file.path, final=True)

    def _decode(self, data: bytes, before_bytes: int, path: str, *, final: bool = False) -> None:
        # Bytes of a character that the last piece has split: they belong before this piece.
        waiting_bytes = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise undecodable(path, self._codec, before_bytes - waiting_bytes + error.start) from error
        if not self.head_sha256:
            head = text[: _after_newlines(text, _HEAD_LINES)][:_HEAD_CHARS]
            self.head_sha256 = hashlib.sha256(head.encode()).hexdigest()
        if text:
            self._select(text)

    def _select(self, text: str) -> None:
        first_line = self._line
        self._line += text.count("\n")
        self._open_line = not text.endswith("\n")
        is_behind = self._end_line is not None and first_line > self._end_line
        if self.truncated or is_behind or self._line < self._start_line:
            return
        begin = _after_newlines(text, self._start_line - first_line)
        end = len(text)
        if self._end_line is not None and self._line > self._end_line:
            end = _after_newlines(text, self._end_line - first_line + 1)
        text = text[begin:end]
        raw = text.encode()
        if len(raw) > self._room_bytes:
            self.truncated = True
            # "ignore" drops the incomplete character at the cut; all others are complete.
            text = raw[: self._room_bytes].decode("utf-8", "ignore")
        self._room_bytes -= min(len(raw), self._room_bytes)
        self._kept.append(text)


def _after_newlines(text: str, count: int) -> int:
    """Return the index behind the count-th line feed; the length when there are fewer, 0 for none."""
    at = 0
    for _ in range(count):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at


# A file is always read to its end, so that line count and digest cover all of it; therefore files of more than 20 times
# `max_read_bytes` are refused (100 MiB for a limit of 5 MiB).
_WHOLE_FILE_FACTOR = 20


class ReadText(FsReadTool["ReadText.In", "ReadText.Out"]):
    name = "core/fs.readText"
    description = (
        "Read a text file of the workspace, whole or from startLine to endLine (from 1, inclusive). Text beyond "
        "maxBytes is cut and truncated is true: ask for line ranges then. Use core/fs.searchText to find where to read."
    )
    tags = ("files", "read", "text", "content")
    examples = (
        Example("Read a file", {"path": "notes/today.md"}),
        Example("Read its first ten lines", {"path": "notes/today.md", "startLine": 1, "endLine": 10}),
    )

    class In(ToolInput, frozen=True):
        path: FilePath
        max_bytes: Annotated[int, Meta(description="Most bytes of text to return.", ge=1024, le=10_485_760)] = 5_242_880
        start_line: Annotated[int, Meta(description="First line, from 1.", ge=1)] | None = None
        end_line: Annotated[int, Meta(description="Last line, inclusive.", ge=1)] | None = None
        encoding: Encoding = "utf-8"

    class Out(ToolOutput, frozen=True):
        path: str
        text: str
        bytes: Annotated[int, Meta(description="Size of the whole file.")]
        truncated: Annotated[bool, Meta(description="Whether the text was cut at maxBytes.")]
        total_lines: Annotated[int, Meta(description="Lines of the whole file.")]

    async def run(self, args: In, context: ToolContext) -> Out:
        reading = _reading(args, context)
        with context.workspace.open_read(args.path) as file:
            limit_bytes = _WHOLE_FILE_FACTOR * context.constraints.sandbox.max_read_bytes
            check_size(file.size_bytes, limit_bytes, "The file")
            await to_thread_if_large(file.size_bytes, partial(reading.take, file))
            context.truncated = reading.truncated
            context.proves(
                EvidenceType.FILE,
                file.path,
                f"read {file.size_bytes} bytes, {reading.total_lines} lines",
                sha256=reading.sha256,
                size_bytes=str(file.size_bytes),
                first_lines_sha256=reading.head_sha256,
            )
            if reading.truncated:
                await _keep_whole(file, context)
            return self.Out(
                path=file.path,
                text=reading.text,
                bytes=file.size_bytes,
                truncated=reading.truncated,
                total_lines=reading.total_lines,
            )


async def _keep_whole(file: SourceFile, context: ToolContext) -> None:
    """Store the whole file; the requested text is returned even when the artifact cannot be stored."""
    file.rewind()
    name = file.path.rpartition("/")[2]
    try:
        artifact = await context.keep(_chunks(file), media_type="text/plain", name=name)
    except ToolFailure as failure:
        why = failure.error.kind.value
        context.proves(EvidenceType.FILE, file.path, f"the whole file could not be kept as an artifact: {why}")
        return
    if artifact is not None:
        summary = f"the whole file is artifact {artifact.artifact_id}, {artifact.size_bytes} bytes"
        context.proves(EvidenceType.FILE, file.path, summary, sha256=artifact.sha256)


async def _chunks(file: SourceFile) -> AsyncIterator[bytes]:
    chunks = file.chunks()
    while data := await to_thread(lambda _: next(chunks, b"")):
        yield data


def _reading(args: ReadText.In, context: ToolContext) -> LineReading:
    start_line = args.start_line or 1
    if args.end_line is not None and args.end_line < start_line:
        raise refuse(ErrorKind.INVALID_INPUT, "endLine lies before startLine. Swap them or leave endLine out.")
    return LineReading(
        check_encoding(args.encoding),
        start_line=start_line,
        end_line=args.end_line,
        max_bytes=min(args.max_bytes, context.constraints.sandbox.max_read_bytes),
    )


def fs_tools() -> list[Tool[Any, Any, Any]]:
    """Return one of each."""
    return [
        ReadText(),
        WriteText(),
        EditText(),
        ListDir(),
        FindFiles(),
        SearchText(),
        FileSha256(),
        Stat(),
        Copy(),
        Move(),
        DeletePath(),
    ]
