"""Messages of servers that strict parsers refuse, repaired with a remark that reaches the evidence of the call."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.repaired_json import Repaired, repair

# What was repaired travels in the result itself, on every road from the transport to the call, under a name that no
# server can know.
_REMARKS: Final = f"toolhub/repairs-{secrets.token_hex(8)}"
_META: Final = "_meta"
_LARGE_BYTES: Final = 64 * 1024
_LEVELS_MAX: Final = 254
_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
# Numbers that the SDK's parser may refuse, though they are JSON.
_LONG_NUMBER: Final = re.compile(rb"\d{300}")


def is_strict(data: bytes) -> bool:
    """Return whether every parser accepts the text; a tenth of the time that parsing takes."""
    try:
        _skip(data)
        data.decode()
    except (ValueError, RecursionError):
        return False
    return _LONG_NUMBER.search(data) is None


def repair_message(data: bytes) -> dict[str, Any] | None:
    """Return a message that a parser has refused; None when it is not JSON, or no JSON object."""
    repaired = repair(data, max_depth=_LEVELS_MAX)
    return None if repaired is None else _add_remarks(repaired)


async def repair_bytes(data: bytes) -> bytes:
    """Return the text of a message as strict ASCII JSON; the text itself when nothing is to repair, or can be."""
    if is_strict(data):
        return data
    mend = _repair_text
    text = mend(data) if len(data) <= _LARGE_BYTES else await in_thread(mend, data)
    return text or data


def _repair_text(data: bytes) -> bytes:
    message = repair_message(data)
    return b"" if message is None else json.dumps(message, separators=(",", ":")).encode()


def _add_remarks(repaired: Repaired) -> dict[str, Any] | None:
    message = repaired.value
    if not isinstance(message, dict):
        return None
    result = message.get("result")
    if isinstance(result, dict) and repaired.remarks:
        meta = result.get(_META)
        own = meta if isinstance(meta, dict) else {}
        message = {**message, "result": {**result, _META: {**own, _REMARKS: list(repaired.remarks)}}}
    return message


def take_remarks(result: JsonObject) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a result without the hub's remarks, and these."""
    meta = result.get(_META)
    if not isinstance(meta, Mapping) or _REMARKS not in meta:
        return result, ()
    remarks = meta[_REMARKS]
    rest = {name: value for name, value in meta.items() if name != _REMARKS}
    plain = {name: value for name, value in result.items() if name != _META}
    said = tuple(map(str, remarks)) if isinstance(remarks, list) else ()
    return ({**plain, _META: rest} if rest else plain), said
