"""Strict JSON (RFC 8259): text that two parsers could read differently is refused, and no digit is lost.

Refused: NaN and infinities, duplicate keys, a byte order mark, invalid UTF-8, lone surrogates, doubles out of range,
integers of more than 4,300 digits, more bytes or levels than allowed. Integers are exact at any size.

Fast path: orjson parses, one level-by-level traversal counts object members and depth. A duplicate key leaves fewer
members than the text has colons outside strings, so equal counts prove that there is none; colons inside strings are
excluded by a linear pattern. Only if the counts differ, or when an integer may have exceeded 64 bits (orjson reads it
as a double), the standard parser reads the text again, exactly, and names what is wrong. JSONTestSuite
(github.com/nst/JSONTestSuite) is the test.
"""

from __future__ import annotations

import json
import math
from string import digits
from typing import Any, Final, NoReturn, cast

import orjson

from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.json_structure import bound_structure, lexical_depth, outside_strings

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_INTEGER_DIGITS: Final = 4300
_DOUBLE_MAY_HIDE_INTEGER: Final = float(2**63)
_EXACT_IN_DOUBLE: Final = 2**53
_SUSPECT_NUMBERS: Final = -1
# Length of a prefix in which most texts that are too deep show it.
_BEGINNING_BYTES: Final = 4 * 1024


