"""Schemas in a few words."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.adapters.source_kind import summary_of


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string/null"),
        ({"type": "integer", "minimum": 1, "maximum": 9, "default": 3}, "integer 1 … 9, else 3"),
        ({"type": "number", "minimum": 0.5}, "number 0.5 …"),
        ({"type": "integer", "maximum": 9}, "integer … 9"),
        ({"enum": ["a", "b"]}, "a | b"),
        ({"enum": list(range(9))}, "0 | 1 | 2 | 3 | 4 | 5 or 3 more"),
        ({"const": True}, "True"),
        ({"type": "string", "format": "hub-artifact"}, "artifact id"),
        ({"type": "string", "default": "x" * 100}, f"string, else {'x' * 59}…"),
        ({}, "anything"),
        (True, "anything"),
    ],
)
def test_an_argument_is_reported_in_a_few_words(schema: Any, expected: str) -> None:
    assert summary_of({"properties": {"a": schema}}) == {"a": expected}


def test_required_arguments_are_reported_and_an_invalid_schema_has_none() -> None:
    assert summary_of({"properties": {"a": {"type": "string"}}, "required": ["a"]}) == {"a": "string, required"}
    assert summary_of({"properties": 3, "required": "a"}) == {}
    assert summary_of({}) == {}
