"""The variable `call`: what a call touches, whatever its tool calls the arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.planned_calls import ARGV, COMMAND, FOLDER, METHOD, PATH, URL, WRITTEN_PATH, a_call, a_tool
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.tool import ArgumentRole, ToolSpec
from toolhub_service.policy.call_facts import CallFacts, facts_of, overlaps
from toolhub_service.policy.conditions import Condition, ConditionFault
from toolhub_service.policy.decide import PolicySnapshot

COPY = a_tool("x/copy", guarded=(("source", ArgumentRole.PATH_READ), ("destination", ArgumentRole.PATH_WRITE)))
EXEC = a_tool("x/exec", guarded=(ARGV, COMMAND, FOLDER))
FETCH = a_tool("x/fetch", guarded=(URL, METHOD))
SEND = a_tool("x/send", guarded=(("files", ArgumentRole.PATH_READ),))
FOREIGN = a_tool("acme/upload")

FACTS: dict[str, tuple[ToolSpec, dict[str, Any], CallFacts]] = {
    "paths by role": (COPY, {"source": "./a", "destination": "b/../c"}, CallFacts(["a"], ["c"], [], [])),
    "an array of paths": (SEND, {"files": ["a//b", "c"]}, CallFacts(["a/b", "c"], [], [], [])),
    "an absent argument": (COPY, {"source": "a", "destination": None}, CallFacts(["a"], [], [], [])),
    "a path that its guard refuses": (COPY, {"source": "../a"}, CallFacts(["../a"], [], [], [])),
    "a URL": (FETCH, {"url": "HTTP://Example.com/%61/../b"}, CallFacts([], [], ["http://example.com/b"], [])),
    "a command as a list": (EXEC, {"argv": ["ls", "a b"]}, CallFacts(["."], ["."], [], ["ls 'a b'"])),
    "a command as one line": (EXEC, {"command": "ls   'a b'"}, CallFacts(["."], ["."], [], ["ls 'a b'"])),
    "a line that cannot be split": (EXEC, {"command": "ls 'a"}, CallFacts(["."], ["."], [], ["ls 'a"])),
    "a tool without roles": (FOREIGN, {"path": "/etc/passwd"}, CallFacts([], [], [], [])),
}


@pytest.mark.parametrize("what", FACTS)
def test_a_call_reads_writes_asks_and_runs_what_its_roles_say(what: str) -> None:
    spec, args, facts = FACTS[what]
    assert facts_of(a_call(spec, args)) == facts


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("secrets", "secrets", True),
        ("secrets/a/b", "secrets/", True),
        ("secrets/a", "./secrets", True),
        (".", "secrets", True),
        ("a", "a/b/c", True),
        ("secrets2", "secrets", False),
        ("secret", "secrets", False),
        ("a/secrets", "secrets", False),
        ("anything", ".", True),
    ],
)
def test_a_path_overlaps_a_folder_that_it_is_lies_in_or_contains(path: str, folder: str, expected: bool) -> None:
    assert overlaps(path, folder) is expected
    assert Condition(f"args.p.overlaps('{folder}')").holds(a_call(args={"p": path})) is expected


@pytest.mark.parametrize("folder", ["/secrets", "../secrets", ""])
def test_a_folder_that_no_workspace_has_denies_instead_of_matching_nothing(folder: str) -> None:
    with pytest.raises(ToolFailure):
        overlaps("a", folder)
    with pytest.raises(ConditionFault):
        Condition(f"args.p.overlaps('{folder}')").holds(a_call(args={"p": "a"}))


@pytest.mark.parametrize("argument", ["1", "null", "['a']"])
def test_a_path_that_is_no_text_denies(argument: str) -> None:
    with pytest.raises(ConditionFault):
        Condition(f"{argument}.overlaps('a') || args.p == 1").holds(a_call(args={"p": 2}))


NO_SECRETS = PolicySnapshot.load(
    {
        "rules": [
            {
                "id": "no-secrets",
                "effect": "DENY",
                "when": '(call.reads + call.writes).exists(path, path.overlaps("secrets"))',
            }
        ]
    }
)


@pytest.mark.parametrize(
    ("spec", "args"),
    [
        (COPY, {"source": "secrets/a", "destination": "public/a"}),
        (COPY, {"source": "public/a", "destination": "./secrets/a"}),
        (a_tool("x/read", guarded=(PATH,)), {"path": "a/../secrets"}),
        (a_tool("x/delete", guarded=(WRITTEN_PATH,)), {"path": "."}),
        (SEND, {"files": ["public/a", "secrets//a"]}),
        (EXEC, {"argv": ["cat", "a"]}),
    ],
)
def test_a_rule_about_a_folder_holds_for_every_tool_that_reaches_it(spec: ToolSpec, args: dict[str, Any]) -> None:
    assert NO_SECRETS.decide(a_call(spec, args)).rule_id == "no-secrets"


def test_a_rule_about_a_folder_leaves_other_calls_alone() -> None:
    for args in ({"source": "public/a", "destination": "public/b"}, {"source": "secrets2", "destination": "x"}):
        assert NO_SECRETS.decide(a_call(COPY, args)).rule_id != "no-secrets"


def test_a_condition_on_ten_thousand_paths_stays_within_its_cost_limit_and_on_fifty_thousand_does_not() -> None:
    condition = Condition('call.reads.exists(path, path.overlaps("secrets"))')
    assert condition.holds(a_call(SEND, {"files": ["a"] * 5_000})) is False
    with pytest.raises(ConditionFault, match="cost limit"):
        condition.holds(a_call(SEND, {"files": ["a"] * 50_000}))