def loads(data: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> JsonValue:
    """The JSON value that `data` is. Depth counts arrays and objects: `[]` has depth 1.

    Raises:
        ToolFailure: INVALID_INPUT with `reason`, and `line` and `column` where they are known.
    """
    if len(data) > max_bytes:
        _refuse("too_large", f"The JSON has {len(data):,} bytes, the limit is {max_bytes:,}. Send less.")
    try:
        value: JsonValue = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return _read_again(data, error, max_depth)
    members = _survey(value, max_depth)
    if members != _SUSPECT_NUMBERS:
        colons = data.count(b":")
        if members == colons or members == sum(outside.count(b":") for outside in outside_strings(data)):
            return value
    return _read_exactly(data, max_depth)


def loads_bounded(data: bytes) -> JsonValue:
    """As `loads`, for a long untrusted text: its structure is counted before it is parsed."""
    if lexical_depth(data[:_BEGINNING_BYTES], MAX_DEPTH) > MAX_DEPTH:
        _refuse_depth(MAX_DEPTH)
    bound_structure(data)
    return loads(data)


def struct_numbers(value: JsonValue, levels_left: int = MAX_DEPTH) -> JsonValue:
    """Return a value from a google.protobuf.Struct with integral doubles converted to integers.

    Raises:
        ToolFailure: INVALID_INPUT for |n| >= 2^53 (a double no longer distinguishes neighbours), NaN and infinity, and
            for a value nested deeper than 64 levels.
    """
    if isinstance(value, float):
        return _from_double(value)
    if isinstance(value, dict | list) and levels_left == 0:
        _refuse_depth(MAX_DEPTH)
    if isinstance(value, dict):
        return {key: struct_numbers(item, levels_left - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [struct_numbers(item, levels_left - 1) for item in value]
    return value


def _from_double(number: float) -> int | float:
    if not -_EXACT_IN_DOUBLE < number < _EXACT_IN_DOUBLE:
        _refuse(
            "struct_number",
            "A number in args_struct is not finite or not below 2^53 in size, where a double is no longer exact. "
            "Send the arguments as args_json, which keeps every digit.",
        )
    return int(number) if number.is_integer() else number


def _survey(root: Any, max_depth: int) -> int:
    """Return the number of object members, or _SUSPECT_NUMBERS; refuses values that are too deep. Not recursive."""
    members = 0
    depth = 0
    suspect = False
    level: list[Any] = [root]
    while level:
        deeper: list[Any] = []
        depth += 1
        for container in level:
            kind = type(container)
            if kind is dict:
                members += len(container)
                deeper.extend(container.values())
            elif kind is list:
                deeper.extend(container)
            elif kind is float and not -_DOUBLE_MAY_HIDE_INTEGER < container < _DOUBLE_MAY_HIDE_INTEGER:
                suspect = True
        if depth > max_depth and any(type(item) is dict or type(item) is list for item in level):
            _refuse_depth(max_depth)
        level = deeper
    return _SUSPECT_NUMBERS if suspect else members


def _read_again(data: bytes, error: json.JSONDecodeError, max_depth: int) -> JsonValue:
    """Read a text again that orjson refused: for a number beyond its range, which may be an exact integer, or a real
    error."""
    text = _decode(data)
    if not text[error.pos :].startswith(("-", *digits)) and lexical_depth(data, max_depth) <= max_depth:
        _refuse_syntax(text, error)
    return _read_exactly(data, max_depth)


def _read_exactly(data: bytes, max_depth: int) -> JsonValue:
    """Read with the standard parser and all its hooks: names duplicates, keeps integers, refuses infinite doubles."""
    if lexical_depth(data, max_depth) > max_depth:
        _refuse_depth(max_depth)
    text = _decode(data)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
            parse_int=_exact_integer,
            parse_float=_finite_double,
            parse_constant=_no_constant,
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        _refuse_syntax(text, error)
    except UnicodeEncodeError:
        _refuse("lone_surrogate", "A \\u escape is half of a surrogate pair. Send the whole character.")
    return cast(JsonValue, value)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse("duplicate_key", f"The name {quote_name(name)} appears twice in one object. Send it once.")
            seen.add(name)
    return members


def _exact_integer(text: str) -> int:
    if len(text.lstrip("-")) > MAX_INTEGER_DIGITS:
        _refuse("number", f"An integer has more than {MAX_INTEGER_DIGITS:,} digits. Send it as a string.")
    return int(text)


def _finite_double(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        _refuse("number", "A number is larger than a double can be (about 1.8e308). Send it as a string.")
    return number


def _no_constant(name: str) -> NoReturn:
    _refuse("number", f"{name} is not JSON. Use null, or leave the property out.")


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        _refuse("encoding", f"The bytes are not UTF-8 (at byte {error.start:,}). Encode the JSON as UTF-8.")


def _refuse_syntax(text: str, error: json.JSONDecodeError) -> NoReturn:
    where = f"line {error.lineno:,}, column {error.colno:,}"
    advice = _advice(text, text[error.pos : error.pos + 9])
    _refuse("syntax", f"Not JSON at {where}: {advice}", line=error.lineno, column=error.colno)


def _advice(text: str, rest: str) -> str:
    """Return what was probably meant at the place where reading stopped."""
    if not text.strip(" \t\r\n"):
        return "it is empty. Send a value, such as {}."
    if text.startswith("\ufeff"):
        return "it begins with a byte order mark. Send it without one."
    if rest.lower().lstrip("-").startswith(("nan", "inf")):
        return "NaN and Infinity are not JSON. Use null, or leave the property out."
    if rest.startswith(("'", "/", "#", "True", "False", "None", "undefined")):
        return "JSON has double quotes, true, false and null, and no comments."
    if rest.startswith("\\u"):
        return "a \\u escape is broken or is half of a surrogate pair. Send the whole character."
    if rest and rest[0] < " ":
        return "control characters in strings must be escaped, such as \\n."
    if not rest:
        return "it ends too early. Close every string, array and object."
    return "check commas, colons, quotes and brackets there (RFC 8259: no trailing comma, one value only)."


def _refuse_depth(max_depth: int) -> NoReturn:
    _refuse("too_deep", f"The JSON is nested deeper than {max_depth} levels. Send a flatter value.")


def quote_name(name: str) -> str:
    return json.dumps(name if len(name) <= 64 else name[:63] + "…", ensure_ascii=True)


def _refuse(reason: str, message: str, **details: int) -> NoReturn:
    raise ToolFailure(ToolError(ErrorKind.INVALID_INPUT, message, details={"reason": reason, **details})) from None
