"""What a person sees of the arguments of a call: JSON of at most 16 KiB, as much of it as fits.

An approver must see what will run, so only known secret values are hidden whole, with their length. Values that the
redactor would hide for their name or shape are shown, except for runs of characters that look like a credential:
these are replaced by their length and kind. A space, a quote, `$`, `|` or a plain word in such a value is never
hidden, so that `API_KEY="$(curl …)"` stays readable. Omitted parts are marked in their place, with their length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.secrets import MARK, Redactor
from toolhub_service.schema.canonical_json import dumps

SUMMARY_MAX_BYTES = 16 * 1_024
_REST = "…"

_RUN_MIN: Final = 6
# Characters of credentials that have no meaning in a shell, a template or a query.
_RUN: Final = re.compile(rf"[A-Za-z0-9_+~./-]{{{_RUN_MIN},}}={{0,2}}")
_LETTERS_MIN: Final = 20
_BASE64_MIN: Final = 32
_DIGIT: Final = re.compile("[0-9]")
_LETTER: Final = re.compile("[A-Za-z]")
_PLAIN: Final = re.compile("[A-Za-z0-9]")


class _ShownSize(NamedTuple):
    """How much of a value is shown: characters of a text, members of an object or a list, levels."""

    text: int
    members: int
    depth: int


# Limits of what the redactor sees: far more of a text than is ever shown, so that no cut splits a secret.
_CHECKED = _ShownSize(32_768, 100_000, 64)
# From generous to narrow; the first that fits is used.
_SHOWN = (
    _ShownSize(8_192, 200, 32),
    _ShownSize(2_048, 100, 16),
    _ShownSize(512, 50, 8),
    _ShownSize(128, 20, 6),
    _ShownSize(64, 5, 4),
)


def show_arguments(args: JsonValue, redactor: Redactor) -> str:
    """Return JSON text of at most `SUMMARY_MAX_BYTES` of UTF-8."""
    checked = _outline(args, _CHECKED)
    whole = _visible(checked, redactor.value(checked), redactor)
    for shown in chain((whole,), (_outline(whole, room) for room in _SHOWN)):
        text = dumps(shown)
        if len(text) <= SUMMARY_MAX_BYTES:
            return text.decode()
    return dumps({_REST: f"{len(dumps(args))} bytes of arguments, in too many parts to be shown"}).decode()


def _visible(value: JsonValue, redacted: JsonValue, redactor: Redactor) -> JsonValue:
    """Return `value` as an approver sees it; `redacted` is what everybody else sees, `***` for a value that is wholly
    hidden."""
    if isinstance(value, str):
        return _visible_text(value, redacted if isinstance(redacted, str) else MARK, redactor)
    if isinstance(value, Mapping):
        return _visible_members(value, redacted, redactor)
    if isinstance(value, Sequence):
        others = redacted if isinstance(redacted, list) and len(redacted) == len(value) else [MARK] * len(value)
        return [_visible(item, other, redactor) for item, other in zip(value, others, strict=True)]
    if redacted == MARK and value is not None:
        return f"[a number of {len(str(value))} characters]"
    return value


def _visible_members(value: Mapping[str, JsonValue], redacted: JsonValue, redactor: Redactor) -> JsonValue:
    """Where redaction made names equal, it is unknown which value was hidden: then every value is treated as hidden."""
    others: list[JsonValue] = [MARK] * len(value)
    if isinstance(redacted, Mapping) and len(redacted) == len(value):
        others = list(redacted.values())
    return keep_distinct_names(
        (_visible_text(name, redactor.text(name), redactor), _visible(item, other, redactor))
        for (name, item), other in zip(value.items(), others, strict=True)
    )


def keep_distinct_names(members: Iterable[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """Keep two names apart that read the same once their secrets are hidden."""
    shown: dict[str, JsonValue] = {}
    for name, value in members:
        marks = ""
        while name + marks in shown:
            marks += "'"
        shown[name + marks] = value
    return shown


def _visible_text(text: str, redacted: str, redactor: Redactor) -> str:
    if text == redacted:
        return text
    return _RUN.sub(
        lambda found: _kinds(found[0]) if found[0] not in redacted and _is_opaque(found[0]) else found[0],
        redactor.hide_known_values(text),
    )


def _is_opaque(run: str) -> bool:
    """Return whether it looks like a credential or a part of one, and not like a word, host, path or command."""
    has_digit, has_both_cases = _DIGIT.search(run) is not None, run != run.lower() and run != run.upper()
    pieces = re.split(r"[./]", run)
    if len(pieces) == 1:
        return has_digit or (has_both_cases and len(run) >= _LETTERS_MIN)
    if all(len(piece) >= _RUN_MIN and _DIGIT.search(piece) for piece in pieces):
        return True
    return "." not in run and run[0] != "/" and has_digit and has_both_cases and len(run) >= _BASE64_MIN


def _kinds(run: str) -> str:
    """Describe the run, as in `[40 characters: letters, digits and _]`."""
    marks = "".join(sorted(set(_PLAIN.sub("", run))))
    kinds = ["letters"] * (_LETTER.search(run) is not None) + ["digits"] * (_DIGIT.search(run) is not None)
    return f"[{len(run)} characters: {', '.join(kinds)}{f' and {marks}' if marks else ''}]"


def _outline(value: JsonValue, room: _ShownSize) -> JsonValue:
    if isinstance(value, str):
        left_out = len(value) - room.text
        return value if left_out <= 0 else f"{value[: room.text]}… [{left_out} more characters left out]"
    if isinstance(value, Mapping):
        return _members(value, room)
    if isinstance(value, Sequence):
        return _items(value, room)
    return value


def _members(value: Mapping[str, JsonValue], room: _ShownSize) -> JsonValue:
    if room.depth == 0:
        return f"[{len(value)} members left out]"
    names = list(value)[: room.members]
    shown = {_cut(name, room.text): _outline(value[name], room._replace(depth=room.depth - 1)) for name in names}
    if len(value) > len(shown):  # two names may have become equal, too
        shown[_REST] = f"[{len(value) - len(shown)} more members left out]"
    return shown


def _items(value: Sequence[JsonValue], room: _ShownSize) -> JsonValue:
    if room.depth == 0:
        return f"[{len(value)} items left out]"
    shown = [_outline(item, room._replace(depth=room.depth - 1)) for item in value[: room.members]]
    if len(value) > len(shown):
        shown.append(f"[{len(value) - len(shown)} more items left out]")
    return shown


def _cut(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[:length]}… [{len(name) - length} more characters left out]"
