"""Arguments as people type them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from toolhub_service.cli.terminal.arguments import read_arguments

SCHEMA = {
    "properties": {
        "path": {"type": "string"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": "integer"},
        "deep": {"type": "boolean"},
        "items": {"type": "array"},
    }
}


def read(*words: str) -> Any:
    return json.loads(read_arguments(words, SCHEMA))


def test_text_is_taken_as_it_stands_and_everything_else_as_json() -> None:
    assert read("path=1", "count=1", "deep=true", 'items=["a", 2]') == {
        "path": "1",
        "count": 1,
        "deep": True,
        "items": ["a", 2],
    }


def test_optional_text_is_text() -> None:
    assert read("note=null") == {"note": "null"}


def test_only_the_first_equals_sign_parts() -> None:
    assert read("path=a=b=c") == {"path": "a=b=c"}


def test_a_value_that_is_no_json_is_left_to_the_hub_to_refuse() -> None:
    assert read("count=many", "unknown=word") == {"count": "many", "unknown": "word"}


def test_an_object_is_passed_on_byte_for_byte() -> None:
    text = '{"a": 1, "a": 2, bad'
    assert read_arguments([text], SCHEMA) == text.encode()


def test_an_object_with_an_equals_sign_is_no_pair() -> None:
    assert read('{"path": "a=b"}') == {"path": "a=b"}


def test_a_file_gives_the_whole_object_or_one_text(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text('{"path": "x"}')
    (tmp_path / "text").write_text("long\ntext")
    assert read(f"@{tmp_path}/args.json") == {"path": "x"}
    assert read(f"path=@{tmp_path}/text") == {"path": "long\ntext"}


def test_two_at_signs_are_one_at_the_beginning() -> None:
    assert read("path=@@everyone") == {"path": "@everyone"}


def test_a_hyphen_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"path": "in"}')))
    assert read("-") == {"path": "in"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["word"], "is not an argument"),
        (["path=a", "word"], "is not key=value"),
        (["path=a", "path=b"], "given twice"),
        (["@/nowhere/at/all"], "No such file"),
        (["path=@/nowhere/at/all"], "No such file"),
    ],
)
def test_unreadable_arguments_are_wrong_usage(words: list[str], expected: str) -> None:
    with pytest.raises(click.UsageError, match=expected):
        read_arguments(words, SCHEMA)


def test_a_binary_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(click.UsageError, match="not UTF-8"):
        read_arguments([f"path=@{tmp_path}/binary"], SCHEMA)


def test_no_arguments_are_an_empty_object() -> None:
    assert read() == {}
