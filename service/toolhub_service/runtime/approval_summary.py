"""What a person sees of the arguments of a call: redacted JSON of at most 16 KiB, as much of it as fits.

What was left out is said where it was, so that nobody agrees to a call in the belief of having seen all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import dumps

SUMMARY_MAX_BYTES = 16 * 1_024
_REST = "…"


class _Room(NamedTuple):
    """How much of a value is shown: characters of a text, members of an object or a list, levels."""

    text: int
    members: int
    depth: int


_JUDGED = _Room(32_768, 100_000, 64)
"""What the redactor sees: far more of a text than is ever shown, so that no secret straddles the cut."""
_SHOWN = (_Room(8_192, 200, 32), _Room(2_048, 100, 16), _Room(512, 50, 8), _Room(128, 20, 6), _Room(64, 5, 4))
"""From generous to narrow; the first that fits is taken."""


def show_arguments(args: JsonValue, redactor: Redactor) -> str:
    """JSON text of at most `SUMMARY_MAX_BYTES` of UTF-8."""
    whole: JsonValue = redactor.value(_outline(args, _JUDGED))
    text = dumps(whole)
    for room in _SHOWN:
        if len(text) <= SUMMARY_MAX_BYTES:
            return text.decode()
        text = dumps(_outline(whole, room))
    if len(text) <= SUMMARY_MAX_BYTES:
        return text.decode()
    return dumps({_REST: f"{len(dumps(args))} bytes of arguments, in too many parts to be shown"}).decode()


def _outline(value: JsonValue, room: _Room) -> JsonValue:
    if isinstance(value, str):
        left_out = len(value) - room.text
        return value if left_out <= 0 else f"{value[: room.text]}… [{left_out} more characters left out]"
    if isinstance(value, Mapping):
        return _members(value, room)
    if isinstance(value, Sequence):
        return _items(value, room)
    return value


def _members(value: Mapping[str, JsonValue], room: _Room) -> JsonValue:
    if room.depth == 0:
        return f"[{len(value)} members left out]"
    names = list(value)[: room.members]
    shown = {_cut(name, room.text): _outline(value[name], room._replace(depth=room.depth - 1)) for name in names}
    if len(value) > len(shown):  # two names may have become one, too
        shown[_REST] = f"[{len(value) - len(shown)} more members left out]"
    return shown


def _items(value: Sequence[JsonValue], room: _Room) -> JsonValue:
    if room.depth == 0:
        return f"[{len(value)} items left out]"
    shown = [_outline(item, room._replace(depth=room.depth - 1)) for item in value[: room.members]]
    if len(value) > len(shown):
        shown.append(f"[{len(value) - len(shown)} more items left out]")
    return shown


def _cut(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[:length]}…"
