"""Warnings of conditions that read an argument which tools of their rule lack."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ArgumentRole, GuardedArgument, ToolKind, ToolSpec
from toolhub_service.policy.advice.missing_arguments import find_missing_arguments
from toolhub_service.policy.parsing import parse_policy


def tool(name: str, schema: JsonObject, **fields: Any) -> ToolSpec:
    return ToolSpec(
        name=name, kind=ToolKind.CORE, description="For tests.", input_schema=schema, output_schema={}, **fields
    )


def taking(*names: str) -> JsonObject:
    return {"type": "object", "properties": {name: {} for name in names}, "additionalProperties": False}


READ = tool("core/fs.read", taking("path"), guarded=(GuardedArgument("path", ArgumentRole.PATH_READ),))
WRITE = tool("core/fs.write", taking("path", "text"), guarded=(GuardedArgument("path", ArgumentRole.PATH_WRITE),))
COPY = tool("core/fs.copy", taking("source", "destination"), capabilities=frozenset({"write:fs"}))
FETCH = tool("core/http.fetch", taking("url"), guarded=(GuardedArgument("url", ArgumentRole.URL),))
ANYTHING = tool("acme/anything", {"type": "object"})
EITHER = tool("acme/either", {"oneOf": [taking("path"), taking("id")]})
TOOLS = [READ, WRITE, COPY, FETCH, ANYTHING, EITHER]


def warnings(tools: list[str], when: str, **rule: Any) -> list[tuple[str, str]]:
    document, _ = parse_policy({"rules": [{"id": "r", "effect": "DENY", "tools": tools, "when": when, **rule}]})
    return list(find_missing_arguments(document, TOOLS))


def test_a_tool_that_lacks_the_argument_is_named_with_the_members_of_call_that_cover_it() -> None:
    ((path, problem),) = warnings(["core/fs.*"], "has(args.path) && args.path == 'x'")
    assert path == "rules[0].when"
    assert problem == (
        "`args.path` is no argument of core/fs.copy, which the rule names too: with `has` the rule does not apply to "
        "their calls, without it each of their calls is denied. Read `call.reads` and `call.writes` instead, which "
        "every tool fills"
    )


@pytest.mark.parametrize(
    ("tools", "when", "expected"),
    [
        (["core/*"], "args.url == 'x'", "Read `call.urls` instead"),
        (["core/fs.*"], "args['text'] == 'x'", "Name only tools that have it"),
        (["core/fs.write", "core/fs.copy"], "args.overwrite == true", "core/fs.copy, core/fs.write"),
    ],
)
def test_the_warning_says_what_to_write_instead(tools: list[str], when: str, expected: str) -> None:
    ((_, problem),) = warnings(tools, when)
    assert expected in problem


@pytest.mark.parametrize(
    ("tools", "when"),
    [
        (["core/fs.read", "core/fs.write"], "args.path == 'x'"),
        (["acme/*"], "args.path == 'x'"),
        (["core/*"], "call.reads.exists(p, p == 'x')"),
        (["core/*"], "size(args) > 3"),
        (["gone/*"], "args.path == 'x'"),
    ],
    ids=["every tool has it", "schemas that may take it", "no argument is read", "all are read", "no tool is known"],
)
def test_a_condition_is_not_warned_of_when_no_tool_surely_lacks_its_argument(tools: list[str], when: str) -> None:
    assert warnings(tools, when) == []


def test_only_tools_with_the_capabilities_of_the_rule_count() -> None:
    assert warnings(["core/*"], "args.path == 'x'", capabilities=["network"]) == []
    assert len(warnings(["core/*"], "args.path == 'x'", capabilities=["write:fs"])) == 1
