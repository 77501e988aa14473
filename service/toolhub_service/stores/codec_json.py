"""JSON values as text that comes back exactly: member order, integers of any size, doubles, every character."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema import canonical_json, strict_json

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_MAX_BYTES: Final = 2**31
_MAX_DEPTH: Final = 254


def encode_json(value: JsonValue) -> bytes:
    """JSON text, members in their order. Raises `schema.canonical_json.NotJson`, a ValueError."""
    try:
        text = orjson.dumps(value, _plain, _OPTIONS)
    except orjson.JSONEncodeError:
        canonical_json.dumps(value)  # judges what orjson has no words for
        return _dumps(value)
    if b"null" in text:
        _dumps(value)  # NaN would have become one
    return text


def decode_json(text: bytes) -> JsonValue:
    """Raises ValueError for what `encode_json` did not write."""
    try:
        return strict_json.loads(text, max_bytes=_MAX_BYTES, max_depth=_MAX_DEPTH)
    except ToolFailure as refused:
        raise ValueError(refused.error.message) from None


def _dumps(value: JsonValue) -> bytes:
    try:
        text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except ValueError as error:
        raise canonical_json.NotJson(str(error)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(type(value).__name__)
