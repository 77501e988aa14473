from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from toolhub_service.schema.canonical_json import NotJson, digest, dumps, measure
from toolhub_service.schema.excerpt import cut


def test_keys_are_sorted_and_nothing_is_wasted() -> None:
    assert dumps({"b": [1, 2.5, None], "a": {"é": "ü\n"}}) == '{"a":{"é":"ü\\n"},"b":[1,2.5,null]}'.encode()


def test_the_order_of_members_does_not_change_the_digest() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


def test_different_values_have_different_texts() -> None:
    texts = {
        dumps(value) for value in (1, 1.0, True, "1", [1], {"1": 1}, None, "null", 2**53, 2**53 + 1, 2**64, 2**64 + 1)
    }
    assert len(texts) == 12


def test_integers_beyond_64_bits_are_written_exactly_at_any_place() -> None:
    large = 10**40 + 1
    assert dumps({"b": [large], "a": -large, "c": 1e16}) == f'{{"a":-{large},"b":[{large}],"c":1e+16}}'.encode()
    assert dumps(1e16) == b"1e+16"


def test_read_only_mappings_and_sequences_are_json_too() -> None:
    assert dumps(MappingProxyType({"b": (1, 2), "a": MappingProxyType({})})) == b'{"a":{},"b":[1,2]}'
    assert (
        dumps({"n": 2**70, "m": MappingProxyType({"x": (2**70,)})}) == f'{{"m":{{"x":[{2**70}]}},"n":{2**70}}}'.encode()
    )


@dataclass
class _Thing:
    a: int = 1


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [None, float("inf")],
        {"a": {"b": float("-inf")}, "c": None},
        (float("nan"),),
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        {1, 2},
        b"bytes",
        datetime.now(UTC),
        _Thing(),
        object(),
        [2**70, {1: 2}],
        pytest.param(10**5000, id="5001 digits"),
    ],
)
def test_a_value_that_is_not_json_is_refused_instead_of_altered(value: Any) -> None:
    with pytest.raises(NotJson):
        dumps(value)


def test_a_null_beside_finite_numbers_is_no_fault() -> None:
    assert dumps({"a": None, "b": [1.5, "null"]}) == b'{"a":null,"b":[1.5,"null"]}'


def test_nesting_beyond_the_writer_is_refused() -> None:
    value: Any = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(NotJson):
        dumps(value)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc: run it on Linux")
def test_long_text_holds_no_more_memory_than_its_length() -> None:
    """orjson's bytes keep what it has reserved: 66 MiB for 4."""
    before_kib = mapped_kib()
    texts = [dumps({"text": "x" * (4 * 1024 * 1024)}) for _ in range(3)]
    assert mapped_kib() - before_kib < 32 * 1024
    assert {len(text) for text in texts} == {4 * 1024 * 1024 + len('{"text":""}')}


def mapped_kib() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")]
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("value", "values", "depth"),
    [
        (1, 1, 0),
        ("[[", 1, 0),
        ([], 1, 1),
        ({}, 1, 1),
        ([1, [2]], 4, 2),
        ({"a": {"b": []}, "c": 1}, 4, 3),
        (([],), 2, 2),
    ],
)
def test_values_and_levels_are_counted(value: Any, values: int, depth: int) -> None:
    assert measure(value, 64) == (values, depth)


def test_measuring_stops_beyond_the_bound() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert measure(value, 64)[1] == 65
    while value:
        value = value.pop()


def test_a_small_value_is_shown_whole() -> None:
    value: Any = {"a": [1, 2, {"b": 3}]}
    excerpt = cut(value, 10)
    assert excerpt.value is value
    assert not excerpt.cuts


def test_a_large_value_is_cut_with_its_place_named() -> None:
    value: Any = {"small": [1], "rows": [{"id": number} for number in range(1000)], "late": {"x": [1, 2]}}
    excerpt = cut(value, 500)
    assert excerpt.value == {"small": [1], "rows": [{"id": number} for number in range(32)], "late": {"x": [1, 2]}}
    assert excerpt.cuts == {(), ("rows",)}
    assert excerpt.is_cut_at(("rows",))
    assert not excerpt.is_cut_at(("late", "x"))


def test_the_rest_of_an_exhausted_value_is_empty_and_noted() -> None:
    excerpt = cut([[number] * 30 for number in range(30)], 50)
    assert measure(excerpt.value, 64)[0] < 100
    assert excerpt.is_cut_at((29,))
