"""The one way to write a JSON value: for digests, for the wire, for comparing.

Keys sorted by code point, no whitespace, UTF-8, shortest escapes, integers exact at any size, doubles in their shortest
round-trip form. The bytes equal RFC 8785 (JCS) for every value whose integers are below 2^53 in size, whose doubles are
neither integral nor written with an exponent, and whose keys do not mix astral characters with U+E000 to U+FFFF (JCS
sorts by UTF-16 unit). It departs from JCS on purpose: JCS would turn 2^53 + 1 into a double and lose the digit; here 1
and 1.0 stay two different texts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from toolhub_service.domain.json import JsonValue

# How large and how deep a value is, found without recursion: native validators overflow the stack on deep values.

_CONTAINERS: Final = (dict, list, tuple)


def measure(root: JsonValue, max_depth: int) -> tuple[int, int]:
    """Return (number of values, depth). Stops at the first level beyond `max_depth`; `[]` and `{}` have depth 1,
    scalars 0."""
    values = 1
    depth = 0
    level: list[Any] = [root] if isinstance(root, _CONTAINERS) else []
    while level:
        depth += 1
        if depth > max_depth:
            break
        deeper: list[Any] = []
        for container in level:
            values += len(container)
            for item in container.values() if isinstance(container, dict) else container:
                if isinstance(item, _CONTAINERS):
                    deeper.append(item)  # noqa: PERF401 - a comprehension is a call for every container
        level = deeper
    return values, depth


_LONG_BYTES: Final = 64 * 1024
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class NotJson(ValueError):
    """A value cannot be written as JSON: NaN, infinity, a lone surrogate, a key that is not a string, another type."""


def dumps(value: JsonValue) -> bytes:
    """Return canonical JSON. Raises NotJson, also for a value nested beyond 254 levels."""
    try:
        text = orjson.dumps(value, _plain, _OPTIONS)
    except orjson.JSONEncodeError:
        text = _dump_large_integers(value)
    if text.find(b"null") >= 0 and _has_non_finite(value):  # `in` would raise and drop a TypeError first
        raise NotJson("NaN and infinity are not JSON numbers")
    # orjson allocates up to sixteen times the length of a long text and keeps that with the bytes: 66 MiB for 4.
    return text if len(text) < _LONG_BYTES else bytes(memoryview(text))


def digest(value: JsonValue) -> str:
    """Return the sha256 (hex) over the canonical JSON. Raises NotJson."""
    return digest_of(dumps(value))


def digest_of(text: bytes) -> str:
    """Return the same for a value whose canonical JSON is known."""
    return hashlib.sha256(text).hexdigest()


def _dump_large_integers(value: JsonValue) -> bytes:
    """Write a value with integers beyond 64 bits, where orjson stops: they are passed to it already written."""
    try:
        return orjson.dumps(write_large_integers(value), _plain, _OPTIONS)
    except (orjson.JSONEncodeError, RecursionError):
        raise NotJson("the value is not JSON: only null, booleans, numbers, text, arrays and objects are") from None


def write_large_integers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: write_large_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [write_large_integers(item) for item in value]
    if type(value) is int and not -(2**63) <= value < 2**64:
        return orjson.Fragment(_decimal(value))
    return value


def _decimal(value: int) -> bytes:
    try:
        return str(value).encode()
    except ValueError:
        raise NotJson("an integer has more digits than can be written") from None


def _plain(value: Any) -> Any:
    """Convert what orjson does not know: read-only mappings and sequences; nothing else becomes JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(type(value).__name__)


def _has_non_finite(value: JsonValue) -> bool:
    """Return whether the value has NaN or infinity, which orjson writes as null; only a text with a null is
    searched."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, Mapping):
            pending.extend(item.values())
        elif isinstance(item, Sequence) and not isinstance(item, str):
            pending.extend(item)
    return False
