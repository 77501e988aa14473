"""Cut a result to its inline limit: the longest strings first, then the longest lists, always marked.

Writing, hashing and cutting megabytes takes 2 ms each: long results are processed in a thread, beside other calls.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, TypeAlias, cast

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.runtime.call_state import ResultSummary
from toolhub_service.runtime.record import summarise_result
from toolhub_service.schema.canonical_json import dumps

# Room for the marker and its JSON escapes.
_MARKER_BYTES = 96
# Characters, or bytes of JSON.
_LONG = 256 * 1024
# Items of a list that are measured together: measuring small ones one by one takes a second per million.
_TOGETHER = 256


class Cut(NamedTuple):
    """What was cut, and from what."""

    evidence: Evidence
    whole: bytes
    """Canonical JSON of the value before the cut."""


CutAndSummary: TypeAlias = tuple[JsonValue, Cut | None, ResultSummary]


def cut_to(value: JsonValue, max_bytes: int) -> tuple[JsonValue, Cut | None]:
    """Return the value with at most `max_bytes` of canonical JSON, and what was cut (None: nothing was).

    Only the value's own strings and lists are shortened, so that its shape survives where possible; a value that still
    does not fit becomes a string that says so.
    """
    return _cut(value, dumps(value), max_bytes)[:2]


async def cut_aside(value: JsonValue, max_bytes: int, *, is_large: bool = False) -> CutAndSummary:
    """As `cut_to`, with the audit log's summary of the remaining value; a value with long texts, or known to be large,
    is processed in a thread."""
    for member in value.values() if isinstance(value, dict) else (value,):  # long texts are usually at the top level
        if isinstance(member, str) and len(member) > _LONG:
            is_large = True
    if is_large:
        return await in_thread(_dump_and_cut, value, max_bytes)
    encoded = dumps(value)
    if len(encoded) <= max_bytes and len(encoded) <= _LONG:
        return value, None, summarise_result(value, encoded)
    if len(encoded) <= _LONG:
        return _cut(value, encoded, max_bytes)
    return await in_thread(_cut, value, encoded, max_bytes)


def _dump_and_cut(value: JsonValue, max_bytes: int) -> CutAndSummary:
    return _cut(value, dumps(value), max_bytes)


def _cut(value: JsonValue, encoded: bytes, max_bytes: int) -> CutAndSummary:
    if len(encoded) <= max_bytes:
        return value, None, summarise_result(value, encoded)
    shortened = _shorten(value, len(encoded) - max_bytes + _MARKER_BYTES)
    if isinstance(shortened, dict) and shortened.get("truncated") is False:  # the tool's own word for a cut
        shortened["truncated"] = True
    text = dumps(shortened)
    if len(text) > max_bytes:
        shortened = f"[result of {len(encoded)} bytes left out: the limit is {max_bytes} bytes]"
        text = dumps(shortened)
    whole = hashlib.sha256(encoded).hexdigest()
    summary = f"result cut from {len(encoded)} to about {max_bytes} bytes"
    cut = Cut(Evidence(EvidenceType.METRIC, "result", summary, sha256=whole), encoded)
    return shortened, cut, summarise_result(shortened, text)


def _shorten(value: JsonValue, excess_bytes: int) -> JsonValue:
    """Return the value with its longest member shortened by `excess_bytes`, as far as that member allows."""
    if isinstance(value, str):
        return _shorten_text(value, excess_bytes)
    if isinstance(value, dict) and value:
        key = max(value, key=lambda name: _size(value[name])) if len(value) > 1 else next(iter(value))
        return {**value, key: _shorten(value[key], excess_bytes)}
    if isinstance(value, list | tuple):
        return _shorten_list(cast("list[JsonValue]", list(value)), excess_bytes)
    return value


def _size(value: JsonValue) -> int:
    """Return about how long its JSON is; a text is measured without writing it."""
    return len(value) if isinstance(value, str) else len(dumps(value))


def _shorten_text(text: str, excess_bytes: int) -> str:
    encoded = text.encode()
    kept = encoded[: max(0, len(encoded) - excess_bytes)].decode(errors="ignore")
    return f"{kept}… [cut: {len(text) - len(kept)} of {len(text)} characters left out]"


def _shorten_list(items: list[JsonValue], excess_bytes: int) -> JsonValue:
    total = len(items)
    while len(items) > _TOGETHER:
        together = len(dumps(items[-_TOGETHER:])) - 1
        if together > excess_bytes:
            break
        excess_bytes -= together
        del items[-_TOGETHER:]
    while len(items) > 1 and excess_bytes > 0:
        excess_bytes -= len(dumps(items.pop())) + 1
    if excess_bytes > 0 and items:
        items[0] = _shorten(items[0], excess_bytes)
    return [*items, f"[cut: {total - len(items)} of {total} items left out]"] if len(items) < total else items
