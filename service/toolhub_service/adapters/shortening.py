"""What a source says, at a size that can be kept: cut, with a digest of the whole so that a change is still seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from toolhub_service.domain.json import JsonValue

_TOO_DEEP: Final = "nested too deeply to be read"


def written(value: JsonValue) -> bytes | None:
    """Compact JSON of a value that came as JSON; None when it is nested too deeply to be written."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
    except (RecursionError, ValueError):
        return None


def shortened(text: str, max_bytes: int) -> str:
    """The beginning of the text, at most so many bytes of UTF-8; what is not Unicode is replaced."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def kept_text(text: str, max_bytes: int) -> JsonValue:
    """The text; of one that is too long the beginning, its length and its digest."""
    short = shortened(text, max_bytes)
    if len(short) == len(text):
        return text
    data = text.encode("utf-8", "replace")
    return {"beginning": short, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def kept_json(value: JsonValue, max_bytes: int) -> JsonValue:
    """The value; of one that is too large only its length and digest."""
    if isinstance(value, str):
        return kept_text(value, max_bytes)
    data = written(value)
    if data is None:
        return {"unreadable": _TOO_DEEP}
    if len(data) <= max_bytes:
        return value
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def one_line(text: str, max_chars: int) -> str:
    """Untrusted text for a sentence: printable, on one line, cut."""
    seen = text[: 4 * max_chars]
    line = " ".join("".join(char if char.isprintable() else " " for char in seen).split())
    return line if len(line) <= max_chars and len(seen) == len(text) else f"{line[: max_chars - 1]}…"


def as_object(value: JsonValue) -> Mapping[str, JsonValue] | None:
    """The value when it is a JSON object."""
    return value if isinstance(value, Mapping) else None
