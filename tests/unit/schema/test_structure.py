"""Whether a value holds many values."""

from __future__ import annotations

import pytest

from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.structure import has_many_values


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
