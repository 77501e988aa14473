"""`toolhub run`, through real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import CommandLine, serving
from tests.rpc.faces_hub import code_of


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with serving(tmp_path_factory.mktemp("home")) as cli:
        yield cli


def line(tool: object, **args: object) -> str:
    return json.dumps({"tool": tool, "args": {"user_id": "local", **args}})


@pytest.mark.promise("faces.run")
def test_one_request_gets_one_line_and_the_exit_code_states_success(hub: CommandLine) -> None:
    wrote = hub("run", line("FileWrite", path="笔记.txt", content="内容"))
    assert (wrote.code, wrote.json) == (0, {"success": True, "output": {"path": "笔记.txt"}})
    assert hub("run", '{"tool":"FileRead","args":{"path":"笔记.txt","user_id":"local"}}').json["output"] == {
        "content": "内容"
    }
    missing = hub("run", line("FileRead", path="none.txt"))
    assert (missing.code, code_of(missing.json)) == (1, "NOT_FOUND")
    text = hub("run", "--face", "countbot", '{"tool": "read_file", "arguments": {"path": "笔记.txt"}}').json
    assert set(text) == {"call_id", "tool_name", "status", "duration_ms", "result"}
    assert (text["tool_name"], text["status"], text["result"]) == ("read_file", "success", "内容")


@pytest.mark.promise("faces.run")
def test_any_line_gets_a_typed_answer_and_the_next_one_is_read(hub: CommandLine) -> None:
    hostile = [
        "not json",
        "[]",
        "7",
        '{"args": {}}',
        '{"tool": 7}',
        '{"tool": ""}',
        json.dumps({"tool": "x" * 300}),
        '{"tool": "FileRead", "args": []}',
        '{"tool": "FileRead", "args": {"path": NaN}}',
        '{"tool": "FileRead", "args": {}, "arguments": {}}',
        '{"tool": "FileRead", "user_id": "root"}',
        '{"tool": "FileRead", "tool": "FileWrite"}',
        '{"tool": "FileRead", "args": ' + "[" * 5_000,
        '{"tool": "FileRead", "args": {"path": "\\ud800"}}',
        json.dumps({"tool": "FileRead", "args": {"path": "x" * 5_000_000}}),
    ]
    others = ["", line("Telnet"), line("FileWrite", path="l.txt", content="x"), line("FileRead", path="l.txt")]
    result = hub("run", stdin="\n".join([*hostile, *others]))
    answers: list[Any] = [json.loads(each) for each in result.out.splitlines()]
    assert result.code == 0
    assert [code_of(answer) for answer in answers[:-3]] == ["INVALID_INPUT"] * len(hostile)
    assert code_of(answers[-3]) == "NOT_FOUND"
    assert answers[-2:] == [
        {"success": True, "output": {"path": "l.txt"}},
        {"success": True, "output": {"content": "x"}},
    ]


def test_a_hub_that_is_away_is_an_answer_too(tmp_path: Path) -> None:
    away = CommandLine(tmp_path, "127.0.0.1:1")
    result = away("run", stdin=line("FileRead", path="a") + "\n" + line("FileRead", path="b"))
    assert [code_of(json.loads(each)) for each in result.out.splitlines()] == ["NETWORK_ERROR"] * 2


def test_the_audit_log_has_countbots_fields(hub: CommandLine) -> None:
    requests = [
        {"tool": "write_file", "args": {"path": "audited.txt", "content": "x"}},
        {"tool": "read_file", "args": {"path": "audited.txt", "start_line": 1}},
        {"tool": "read_file", "args": {"path": "none.txt"}},
    ]
    answers = hub("run", "--face", "countbot", stdin="\n".join(map(json.dumps, requests))).out.splitlines()
    ids = [json.loads(answer)["call_id"] for answer in answers]
    # A query returns once all events before it are on disk, where the export reads them beside the running hub.
    assert hub("audit", "query").code == 0
    exported = [
        json.loads(each)
        for each in hub("audit", "export", "--data-dir", str(hub.data_dir), "--as", "countbot").out.splitlines()
    ]
    wrote, read, missing = [each for each in exported if each["call_id"] in ids]
    fields = ("call_id", "tool_name", "arguments", "session_id", "timestamp", "status", "duration_ms", "result")
    assert tuple(wrote) == fields
    assert (wrote["tool_name"], wrote["status"]) == ("write_file", "success")
    assert wrote["arguments"] == {"path": "audited.txt", "content": "x"}
    assert read["arguments"]["start_line"] == 1
    assert (missing["status"], missing["result"]) == ("error", "NOT_FOUND")
