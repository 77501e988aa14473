"""JSON of others that strict parsers refuse, repaired as far as its meaning is certain, with a remark for each repair.

A result that was made must not be lost because a server cut a text inside a character, or wrote a number that JSON does
not have. What is asked of the hub itself (arguments, policies) is never repaired: `strict_json` refuses it.

    half of a surrogate pair, bytes that are not UTF-8      U+FFFD, the replacement character
    NaN, Infinity                                           null
    a number that no double, or no integer of 4,300         its text
    digits, can hold
    a name that appears twice in one object                 its last value
    control characters in a text, a byte order mark         accepted
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.schema.json_structure import lexical_depth
from toolhub_service.schema.strict_json import MAX_BYTES, MAX_DEPTH, MAX_INTEGER_DIGITS, loads

HALVES: Final = "halves of characters (lone surrogates) were replaced by U+FFFD"
NOT_UTF8: Final = "bytes that are not UTF-8 were replaced by U+FFFD"
NO_NUMBER: Final = "NaN and infinities were replaced by null"
OUT_OF_RANGE: Final = "numbers out of range were kept as texts"
DUPLICATES: Final = "of names that appear twice in an object the last counts"
CONTROLS: Final = "control characters in texts were kept"
BYTE_ORDER_MARK: Final = "a byte order mark was left out"

_REPAIRABLE: Final = frozenset({"lone_surrogate", "encoding", "number", "syntax", "duplicate_key"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LEVELS_MAX: Final = 254
_decode: Final = msgspec.json.Decoder().decode


class Repaired(NamedTuple):
    value: JsonValue
    remarks: tuple[str, ...] = ()
    """What was repaired, each a clause; empty: nothing."""


def loads_repaired(data: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Repaired:
    """Return the value. Raises ToolFailure as `strict_json.loads` does for what cannot be repaired."""
    try:
        return Repaired(loads(data, max_bytes=max_bytes, max_depth=max_depth))
    except ToolFailure as failure:
        if failure.error.details.get("reason") not in _REPAIRABLE:
            raise
        repaired = repair(data, max_depth=max_depth)
        if repaired is None:
            raise
        return repaired


def read_repaired(data: bytes, *, max_depth: int = _LEVELS_MAX) -> Repaired | None:
    """Return the value; None when it is too deep, or no JSON at all.

    Strict as msgspec is: exact for integers of any size, and of equal names the last counts without a remark. Several
    times as fast as `loads_repaired`.
    """
    try:
        return Repaired(_decode(data))
    except (ValueError, RecursionError):
        return repair(data, max_depth=max_depth)


def repair(data: bytes, *, max_depth: int = MAX_DEPTH) -> Repaired | None:
    """Return the value of a text that a strict parser has refused; None when it is too deep, or no JSON at all."""
    if lexical_depth(data, max_depth) > max_depth:
        return None
    reader = _Reader()
    text = reader.decode(data)
    value = reader.parse(text)
    if value is _UNREADABLE:
        return None
    mended = mend_value(value, reader.remark, 0) if _may_hold_halves(text) else value
    return Repaired(mended, tuple(reader.remarks))


def repair_value(value: JsonValue) -> Repaired:
    """Return a value without NaN, infinities and lone surrogates, which JSON cannot hold."""
    remarks: dict[str, None] = {}
    return Repaired(mend_value(value, remarks.setdefault, 0), tuple(remarks))


def repair_evidence(ref: str, remarks: tuple[str, ...]) -> tuple[Evidence, ...]:
    """Return the evidence of repairs, none without any. `ref`: what was repaired."""
    if not remarks:
        return ()
    said = "; ".join(remarks)
    return (Evidence(EvidenceType.TEXT, ref, f"the answer was no strict JSON: {said}", attributes={"repaired": said}),)


_UNREADABLE: Final = object()


class _Reader:
    """Reads one text leniently, and notes what that took."""

    def __init__(self) -> None:
        self.remarks: dict[str, None] = {}

    def remark(self, clause: str, _: None = None) -> None:
        self.remarks[clause] = None

    def decode(self, data: bytes) -> str:
        try:
            # Some encoders write each half of a character as three bytes of its own (CESU-8).
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.remark(NOT_UTF8)
            text = data.decode("utf-8", "replace")
        if text.startswith("\ufeff"):
            self.remark(BYTE_ORDER_MARK)
            text = text.removeprefix("\ufeff")
        return text

    def parse(self, text: str) -> Any:
        for is_strict in (True, False):
            try:
                value = json.loads(
                    text,
                    strict=is_strict,
                    object_pairs_hook=self._members,
                    parse_int=self._integer,
                    parse_float=self._number,
                    parse_constant=self._constant,
                )
            except (ValueError, RecursionError):
                continue  # once more with control characters, then it is no JSON
            if not is_strict:
                self.remark(CONTROLS)
            return value
        return _UNREADABLE

    def _members(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            self.remark(DUPLICATES)
        return members

    def _integer(self, text: str) -> int | str:
        if len(text.lstrip("-")) <= MAX_INTEGER_DIGITS:
            return int(text)
        self.remark(OUT_OF_RANGE)
        return text

    def _number(self, text: str) -> float | str:
        number = float(text)
        if math.isfinite(number):
            return number
        self.remark(OUT_OF_RANGE)
        return text

    def _constant(self, _: str) -> None:
        self.remark(NO_NUMBER)


def _may_hold_halves(text: str) -> bool:
    return "\\u" in text or _SURROGATE.search(text) is not None


def mend_value(value: Any, remark: Callable[[str, None], object], levels: int) -> Any:
    if isinstance(value, str):
        return _whole(value, remark)
    if isinstance(value, float) and not math.isfinite(value):
        remark(NO_NUMBER, None)
        return None
    if levels >= _LEVELS_MAX:
        return value
    if isinstance(value, Mapping):
        return {
            _whole(name, remark) if isinstance(name, str) else name: mend_value(item, remark, levels + 1)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mend_value(item, remark, levels + 1) for item in value]
    return value


def _whole(text: str, remark: Callable[[str, None], object]) -> str:
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    # By UTF-16, in which two halves that follow each other are one character.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if _SURROGATE.search(joined) is None:
        return joined
    remark(HALVES, None)
    return _SURROGATE.sub("\ufffd", joined)
