"""Finding text in files line by line, with RE2, so that no expression can make a search slow.

`never_nl` keeps a match within its line and `(?m)` lets ^ and $ mean the line's ends, so that a whole file is searched
in one pass over its bytes. A file with a NUL in its first 8 KiB is taken for binary (as git and grep do).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import re2

from toolhub_service.domain.errors import ErrorKind, refuse

_BINARY_PROBE_BYTES = 8192
_EXCERPT_BYTES = 240
_LEAD_BYTES = 80
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_nl = True
_OPTIONS.max_mem = 8 << 20


@dataclass(frozen=True, slots=True)
class LineMatch:
    line: int
    """From 1."""
    excerpt: str


def compile_query(query: str, *, regex: bool) -> Any:
    """A compiled RE2 expression on bytes. Raises ToolFailure INVALID_INPUT for one that RE2 refuses."""
    if not regex and ("\n" in query or "\r" in query):
        raise refuse(ErrorKind.INVALID_INPUT, "The query spans lines. Search for a text within one line.")
    try:
        pattern = query.encode() if regex else re2.escape(query.encode())
        return re2.compile(b"(?m)" + pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError):
        message = (
            "The regular expression cannot be used: it is malformed, too large, or uses look-around or "
            "back-references, which RE2 lacks. Simplify it, or set regex to false to search for the text itself."
        )
        raise refuse(ErrorKind.INVALID_INPUT, message) from None


def is_binary(data: bytes) -> bool:
    return data.find(b"\0", 0, _BINARY_PROBE_BYTES) >= 0


def matching_lines(expression: Any, data: bytes) -> Iterator[LineMatch]:
    """Each line that matches, once."""
    line, counted_to, at = 1, 0, 0
    while at < len(data):
        match = expression.search(data, at)
        if match is None or match.start() >= len(data):
            return
        start = match.start()
        line += data.count(b"\n", counted_to, start)
        counted_to = start
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield LineMatch(line=line, excerpt=_excerpt(data, start, end))
        at = end + 1


def _excerpt(data: bytes, match_start: int, line_end: int) -> str:
    """The line, or of a long one what surrounds the match."""
    line_start = data.rfind(b"\n", 0, match_start) + 1
    begin = max(line_start, match_start - _LEAD_BYTES) if line_end - line_start > _EXCERPT_BYTES else line_start
    end = min(line_end, begin + _EXCERPT_BYTES)
    text = data[begin:end].decode("utf-8", "replace").strip("\r\ufffd")
    return f"{'…' if begin > line_start else ''}{text}{'…' if end < line_end else ''}"
