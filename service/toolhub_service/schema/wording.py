"""Names, values and places in words, short enough for a message."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any, Final

from toolhub_service.schema.json_pointer import step_of

_MAX_SHOWN: Final = 64
_MAX_POINTER: Final = 256
_MAX_NAMES: Final = 200
_TYPE_NAMES: Final = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def pointer(path: Iterable[str | int]) -> str:
    """RFC 6901, cut at 256 characters."""
    text = "".join(step_of(str(token)) for token in path)
    return text if len(text) <= _MAX_POINTER else text[: _MAX_POINTER - 1] + "…"


def subject(path: Iterable[str | int]) -> str:
    return f"`{readable(where)}`" if (where := pointer(path)) else "The value"


def shorten(text: str, limit: int = _MAX_SHOWN) -> str:
    shown = readable(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def readable(text: str) -> str:
    """Line breaks, control and invisible characters as escapes: names in messages may come from strangers."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def nearest(wanted: object, known: Iterable[object]) -> Any:
    """The known name or value closest to `wanted`, ignoring case; None when nothing is close."""
    names = {str(name).casefold(): name for name in list(known)[:_MAX_NAMES]}
    found = difflib.get_close_matches(shorten(str(wanted)).casefold(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def listing(values: list[Any]) -> str:
    """JSON texts, each at most 64 characters, joined by commas."""
    return ", ".join(shorten(json.dumps(value, ensure_ascii=False)) for value in values)


def type_name(value: Any) -> str:
    return "null" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)
