"""Finds text in files line by line, with RE2, whose time is linear in the text for any expression.

Linear can still be slow: RE2 takes up to 20 µs a byte for a large program, so programs are limited, and a file is
searched in blocks of lines, which are smaller for a large program. Between two blocks (at most about 0.3 s each; RE2
holds no lock meanwhile) a search ends when it is cancelled, or with its matches so far when it has used
its processor time. Elapsed time would not do: on a busy machine the same search must find the same.

`never_nl` keeps a match within its line and `(?m)` makes ^ and $ match at line ends, so that a block is searched in
one pass. A line longer than a block is searched in pieces. A file with a NUL in its first 8 KiB counts as binary (as
in git and grep).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import re2

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.domain.errors.failure import ErrorKind, refuse

_BLOCK_BYTES = 64 * 1024
_HEAVY_BLOCK_BYTES = 8 * 1024
_HEAVY_PROGRAM_SIZE = 500
_WORK_S = 5.0
# Share of the remaining time, at most `RESERVE_S`, reserved for returning what was found before the call's deadline.
RESERVE = 0.1
RESERVE_S = 1.0
_PROGRAM_SIZE = 4000
BINARY_PROBE_BYTES = 8192
_EXCERPT_BYTES = 240
_LEAD_BYTES = 80
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_nl = True
_OPTIONS.max_mem = 1 << 20


def compile_query(query: str, *, regex: bool) -> Any:
    """Return a compiled RE2 expression on bytes. Raises ToolFailure INVALID_INPUT for one that RE2 refuses or that is
    too large."""
    if not regex and ("\n" in query or "\r" in query):
        raise refuse(ErrorKind.INVALID_INPUT, "The query spans lines. Search for a text within one line.")
    try:
        pattern = query.encode() if regex else re2.escape(query.encode())
        expression = re2.compile(b"(?m)" + pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError):
        message = (
            "The regular expression cannot be used: it is malformed, or uses look-around or back-references, which "
            "RE2 lacks. Repair it, or set regex to false to search for the text itself."
        )
        raise refuse(ErrorKind.INVALID_INPUT, message) from None
    if regex and expression.programsize > _PROGRAM_SIZE:
        message = "The regular expression is too large. Use * and + where it counts to large numbers with {n,m}."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return expression


class WorkDone(Exception):
    """The search has used its processor time, or its share of the call's time; its matches so far are its result."""


class SearchWork:
    """How much work is left to one search: made in the thread that does it."""

    def __init__(
        self,
        until_s: float,
        *,
        spent_s: Callable[[], float] = time.thread_time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`until_s`: when the search must end, on the clock `now_s`; `spent_s`: processor time of this thread."""
        self._spent_s = spent_s
        self._now_s = now_s
        self._until_s = until_s
        self._spent_max_s = spent_s() + _WORK_S

    def check(self) -> None:
        """Raise WorkDone when no more may be done."""
        if self._spent_s() >= self._spent_max_s or self._now_s() >= self._until_s:
            raise WorkDone


def matching_lines(
    expression: Any, data: bytes, stop: threading.Event | None = None, work: SearchWork | None = None
) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and excerpt of each matching line, once.

    Raises ToolFailure CANCELLED within a block after `stop` is set, and WorkDone likewise.
    """
    line, counted_to, at = 1, 0, 0
    block_bytes = _HEAVY_BLOCK_BYTES if expression.programsize > _HEAVY_PROGRAM_SIZE else _BLOCK_BYTES
    for begin, end in _blocks(data, block_bytes):
        raise_if_cancelled(stop)
        if work is not None:
            work.check()
        at = max(at, begin)
        while at < end:
            match = expression.search(data, at, end)
            # A match at the very end of a block belongs to the next one.
            if match is None or match.start() >= end:
                break
            start = match.start()
            line += data.count(b"\n", counted_to, start)
            counted_to = start
            line_end = data.find(b"\n", start)
            line_end = len(data) if line_end < 0 else line_end
            yield line, _excerpt(data, start, line_end)
            at = line_end + 1


def _blocks(data: bytes, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each block: it ends behind a line feed, or within a line that is longer than a block."""
    begin = 0
    while begin < len(data):
        end = min(begin + block_bytes, len(data))
        if end < len(data):
            # 0 where a block has no line end: such a line is searched in pieces.
            end = data.rfind(b"\n", begin, end) + 1 or end
        yield begin, end
        begin = end


def _excerpt(data: bytes, match_start: int, line_end: int) -> str:
    """Return the line, or of a long one the text around the match."""
    line_start = data.rfind(b"\n", 0, match_start) + 1
    begin = max(line_start, match_start - _LEAD_BYTES) if line_end - line_start > _EXCERPT_BYTES else line_start
    end = min(line_end, begin + _EXCERPT_BYTES)
    text = data[begin:end].decode("utf-8", "replace").strip("\r\ufffd")
    return f"{'…' if begin > line_start else ''}{text}{'…' if end < line_end else ''}"
