from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.schema.excerpt import cut
from toolhub_service.schema.measure import measure


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


def test_a_large_value_is_cut_and_says_where() -> None:
    value: Any = {"small": [1], "rows": [{"id": number} for number in range(1000)], "late": {"x": [1, 2]}}
    excerpt = cut(value, 500)
    assert excerpt.value == {"small": [1], "rows": [{"id": number} for number in range(32)], "late": {"x": [1, 2]}}
    assert excerpt.cuts == {(), ("rows",)}
    assert excerpt.is_cut_at(("rows",))
    assert not excerpt.is_cut_at(("late", "x"))


def test_what_is_left_of_an_exhausted_value_is_empty_and_noted() -> None:
    excerpt = cut([[number] * 30 for number in range(30)], 50)
    assert measure(excerpt.value, 64)[0] < 100
    assert excerpt.is_cut_at((29,))
