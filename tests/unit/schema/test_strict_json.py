from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.json_structure import has_many_values
from toolhub_service.schema.strict_json import MAX_BYTES, loads, struct_numbers

_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


def _refusal(data: bytes, **bounds: int) -> tuple[str, str]:
    with pytest.raises(ToolFailure) as caught:
        loads(data, **bounds)
    error = caught.value.error
    assert error.kind is ErrorKind.INVALID_INPUT
    return str(error.details["reason"]), error.message


@_UNHURRIED
@given(_VALUES)
def test_every_value_written_by_the_standard_library_is_read_as_it_was(value: Any) -> None:
    assert loads(json.dumps(value).encode()) == value
    assert loads(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@_UNHURRIED
@given(_VALUES)
def test_canonically_written_values_are_read_back_with_the_same_types(value: Any) -> None:
    read = loads(dumps(value))
    assert read == value
    assert repr(loads(dumps(read))) == repr(read)


@pytest.mark.parametrize("digits", [16, 19, 20, 21, 40, 309, 400, 4300])
@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_keep_every_digit(digits: int, sign: str) -> None:
    number = int(sign + "9" * digits)
    for text in (f"{number}", f'{{"a":[{number}, "x:y"]}}'):
        read = loads(text.encode())
        assert read in (number, {"a": [number, "x:y"]})
        assert loads(dumps(read)) == read


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**53 + 1])
def test_integers_around_machine_words_are_exact(number: int) -> None:
    read = loads(str(number).encode())
    assert read == number
    assert type(read) is int


def test_an_integer_with_too_many_digits_is_refused() -> None:
    reason, message = _refusal(b"1" * 4301)
    assert reason == "number"
    assert "4,300 digits" in message


@pytest.mark.parametrize("text", ["1e400", "-1e400", "[1, 1e999]"])
def test_a_number_beyond_doubles_is_refused(text: str) -> None:
    assert _refusal(text.encode())[0] == "number"


@pytest.mark.promise("contract.strict-json")
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":1,"a":1}',
        '{"x":{"a":1,"b":2,"a":3}}',
        '[{"url":"http://h:1/:","url":":"}]',
        '{"a":1,"\\u0061":2}',
        '{"a":{"b:c":[1]},"a":"\\":"}',
        '{"":1,"":2}',
        '{"a:":1,"a:":2}',
        '{"a":"\\u003a","a":1}',
    ],
)
def test_a_duplicate_key_is_named_and_refused(text: str) -> None:
    reason, message = _refusal(text.encode())
    assert reason == "duplicate_key"
    assert "twice" in message


