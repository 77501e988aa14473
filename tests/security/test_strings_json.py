"""The big list of naughty strings, as values and as keys, through reading, writing and validating."""

from __future__ import annotations

import json

from tests.corpora import load_json
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.strict_json import loads


def test_naughty_strings_come_back_as_they_went() -> None:
    strings: list[str] = load_json("strings/blns.json.gz")
    assert len(strings) > 500
    for text in strings:
        values: list[JsonValue] = [text, {text: text}, [text, {"a": {text: [text]}}]]
        for value in values:
            assert loads(dumps(value)) == value
            assert loads(json.dumps(value).encode()) == value
            assert loads(json.dumps(value, ensure_ascii=False, indent=2).encode()) == value


def test_naughty_strings_break_neither_validation_nor_its_messages() -> None:
    schema = compile_schema(
        {"properties": {"a": {"enum": ["one", "two"]}}, "additionalProperties": False, "required": ["a"]}
    )
    for text in load_json("strings/blns.json.gz"):
        assert [violation.path for violation in schema.validate({"a": text})] == ["/a"]
        if text != "a":
            violations = schema.validate({"a": "one", text: 1})
            assert [violation.keyword for violation in violations] == ["additionalProperties"]
            assert all(len(violation.message) < 300 for violation in violations)
