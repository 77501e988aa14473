"""The arguments of open approvals as they were sent, for an approver who must read what a summary shows only by length.

The process that asked keeps them, in memory only and while the approval is open: no store holds what a caller may have
put into them. So a hub that did not ask, or was restarted since, has none until the same call comes again. Known secret
values are hidden when the arguments are shown, by what the hub knows by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.foreign_text import escape_hidden
from toolhub_service.guards.secrets import MARK, Redactor
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.strict_json import loads

# What a person sees of the arguments of a call: JSON of at most 16 KiB, as much of it as fits.
#
# An approver must see what will run, so only known secret values are hidden whole, with their length. Values that the
# redactor would hide for their name or shape are shown, except for runs of characters that look like a credential:
# these are replaced by their length and kind. A space, a quote, `$`, `|` or a plain word in such a value is never
# hidden, so that `API_KEY="$(curl …)"` stays readable. Omitted parts are marked in their place, with their length.

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
    return _distinct(
        (_visible_text(name, redactor.text(name), redactor), _visible(item, other, redactor))
        for (name, item), other in zip(value.items(), others, strict=True)
    )


def _distinct(members: Iterable[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
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


REVEALED_MAX_BYTES: Final = 64 * 1_024
"""Limit for the canonical JSON of the arguments."""
# Levels of canonical JSON: defaults may be nested deeper than what a caller may send.
_DEPTH_MAX: Final = 254
_KEPT_MAX_BYTES: Final = 16 * 1_024 * 1_024
# Bytes that an entry counts for besides its arguments.
_ENTRY_BYTES: Final = 1_024


class _Kept(NamedTuple):
    args_json: bytes
    """Arguments of one approval; empty when they are too large to keep."""
    expires_at_unix_ms: int

    @property
    def size_bytes(self) -> int:
        return len(self.args_json) + _ENTRY_BYTES


class OpenArguments:
    """The kept arguments, bounded: when there are too many, the principal with most of them loses its oldest, so that
    none can displace those of others."""

    def __init__(self, max_bytes: int = _KEPT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        # By principal and approval, in order of arrival.
        self._kept: dict[str, dict[str, _Kept]] = {}
        # Bytes by principal.
        self._size_bytes: dict[str, int] = {}

    def keep(self, approval: Approval, args_json: bytes) -> None:
        """Keep the arguments; `args_json` is the canonical JSON whose digest is in the binding."""
        principal, approval_id = approval.binding.principal, approval.approval_id
        mine = self._kept.setdefault(principal, {})
        if approval_id in mine:
            return
        fits = len(args_json) <= REVEALED_MAX_BYTES
        mine[approval_id] = kept = _Kept(args_json if fits else b"", approval.expires_at_unix_ms)
        self._size_bytes[principal] = self._size_bytes.get(principal, 0) + kept.size_bytes
        while sum(self._size_bytes.values()) > self._max_bytes:
            largest = max(self._size_bytes, key=self._size_bytes.__getitem__)
            self._remove(largest, next(iter(self._kept[largest])))

    def of(self, approval: Approval) -> bytes | None:
        """Return the arguments: None when they are not here, empty when they are too large to keep."""
        kept = self._kept.get(approval.binding.principal, {}).get(approval.approval_id)
        return None if kept is None else kept.args_json

    def drop(self, approval: Approval) -> None:
        self._remove(approval.binding.principal, approval.approval_id)

    def expire_due(self, now_unix_ms: int) -> None:
        """Drop the arguments of approvals whose time has passed."""
        over = [
            (principal, approval_id)
            for principal, mine in self._kept.items()
            for approval_id, kept in mine.items()
            if now_unix_ms >= kept.expires_at_unix_ms
        ]
        for principal, approval_id in over:
            self._remove(principal, approval_id)

    def _remove(self, principal: str, approval_id: str) -> None:
        mine = self._kept.get(principal, {})
        if (kept := mine.pop(approval_id, None)) is None:
            return
        self._size_bytes[principal] -= kept.size_bytes
        if not mine:
            del self._kept[principal], self._size_bytes[principal]


def reveal_arguments(args_json: bytes, redactor: Redactor) -> bytes:
    """Return JSON of all arguments: known secret values are replaced by their length, invisible characters are
    escaped."""
    return escape_hidden(dumps(_revealed(loads(args_json, max_depth=_DEPTH_MAX), redactor)).decode()).encode()


def _revealed(value: JsonValue, redactor: Redactor) -> JsonValue:
    if isinstance(value, str):
        return redactor.hide_known_values(value)
    if isinstance(value, Mapping):
        return _distinct((redactor.hide_known_values(name), _revealed(item, redactor)) for name, item in value.items())
    if isinstance(value, Sequence):
        return [_revealed(item, redactor) for item in value]
    if value is None or isinstance(value, bool):
        return value
    digits = dumps(value).decode()
    shown = redactor.hide_known_values(digits)
    return value if shown == digits else shown