@_UNHURRIED
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a:b", ":", '"', "\\", 'é:"']), _SCALARS), max_size=6))
def test_duplicates_are_found_exactly_when_there_are_some(pairs: list[tuple[str, Any]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs) + "}"
    if len({name for name, _ in pairs}) == len(pairs):
        assert loads(text.encode()) == dict(pairs)
    else:
        assert _refusal(text.encode())[0] == "duplicate_key"


@pytest.mark.parametrize(
    ("data", "reason", "advice"),
    [
        (b"", "syntax", "empty"),
        (b"  \n", "syntax", "empty"),
        (b"\xef\xbb\xbf{}", "syntax", "byte order mark"),
        (b'{"a":NaN}', "syntax", "NaN"),
        (b"[-Infinity]", "syntax", "Infinity"),
        (b"{'a':1}", "syntax", "double quotes"),
        (b'{"a":True}', "syntax", "true, false and null"),
        (b"[1,]", "syntax", "trailing comma"),
        (b'{"a":1', "syntax", "ends too early"),
        (b'"a\nb"', "syntax", "escaped"),
        (b'"\\ud800"', "syntax", "surrogate"),
        (b'"\xff"', "encoding", "UTF-8"),
        (b'"\xed\xa0\x80"', "encoding", "UTF-8"),
        (b'[1e999, "\\udc00"]', "number", "double"),
        (b"[" + b"9" * 320 + b', "\\udc00"]', "lone_surrogate", "surrogate"),
    ],
)
def test_a_fault_is_reported_with_its_repair(data: bytes, reason: str, advice: str) -> None:
    fault, message = _refusal(data)
    assert fault == reason
    assert advice in message


def test_a_syntax_fault_is_placed_by_line_and_column() -> None:
    with pytest.raises(ToolFailure) as caught:
        loads('{"é": 1,\n "b": x}'.encode())
    assert caught.value.error.details == {"reason": "syntax", "line": 2, "column": 7}


def test_depth_is_counted_in_containers_and_bounded() -> None:
    assert loads(b"[" * 64 + b"]" * 64) is not None
    assert loads(b"[" * 63 + b'{"a":1}' + b"]" * 63) is not None
    for deep in (b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65, b"[" * 64 + b"[1]" + b"]" * 64):
        assert _refusal(deep)[0] == "too_deep"
    assert _refusal(b"[[]]", max_depth=1)[0] == "too_deep"


@pytest.mark.parametrize("opener", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("levels", [1000, 1030, 100_000])
def test_hostile_depth_is_refused_without_recursion(opener: bytes, levels: int) -> None:
    assert _refusal(opener * levels)[0] in ("too_deep", "syntax")
    assert _refusal(b"[1e999," + opener * levels)[0] == "too_deep"


def test_depth_hidden_behind_a_duplicate_key_is_refused() -> None:
    hidden = b'{"a":' + b"[" * 900 + b"]" * 900 + b',"a":1}'
    assert _refusal(hidden)[0] in ("too_deep", "duplicate_key")


def test_brackets_in_strings_are_no_depth() -> None:
    assert loads(b'{"a":"' + b"[" * 500 + b'","b":12345678901234567890123}') == {
        "a": "[" * 500,
        "b": 12345678901234567890123,
    }


def test_size_is_bounded_before_anything_is_parsed() -> None:
    assert _refusal(b"[" * (MAX_BYTES + 1))[0] == "too_large"
    assert _refusal(b"[1,2]", max_bytes=4)[0] == "too_large"
    assert loads(b"[1,2]", max_bytes=5) == [1, 2]


def test_struct_numbers_become_integers_where_they_are_integral() -> None:
    read = struct_numbers({"n": 3.0, "x": 1.5, "l": [2.0, None, True, "4.0"], "z": -0.0})
    assert read == {"n": 3, "x": 1.5, "l": [2, None, True, "4.0"], "z": 0}
    assert [type(value) for value in (read["n"], read["l"][0], read["z"])] == [int, int, int]  # type: ignore[index]


@pytest.mark.parametrize("number", [2.0**53, -(2.0**53), 1e300, float("nan"), float("inf")])
def test_a_struct_number_that_may_have_lost_digits_is_refused_with_the_way_out(number: float) -> None:
    with pytest.raises(ToolFailure) as caught:
        struct_numbers({"a": [number]})
    assert caught.value.error.kind is ErrorKind.INVALID_INPUT
    assert "args_json" in caught.value.error.message


def test_the_largest_exact_struct_number_is_kept() -> None:
    assert struct_numbers(2.0**53 - 1) == 2**53 - 1


def test_a_struct_nested_too_deeply_is_refused() -> None:
    value: Any = 1.0
    for _ in range(65):
        value = [value]
    with pytest.raises(ToolFailure, match="INVALID_INPUT"):
        struct_numbers(value)
    assert struct_numbers(value[0]) is not None


@pytest.mark.parametrize(
    ("value", "most"),
    [
        ("a long text", 0),
        (None, 0),
        ([], 0),
        ({}, 0),
        ([1, 2], 2),
        ((1, 2), 2),
        ({"a": [1, {"b": 2}]}, 4),
        ([[[[[]]]]], 4),
    ],
)
def test_each_item_and_member_counts(value: JsonValue, most: int) -> None:
    assert not has_many_values(value, most)
    assert most == 0 or has_many_values(value, most - 1)
