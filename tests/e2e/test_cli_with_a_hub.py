"""The commands that ask a hub, through real processes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command_line import CommandLine, serving
from tests.e2e.terminal import terminal
from tests.fakes.mcp_servers import scripted
from toolhub_service.app.kinds import BY_NAME


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with serving(tmp_path_factory.mktemp("home")) as cli:
        yield cli


def test_tools_are_listed_found_shown_and_exported(hub: CommandLine) -> None:
    names = [tool["name"] for tool in hub("tools", "list", "-o", "json").json["tools"]]
    assert "core/fs.writeText" in names
    assert "core/fs.deletePath" not in names
    hits = hub("tools", "search", "write", "a", "file", "-o", "json").json["hits"]
    assert hits[0]["tool"]["name"] == "core/fs.writeText"
    footer = " ".join(hub("tools", "list").err.split())
    assert re.search(r"`toolhub tools snapshot` also shows operators the \d+ tools denied\.", footer)
    assert "core/fs.deletePath" in hub("tools", "snapshot").out
    assert hub("tools", "show", "core/fs.writeText").json["inputSchema"]["required"] == ["path", "text"]
    exported = hub("tools", "export", "--format", "anthropic").json
    assert set(exported["names"].values()) == set(names)


def test_an_empty_list_distinguishes_an_unknown_source_from_one_without_such_tools(hub: CommandLine) -> None:
    empty = hub("tools", "list", "--source", "core", "--source", "githb", "--tag", "none-has-it", "-o", "json")
    assert (empty.code, empty.json["tools"]) == (1, [])
    assert "There is no source 'githb'. Sources of this hub: core" in empty.err
    assert " tools; none matches" in empty.err
    assert "There is no source 'githb'" in hub("tools", "search", "zzz", "--source", "githb").err


def test_an_unknown_source_beside_a_known_one_is_reported(hub: CommandLine) -> None:
    listed = hub("tools", "list", "--source", "core", "--source", "githb", "-o", "json")
    assert (listed.code, listed.err.count("There is no source 'githb'")) == (1, 1)
    assert listed.json["tools"]
    assert hub("tools", "list", "--source", "core").code == 0


@pytest.mark.parametrize(
    ("format_name", "begins"),
    [
        ("name", "core/fs.copy\n"),
        ("jsonl", '{"name": "core/fs.copy", '),
        ("json", '{"tools": [{"name": "core/fs.copy", '),
        ("yaml", "tools:\n- name: core/fs.copy\n"),
        ("table", "TOOL  "),
        ("wide", "TOOL  "),
    ],
)
@pytest.mark.promise("cli.formats")
def test_a_format_can_be_asked_for_before_and_after_the_command(
    hub: CommandLine, format_name: str, begins: str
) -> None:
    before, after = hub("-o", format_name, "tools", "list"), hub("tools", "list", "-o", format_name)
    assert before.out == after.out
    assert after.out.startswith(begins)


@pytest.mark.promise("cli.pipes")
def test_a_pipe_gets_whole_rows_and_nothing_else(hub: CommandLine) -> None:
    listed = hub("tools", "list")
    first, *rows = listed.out.splitlines()
    assert re.split(" {2,}", first) == ["TOOL", "NEEDS", "DESCRIPTION"]
    assert [len(re.split(" {2,}", row)) for row in rows] == [3] * len(rows)
    assert not any(row.endswith("…") for row in rows)
    assert f"{len(rows)} tools allowed by your policy." in listed.err
    cut = hub.shown("tools", "list").text.splitlines()
    assert any(row.endswith("…") for row in cut)
    none = hub("jobs", "list", "--tool", "core/none")
    assert (none.code, none.out, "No job matches." in none.err) == (0, "", True)


@pytest.mark.promise("cli.pipes")
def test_a_pipe_gets_checks_as_text_and_single_records_as_json(hub: CommandLine) -> None:
    assert "none changed, removed or moved" in hub("audit", "verify").out
    assert re.match(r"\d{4}-\d\d-\d\dT\S+Z  \S+ ", hub("audit", "tail", "-n", "1").out)
    assert hub("tools", "show", "core/fs.copy").json["name"] == "core/fs.copy"
    assert hub("tools", "show", "core/fs.copy", "-o", "table").out.startswith("core/fs.copy ")


def test_options_of_a_command_may_stand_before_it(hub: CommandLine, tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    asked = cli("--address", hub.address, "--json", "call", "core/util.hash.sha256Text", "text=")
    assert (asked.code, asked.json["ok"]) == (0, True)
    assert cli("--address=127.0.0.1:1", "tools", "list").code == 3
    assert "Usage: toolhub" in cli("--address", hub.address).err
    wrong = cli("--address", hub.address, "keys", "list")
    assert (wrong.code, "--address" in wrong.err) == (2, True)


@pytest.mark.promise("cli.prefixes")
def test_the_beginning_of_an_id_is_enough_while_it_fits_one_only(hub: CommandLine) -> None:
    ids = [hub("jobs", "submit", "core/util.time.now", "-o", "name").out.strip() for _ in range(2)]
    assert hub("jobs", "result", ids[0][:-1], "--wait").json["ok"] is True
    several = hub("jobs", "show", "job_")
    assert several.code == 2
    assert all(job_id in several.err for job_id in ids)
    assert hub("jobs", "list", "--state", "all", "-o", "json").json["totalSize"] >= 2


def test_an_unknown_tool_is_refused_with_the_nearest_names(hub: CommandLine) -> None:
    missing = hub("tools", "show", "core/fs.readTxt")
    assert missing.code == 1
    assert "Did you mean core/fs.readText" in missing.err


def test_a_tool_hidden_by_policy_is_distinguished_from_an_unknown_one(hub: CommandLine) -> None:
    hidden = hub("tools", "show", "core/fs.deletePath")
    assert hidden.code == 1
    assert "Your policy does not allow core/fs.deletePath, which needs " in hidden.err
    assert "danger:destructive" in hidden.err
    assert "toolhub policy explain --tool core/fs.deletePath --args '{}'" in " ".join(hidden.err.split())
    unknown = hub("tools", "show", "core/nothing.like.it")
    assert "There is no tool named 'core/nothing.like.it'" in unknown.err
    assert "Did you mean" not in unknown.err


def test_kinds_of_tools_are_those_that_are_built(hub: CommandLine) -> None:
    assert "[core|mcp|langchain|n8n|comfyui|skill]" in hub("tools", "list", "--help").out
    assert hub("tools", "list", "--kind", "spell").code == 2
    assert list(BY_NAME) == ["mcp", "langchain", "n8n", "comfyui", "skill"], (
        "tools.py keeps its own list for a quick start"
    )


def test_a_definition_with_a_wrong_field_is_reported_in_json_terms(hub: CommandLine) -> None:
    wrong = hub("tools", "register", "-", stdin='{"name": "crm/find", "version": 1}')
    assert wrong.code == 2
    assert '`version` must be a string, not 1. Example: "version": "1.0.0"' in " ".join(wrong.err.split())


def test_a_call_prints_its_result_and_its_error_as_json(hub: CommandLine) -> None:
    done = hub("call", "core/util.text.truncate", "text=hello world", "maxChars=8")
    assert (done.code, done.json["ok"], done.json["result"]["text"]) == (0, True, "hello w…")
    refused = hub("call", "core/fs.readText", "path=../x")
    assert (refused.code, refused.json["error"]["kind"]) == (1, "ERROR_KIND_PATH_OUTSIDE_SANDBOX")
    assert refused.json["ok"] is False


def test_arguments_come_from_standard_input_too(hub: CommandLine) -> None:
    done = hub("call", "core/util.hash.sha256Text", "-", stdin='{"text": ""}')
    assert done.json["result"]["sha256"].startswith("e3b0c442")


@pytest.mark.promise("workspace.shared-by-a-client")
def test_calls_typed_by_hand_share_a_workspace_and_another_request_has_another(hub: CommandLine) -> None:
    assert hub("call", "core/fs.writeText", "path=shared.txt", "text=x").code == 0
    assert hub("call", "core/fs.readText", "path=shared.txt").code == 0
    assert hub("call", "core/fs.readText", "path=shared.txt", "--request-id", "other").code == 1
    assert hub("call", "core/fs.readText", "path=shared.txt", TOOLHUB_REQUEST_ID="other").code == 1


def test_a_dry_run_shows_a_plan_that_can_be_committed_once_as_it_is(hub: CommandLine) -> None:
    words = ("call", "core/fs.writeText", "path=planned.txt", "text=12345")
    plan = hub(*words, "--dry-run")
    assert plan.code == 0
    assert plan.json["effects"] == ['Write 5 bytes to the new file "planned.txt".']
    digest = plan.json["planDigest"]
    assert hub(*words, "--plan", digest).code == 0
    assert hub("call", "core/fs.writeText", "path=other.txt", "text=12345", "--plan", digest).code == 1


def test_a_dry_run_that_would_fail_names_the_step_and_exits_1(hub: CommandLine) -> None:
    plan = hub("call", "core/fs.copy", "source=nowhere", "destination=there", "--dry-run")
    assert plan.code == 1
    last = plan.json["steps"][-1]
    assert (last["step"], last["error"]["kind"]) == ("STEP_NAME_EXECUTE", "ERROR_KIND_NOT_FOUND")
    assert "planDigest" not in plan.json


def test_the_audit_log_is_read_filtered_exported_and_verified(hub: CommandLine) -> None:
    for number in range(5):
        assert hub("call", "core/util.hash.sha256Text", f"text={number}", "--request-id", "audited").code == 0
    newest = [
        json.loads(line)
        for line in hub("audit", "tail", "-n", "3", "--request-id", "audited", "-o", "jsonl").out.splitlines()
    ]
    every = [json.loads(line) for line in hub("audit", "export", "--request-id", "audited").out.splitlines()]
    assert len(every) == 5
    assert newest == every[-3:]
    kinds = {json.loads(line)["type"] for line in hub("audit", "export", "--type", "tool_result").out.splitlines()}
    assert kinds == {"EVENT_TYPE_TOOL_RESULT"}
    assert hub("audit", "verify", "-o", "json").json["ok"] is True
    offline = hub("audit", "verify", "--data-dir", str(hub.data_dir), "-o", "json")
    assert (offline.code, offline.json["ok"]) == (0, True)
    exported = hub("audit", "export", "--data-dir", str(hub.data_dir), "--request-id", "audited")
    assert [json.loads(line) for line in exported.out.splitlines()] == every


def test_following_the_audit_log_ends_quietly_at_ctrl_c(hub: CommandLine) -> None:
    with terminal(["toolhub", "audit", "tail", "-f", "-n", "1", "--request-id", "followed"], hub.env) as (
        process,
        screen,
    ):
        hub("call", "core/util.hash.sha256Text", "text=a", "--request-id", "followed")
        while "TOOL_RESULT" not in screen.text:  # it may have been before the watching began
            hub("call", "core/util.hash.sha256Text", "text=a", "--request-id", "followed")
            screen.wait_for("TOOL_")
        screen.type(b"\x03")
        assert "Traceback" not in screen.rest()
        assert process.wait(60) == 0


def test_a_reader_that_goes_away_leaves_no_traceback(hub: CommandLine) -> None:
    for line in ("toolhub tools list | head -c 1", "toolhub audit export | head -1", "toolhub tools export | true"):
        stderr = hub.piped(line).err  # what stands below a list may have been written already
        assert "Traceback" not in stderr
        assert "Broken pipe" not in stderr


def test_a_tool_is_registered_shown_and_removed(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as hub:
        tool = {
            "name": "crm/customers.find",
            "version": "1.0.0",
            "kind": "TOOL_KIND_MCP",
            "description": "Find a customer.",
            "source": "crm",
            "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}},
        }
        file = tmp_path / "crm.json"
        file.write_text(json.dumps(tool))
        nowhere = hub("tools", "register", str(file))
        assert nowhere.code == 1
        assert "toolhub sources add crm --kind mcp" in nowhere.err
        server = str(Path(scripted.__file__).absolute())
        assert hub("sources", "add", "crm", "--", sys.executable, server, "modern").code == 0
        assert hub("sources", "refresh", "crm").code == 0
        registered = hub("tools", "register", str(file))
        assert registered.code == 0, registered.err
        assert registered.json["tools"][0]["inputSchema"] == tool["inputSchema"]
        hidden = hub("tools", "show", "crm/customers.find")
        assert "on the hub's machine: toolhub policy grant local mcp:crm" in hidden.err
        assert "policy explain" not in hidden.err, "it does not know the tools of sources"
        again = hub("tools", "register", str(file))
        assert again.code == 1
        assert "crm/customers.find" in again.err
        assert hub("tools", "register", "-", "--replace", stdin=json.dumps([tool])).code == 0
        snapshot = hub("tools", "snapshot", "-o", "json").json
        assert "crm/customers.find" in [each["name"] for each in snapshot["tools"]]
        assert hub("tools", "unregister", "crm/customers.find").code == 0
        assert hub("tools", "unregister", "crm/customers.find").code == 1


def test_health_is_a_word_an_exit_code_or_json(hub: CommandLine) -> None:
    assert hub("health").out == "SERVING\n"
    assert hub("health", "--json").json == {"status": "SERVING"}
    shown = hub("health", "--verbose").out
    assert shown.startswith("SERVING\n")
    assert {"version", "contract", "features", "you", "max_args_bytes"} <= set(shown.split())
    assert hub("health", "--verbose", "--json").json["principal"] == "local"
    unknown = hub("health", "--service", "toolhub.v1.Nothing")
    assert unknown.code == 1


def test_an_unreachable_hub_is_reported_with_exit_code_3(hub: CommandLine) -> None:
    for words in (("tools", "list"), ("call", "core/util.time.now"), ("audit", "tail"), ("health",)):
        away = hub(*words, "--address", "127.0.0.1:1")
        assert away.code == 3
        assert "toolhub serve" in away.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tool", "list"), "Did you mean `tools`?"),
        (("tools", "serch", "x"), "Did you mean `search`?"),
        (("call",), "Missing argument"),
        (("call", "core/util.time.now", "word"), "is not an argument"),
        (("tools", "list", "--kind", "cores"), "--kind"),
        (("audit", "tail", "--type", "nothing"), "POLICY_DENIED"),
        (("tools", "list", "--timeout", "0"), "--timeout"),
        (("tools", "list", "--ca-file", "/nowhere.pem"), "No such file"),
    ],
)
def test_wrong_usage_exits_2_and_prints_the_correction(hub: CommandLine, words: tuple[str, ...], expected: str) -> None:
    wrong = hub(*words)
    assert wrong.code == 2
    assert expected in wrong.err


def test_an_unknown_tool_is_refused_with_the_nearest(hub: CommandLine) -> None:
    shown = hub.shown("call", "core/fs.writeTex", "path=a")
    assert shown.code == 1
    assert "Did you mean core/fs.writeText" in shown.text
    assert hub("tools", "show", "core/fs.writeTex").code == 1


def test_colours_are_used_on_terminals_that_support_them(hub: CommandLine) -> None:
    with terminal(["toolhub", "audit", "verify"], {**hub.env, "NO_COLOR": ""}) as (_, coloured):
        coloured.rest()
        assert b"\x1b[32m" in coloured.raw
    with terminal(["toolhub", "audit", "verify"], hub.env) as (_, plain):
        plain.rest()
        assert b"\x1b[" not in plain.raw
