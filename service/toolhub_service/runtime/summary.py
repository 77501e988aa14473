"""The audit's short form of arguments and of results: redacted, long strings and lists cut, at most 1 KiB."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import dumps

SUMMARY_MAX_BYTES = 1_024
_JUDGED_MAX = 2_048
"""Characters of a string that the redactor sees: far more than are shown, so that no secret straddles the cut."""
_SHOWN_MAX = 200
_MEMBERS_MAX = 20
_DEPTH_MAX = 6
_TEXT_SHOWN_MAX = 64
"""Characters of a text in the outline of a result: a longer one is told by its length alone, which shows no half of a
secret."""


class ResultSummary(NamedTuple):
    """What the audit log keeps of a result."""

    digest: str = ""
    """sha256 (hex) over its canonical JSON."""
    text: str = ""
    """The result where it is short, else its outline."""


NO_RESULT = ResultSummary()


def summarise(args: JsonValue, redactor: Redactor) -> str:
    """Canonical JSON of the outline of `args`: enough to see what was asked, never a secret."""
    if len(dumps(args)) <= _SHOWN_MAX:
        return redactor.json_text(args)
    return _outlined(args, redactor)


def summarise_for_log(args: JsonValue, text: bytes, redactor: Redactor) -> str:
    """The same for an event of the audit log, which hides secrets itself, of many events at once and in a thread of its
    own: so arguments that are short leave as they are. `text` is their canonical JSON."""
    return text.decode() if len(text) <= _SHOWN_MAX else _outlined(args, redactor)


def summarise_large(args: JsonValue, redactor: Redactor) -> str:
    """The same of arguments that are not written out to learn how long they are."""
    return _outlined(args, redactor)


def summarise_result(value: JsonValue, text: bytes) -> ResultSummary:
    """Of a result for an event of the audit log, which hides secrets itself; `text` is its canonical JSON."""
    shown = text if len(text) <= _SHOWN_MAX else dumps(_result_outline(value))
    return ResultSummary(hashlib.sha256(text).hexdigest(), shown.decode())


def _result_outline(value: JsonValue) -> JsonValue:
    if not isinstance(value, Mapping):
        return _size(value)
    return {str(_size(name)): _size(value[name]) for name in islice(value, _MEMBERS_MAX)}


def _size(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= _TEXT_SHOWN_MAX else f"({len(value)} characters)"
    if isinstance(value, Mapping):
        return f"({len(value)} members)"
    return f"({len(value)} items)" if isinstance(value, list | tuple) else value


def _outlined(args: JsonValue, redactor: Redactor) -> str:
    """Hidden before it is cut: half a secret would no longer be recognised."""
    outline = _outline(redactor.value(_outline(args, _DEPTH_MAX, _JUDGED_MAX)), _DEPTH_MAX + 1, _SHOWN_MAX)
    return dumps(outline)[:SUMMARY_MAX_BYTES].decode(errors="ignore")


def _outline(value: JsonValue, depth: int, text_max: int) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= text_max else f"{value[:text_max]}…"
    if isinstance(value, Mapping):
        return _members(value, depth, text_max)
    if isinstance(value, list | tuple):
        return (
            f"({len(value)} items)" if depth == 0 else [_outline(v, depth - 1, text_max) for v in value[:_MEMBERS_MAX]]
        )
    return value


def _members(value: Mapping[str, JsonValue], depth: int, text_max: int) -> JsonValue:
    if depth == 0:
        return f"({len(value)} members)"
    return {key[:text_max]: _outline(value[key], depth - 1, text_max) for key in list(value)[:_MEMBERS_MAX]}
