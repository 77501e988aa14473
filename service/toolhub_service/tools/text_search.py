"""Finding text in files line by line, with RE2: time linear in the text whatever the expression.

Linear is not yet short: RE2 takes up to 20 µs a byte for a large program, so programs are bounded, and a file is
searched in blocks of lines between which a cancelled search ends (measured: at most about a second a block; RE2 holds
no lock meanwhile). `never_nl` keeps a match within its line and `(?m)` lets ^ and $ mean the line's ends, so that a
block is searched in one pass. A line longer than a block is searched in pieces. A file with a NUL in its first 8 KiB is
taken for binary (as git and grep do).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import re2

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.tools.off_loop import heed

_BLOCK_BYTES = 64 * 1024
_PROGRAM_SIZE = 4000
_BINARY_PROBE_BYTES = 8192
_EXCERPT_BYTES = 240
_LEAD_BYTES = 80
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_nl = True
_OPTIONS.max_mem = 1 << 20


@dataclass(frozen=True, slots=True)
class LineMatch:
    line: int
    """From 1."""
    excerpt: str


def compile_query(query: str, *, regex: bool) -> Any:
    """A compiled RE2 expression on bytes. Raises ToolFailure INVALID_INPUT for one that RE2 refuses or is too large."""
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


def is_binary(data: bytes) -> bool:
    return data.find(b"\0", 0, _BINARY_PROBE_BYTES) >= 0


def matching_lines(expression: Any, data: bytes, stop: threading.Event | None = None) -> Iterator[LineMatch]:
    """Each line that matches, once. Raises ToolFailure CANCELLED within a block after `stop` is set."""
    line, counted_to, at = 1, 0, 0
    for begin, end in _blocks(data):
        heed(stop)
        at = max(at, begin)
        while at < end:
            match = expression.search(data, at, end)
            if match is None or match.start() >= end:
                break
            start = match.start()
            line += data.count(b"\n", counted_to, start)
            counted_to = start
            line_end = data.find(b"\n", start)
            line_end = len(data) if line_end < 0 else line_end
            yield LineMatch(line=line, excerpt=_excerpt(data, start, line_end))
            at = line_end + 1


def _blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each block begins and ends: behind a line feed, or within a line that is longer than a block."""
    begin = 0
    while begin < len(data):
        end = min(begin + _BLOCK_BYTES, len(data))
        if end < len(data):
            end = data.rfind(b"\n", begin, end) + 1 or end
        yield begin, end
        begin = end


def _excerpt(data: bytes, match_start: int, line_end: int) -> str:
    """The line, or of a long one what surrounds the match."""
    line_start = data.rfind(b"\n", 0, match_start) + 1
    begin = max(line_start, match_start - _LEAD_BYTES) if line_end - line_start > _EXCERPT_BYTES else line_start
    end = min(line_end, begin + _EXCERPT_BYTES)
    text = data[begin:end].decode("utf-8", "replace").strip("\r\ufffd")
    return f"{'…' if begin > line_start else ''}{text}{'…' if end < line_end else ''}"
