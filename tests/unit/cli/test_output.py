"""Tables, prose and JSON."""

from __future__ import annotations

import json

import pytest

from toolhub.v1 import call_pb2, error_pb2, tool_pb2
from toolhub_service.cli.output import legible, message_as_json, print_pairs, print_prose, print_table


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_last_column_wraps_under_itself(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "MEANING"), [("a", "one two three four five six seven eight nine")])
    assert shown(capsys) == ["NAME  MEANING", "a     one two three four five six seven", "      eight nine"]


def test_last_column_is_cut_to_a_line_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "MEANING"), [("a", "one two three four five six seven, eight nine")], is_cut=True)
    assert shown(capsys)[1] == "a     one two three four five six seven…"


def test_wide_characters_take_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "IS"), [("工具", "x"), ("tool", "y")])
    assert shown(capsys)[1:] == ["工具  x", "tool  y"]


def test_no_table_or_pair_lets_a_tool_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [("\x1b[31mred\x07",)])
    print_pairs([("text", "\x1b]0;title\x07\x9b2J")])
    print_prose("\x1b[2J")
    assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)


def test_line_ends_and_tabs_stay() -> None:
    assert legible("a\tb\nc\r") == "a\tb\nc␍"


def test_lines_after_the_first_are_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    line = "grants: [{principals: [local], capabilities: [network]}]"
    print_prose(f"An operator can allow this, in policy.yaml:\n{line}", "  ", "✗")
    assert shown(capsys) == ["✗ An operator can allow this, in", "  policy.yaml:", line]


def test_json_payloads_are_shown_as_json() -> None:
    tool = tool_pb2.ToolSpec(name="a/b", input_schema_json=b'{"type": "object"}')
    tool.examples.add(title="x", args_json=b'{"n": 1}')
    plain = message_as_json(tool)
    assert plain["inputSchema"] == {"type": "object"}
    assert plain["examples"] == [{"title": "x", "args": {"n": 1}}]


def test_structs_and_maps_are_shown_plainly() -> None:
    intent = call_pb2.ToolIntent(tool="a/b")
    intent.args_struct.update({"n": 1})
    context = call_pb2.ExecContext(labels={"team": "x"})
    error = error_pb2.ToolError(kind=error_pb2.ERROR_KIND_TIMEOUT)
    assert message_as_json(intent) == {"tool": "a/b", "args": {"n": 1.0}}
    assert message_as_json(context) == {"labels": {"team": "x"}}
    assert json.dumps(message_as_json(error)) == '{"kind": "ERROR_KIND_TIMEOUT"}'
