"""core/fs.readText: a text file or some of its lines.

A file is read to its end whatever is asked for, so that line count and digest speak of the whole; therefore files of
more than 20 times `max_read_bytes` are refused with FILE_TOO_LARGE (100 MiB where the bound is 5 MiB). When the text is
cut the whole file is kept as an artifact beside it, where the hub keeps artifacts and there is room.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain import capability
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, ArgumentRole, Example, GuardedArgument
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.fs_values import Encoding, FilePath, judge_size
from toolhub_service.tools.line_reading import LineReading
from toolhub_service.tools.off_loop import heed, off_loop, off_loop_if_large
from toolhub_service.tools.source_file import CHUNK_BYTES, SourceFile
from toolhub_service.tools.text_encoding import judge_encoding
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

_WHOLE_FILE_FACTOR = 20


class ReadText(Tool["ReadText.In", "ReadText.Out"]):
    name = "core/fs.readText"
    description = (
        "Read a text file of the workspace, whole or from startLine to endLine (from 1, inclusive). Text beyond "
        "maxBytes is cut and truncated is true: ask for line ranges then. Use core/fs.searchText to find where to read."
    )
    tags = ("files", "read", "text")
    capabilities = frozenset({capability.READ_FS})
    annotations = Annotations(read_only=True, idempotent=True)
    guarded = (GuardedArgument("path", ArgumentRole.PATH_READ),)
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
            judge_size(file.size_bytes, limit_bytes, "The file")
            await off_loop_if_large(file.size_bytes, partial(reading.take, file))
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
    """The text that was asked for is answered whatever becomes of the artifact."""
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
    """As large as it was when opened, so that a growing file comes to an end."""
    left_bytes = file.size_bytes
    while left_bytes > 0:
        data = await off_loop(partial(_read, file, min(CHUNK_BYTES, left_bytes)))
        if not data:
            return
        left_bytes -= len(data)
        yield data


def _read(file: SourceFile, size_bytes: int, stop: threading.Event) -> bytes:
    heed(stop)
    return file.read(size_bytes)


def _reading(args: ReadText.In, context: ToolContext) -> LineReading:
    start_line = args.start_line or 1
    if args.end_line is not None and args.end_line < start_line:
        raise refuse(ErrorKind.INVALID_INPUT, "endLine lies before startLine. Swap them or leave endLine out.")
    return LineReading(
        judge_encoding(args.encoding),
        start_line=start_line,
        end_line=args.end_line,
        max_bytes=min(args.max_bytes, context.constraints.sandbox.max_read_bytes),
    )
