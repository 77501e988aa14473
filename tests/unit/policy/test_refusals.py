"""Arguments judged before the tool runs, and refusals whose remedy works when it is pasted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.planned_calls import (
    ARGV,
    DELETE_PATH,
    READ_TEXT,
    REQUEST,
    RUN,
    TIME_NOW,
    URL,
    WRITE_TEXT,
    a_call,
    a_tool,
)
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.explain import explain

OPEN = PolicySnapshot.load(
    """
grants:
- {principals: [local], capabilities: [network, "execute:command"]}
egress:
- {hosts: [api.github.com, "*.example.com"]}
- {hosts: [hooks.example.org], methods: [POST], ports: [8443], schemes: [https]}
commands:
- preset: safe
"""
)


def refusal(source: PolicySnapshot, planned: PlannedCall) -> Verdict:
    verdict = source.decide(planned)
    assert verdict.effect is Effect.DENY
    return verdict


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
@pytest.mark.parametrize("tool", [READ_TEXT, WRITE_TEXT])
def test_a_path_outside_the_workspace_is_refused(tool: Any, path: str) -> None:
    verdict = refusal(PolicySnapshot(), a_call(tool, {"path": path}))
    assert (verdict.rule_id, verdict.kind) == ("guard:path", ErrorKind.PATH_OUTSIDE_SANDBOX)
    assert verdict.details["argument"] == "path"


def test_a_path_that_names_no_file_keeps_the_kind_of_the_guard() -> None:
    assert refusal(PolicySnapshot(), a_call(READ_TEXT, {"path": "a\x00b"})).kind is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize("value", [7, {"a": 1}, [1], [["a"]], True])
def test_a_guarded_argument_of_another_type_is_refused(value: Any) -> None:
    verdict = refusal(PolicySnapshot(), a_call(READ_TEXT, {"path": value}))
    assert (verdict.rule_id, verdict.kind) == ("guard:path", ErrorKind.INVALID_INPUT)


@pytest.mark.parametrize("args", [{}, {"path": None}, {"path": "a/b"}, {"path": ["a", "b/c"]}])
def test_absent_values_are_not_checked_and_arrays_are_checked_by_item(args: dict[str, Any]) -> None:
    assert PolicySnapshot().decide(a_call(READ_TEXT, args)).effect is Effect.ALLOW


def test_one_bad_item_of_an_array_refuses_the_call() -> None:
    assert refusal(PolicySnapshot(), a_call(READ_TEXT, {"path": ["a", "/etc"]})).rule_id == "guard:path"


@pytest.mark.parametrize(
    ("args", "effect"),
    [
        ({"url": "https://api.github.com/x"}, Effect.ALLOW),
        ({"url": "https://a.example.com/", "method": "HEAD"}, Effect.ALLOW),
        ({"url": "https://api.github.com/x", "method": "POST"}, Effect.DENY),
        ({"url": "https://hooks.example.org:8443/", "method": "POST"}, Effect.ALLOW),
        ({"url": "https://hooks.example.org:8443/"}, Effect.DENY),
        ({"url": "https://evil.org/"}, Effect.DENY),
        ({"url": ["https://api.github.com/x", "https://evil.org/"]}, Effect.DENY),
        ({"url": "http://169.254.169.254/"}, Effect.DENY),
    ],
)
def test_urls_are_checked_with_their_method(args: dict[str, Any], effect: Effect) -> None:
    verdict = OPEN.decide(a_call(REQUEST, args))
    assert verdict.effect is effect
    if effect is Effect.DENY:
        assert (verdict.rule_id, verdict.kind) == ("guard:egress", ErrorKind.HTTP_DISALLOWED_HOST)


@pytest.mark.parametrize(
    ("args", "effect"),
    [
        ({"argv": ["ls", "-l"]}, Effect.ALLOW),
        ({"argv": "ls -l notes"}, Effect.ALLOW),
        ({"argv": ["cat", "../x"], "cwd": "a"}, Effect.ALLOW),
        ({"argv": ["cat", "../../x"], "cwd": "a"}, Effect.DENY),
        ({"argv": ["cat", "/etc/passwd"], "cwd": "a"}, Effect.DENY),
        ({"argv": ["cat", "x"], "cwd": "/etc"}, Effect.DENY),
        ({"argv": ["cat", "x"], "cwd": "../other"}, Effect.DENY),
        ({"argv": "ls; rm -rf /"}, Effect.DENY),
        ({"argv": ["sh", "-c", "id"]}, Effect.DENY),
        ({"argv": []}, Effect.DENY),
        ({"argv": ["ls"], "command": "rm -rf x"}, Effect.DENY),
    ],
)
def test_commands_are_checked_with_their_folder(args: dict[str, Any], effect: Effect) -> None:
    verdict = OPEN.decide(a_call(RUN, args))
    assert verdict.effect is effect
    if effect is Effect.DENY:
        assert verdict.rule_id == "guard:command"


def test_overwriting_can_be_forbidden() -> None:
    source = PolicySnapshot.load({"sandbox": {"may_overwrite": False}})
    verdict = refusal(source, a_call(WRITE_TEXT, {"path": "a", "overwrite": True}))
    assert verdict.rule_id == "guard:overwrite"
    assert source.decide(a_call(WRITE_TEXT, {"path": "a", "overwrite": False})).effect is Effect.ALLOW


def test_a_guard_refuses_before_a_person_is_asked() -> None:
    source = PolicySnapshot.load({"rules": [{"id": "ask", "effect": "REQUIRE_APPROVAL"}]})
    assert refusal(source, a_call(READ_TEXT, {"path": "/etc"})).rule_id == "guard:path"


REMEDIED: list[tuple[str, PlannedCall, int]] = [
    ("a public host", a_call(REQUEST, {"url": "https://api.github.com/x"}), 2),
    ("a host with a port", a_call(REQUEST, {"url": "http://build.example.com:8080/"}), 2),
    ("a POST", a_call(REQUEST, {"url": "https://api.github.com/x", "method": "POST"}), 2),
    ("a host in another alphabet", a_call(REQUEST, {"url": "https://bücher.example/"}), 2),
    ("a local service", a_call(REQUEST, {"url": "http://127.0.0.1:8188/prompt"}), 2),
    ("a local service by IPv6", a_call(REQUEST, {"url": "http://[::1]:8188/prompt"}), 2),
    ("several hosts", a_call(REQUEST, {"url": ["https://a.org/", "https://b.org/"]}), 3),
    ("a tool with two needs", a_call(a_tool("x/y", "network", "gpu", guarded=(URL,)), {"url": "https://a.org"}), 2),
    ("a safe command", a_call(RUN, {"argv": ["ls", "-l"]}), 2),
    ("a command line", a_call(RUN, {"command": "ls -l notes"}), 2),
    ("a deletion", a_call(DELETE_PATH, {"path": "old"}), 2),
    ("a principal with odd signs", a_call(READ_TEXT, {"path": "a"}, principal='spiffe://x/"a\\b": é'), 1),
    ("a message for another", a_call(TIME_NOW, user_id="ann"), 1),
]


@pytest.mark.promise("errors.remedy-can-be-pasted")
@pytest.mark.parametrize(("what", "planned", "lines"), REMEDIED, ids=[what for what, _, _ in REMEDIED])
def test_pasting_the_lines_of_a_refusal_allows_the_call(what: str, planned: PlannedCall, lines: int) -> None:
    remedy = refusal(PolicySnapshot(), planned).operator_remedy
    pasted = [line for line in remedy.splitlines() if ": " in line and line.split(":")[0] in SECTIONS]
    assert len(pasted) == lines
    text = "\n".join(merged(pasted))
    assert PolicySnapshot.load(text).decide(planned).effect is Effect.ALLOW


@pytest.mark.parametrize("argv", [["jq", "--version"], ["pytest", "-q", "tests/unit"]])
def test_only_an_operator_sees_the_grammar_of_another_command(argv: list[str]) -> None:
    planned = a_call(RUN, {"argv": argv})
    grant = refusal(PolicySnapshot(), planned).operator_remedy.splitlines()[1]
    grammar = explain(PolicySnapshot(), planned).grammar
    assert "commands" not in grant
    assert PolicySnapshot.load(f"{grant}\n{grammar}").decide(planned).effect is Effect.ALLOW


@pytest.mark.parametrize("argv", [["bash", "-c", "ls"], ["python3", "x.py"], ["rm", "-rf", "/"], ["ls", "-l"]])
def test_no_refusal_shows_a_grammar_for_what_can_run_others_or_needs_none(argv: list[str]) -> None:
    assert explain(PolicySnapshot(), a_call(RUN, {"argv": argv})).grammar == ""


SECTIONS = ("grants", "egress", "commands", "rules", "impersonate", "sandbox")


def merged(lines: list[str]) -> list[str]:
    """A key that is already there is appended to, as the remedy says."""
    sections: dict[str, list[str]] = {}
    for line in lines:
        key, _, entries = line.partition(": ")
        entry = entries.partition("]  # ")[0] if "]  # " in entries else entries[:-1] if entries[0] == "[" else entries
        sections.setdefault(key, []).append(entry.removeprefix("["))
    return [f"{key}: [{', '.join(entries)}]" for key, entries in sections.items()]


def test_a_deletion_by_plan_needs_the_first_line_only() -> None:
    planned = a_call(DELETE_PATH, {"path": "old"})
    grant = refusal(PolicySnapshot(), planned).operator_remedy.splitlines()[1]
    assert PolicySnapshot.load(grant).decide(planned).effect is Effect.REQUIRE_PLAN


def test_the_remedy_of_a_refused_host_is_its_egress_line_alone() -> None:
    verdict = refusal(OPEN, a_call(REQUEST, {"url": "https://evil.org/"}))
    assert verdict.operator_remedy.splitlines()[1:] == ['egress: [{hosts: ["evil.org"]}]']
    assert "api.github.com" in str(verdict.details["allowed_hosts"])


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "http://[fd00:ec2::254]/", "http://0.0.0.0/", "no url"]
)
def test_no_remedy_opens_a_metadata_service(url: str) -> None:
    assert "egress" not in refusal(PolicySnapshot(), a_call(REQUEST, {"url": url})).operator_remedy


def test_a_known_command_with_a_refused_flag_is_answered_with_its_flags_and_no_policy_line() -> None:
    verdict = refusal(OPEN, a_call(RUN, {"argv": ["ls", "--color=always"]}))
    assert verdict.operator_remedy == ""
    assert "allowed_flags" in verdict.details


def test_a_tool_may_guard_a_command_without_a_folder() -> None:
    tool = a_tool("x/run", "execute:command", guarded=(ARGV,))
    assert OPEN.decide(a_call(tool, {"argv": ["cat", "a"]})).effect is Effect.ALLOW


def test_a_folder_outside_is_refused_even_where_the_command_names_no_path() -> None:
    assert refusal(OPEN, a_call(RUN, {"argv": ["pwd"], "cwd": "/etc"})).rule_id == "guard:path"
