"""The cost limit of conditions: what could hold everybody up is stopped before it runs, the rest is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.planned_calls import a_call, a_tool
from toolhub_service.policy.condition_cost import cost_of
from toolhub_service.policy.conditions import Condition, ConditionFault

NUMBERS = {"a": list(range(5_000)), "b": list(range(5_000)), "p": "x"}
NESTED = "args.a.exists(x, args.b.exists(y, x == y + 1000000))"


def answer(text: str, args: dict[str, Any]) -> bool:
    return Condition(text).holds(a_call(a_tool("x/tool"), args))


@pytest.mark.parametrize(
    "text",
    [
        NESTED,
        "args.a.all(x, args.b.size() > 0)",
        "args.a.map(x, x + 1).size() == 3",
        "args.a.filter(x, x > 1).size() == 3",
        "[args.a].all(x, x.all(y, x.all(z, z >= 0)))",
        "args.a.all(x, args['a'].all(y, y >= 0))",
        "[[args.a]][0][0].all(x, args.b.all(y, y >= 0))",
        "args.all(k, args.all(q, args[k] == args[q])) && args.a.all(x, args == args)",
        "args.a . all ( x , args . b . all ( y , y >= x ) )",
        "args.a.all(x, // a comment with ' and (\n args.b.all(y, true))",
        "args.a.map(x, [x, x, x]).map(z, z).all(q, true)",
    ],
)
def test_a_condition_that_may_cost_more_than_the_limit_is_not_evaluated(text: str) -> None:
    with pytest.raises(ConditionFault, match="cost limit"):
        answer(text, NUMBERS)


@pytest.mark.parametrize("text", ["args.s.matches('a{99}')", "matches(args.s, 'a{99}')"])
def test_a_match_costs_as_much_as_the_text_is_long_however_it_is_written(text: str) -> None:
    cost = cost_of(text)
    assert cost.is_within({"args": {"s": "a" * 1_000}})
    assert not cost.is_within({"args": {"s": "a" * 100_000}})


@pytest.mark.parametrize(
    ("pattern", "times"), [("a{0}", 1), ("a{1}", 1), ("a{0,1}", 1), ("a{2}", 2), ("(a{3}){,4}", 3)]
)
def test_a_match_costs_as_often_as_its_pattern_is_repeated(pattern: str, times: int) -> None:
    def units(pattern: str) -> int:
        terms = cost_of(f"args.s.matches('{pattern}')").terms
        return sum(units for units, factors in terms if factors == (("args", "s"),))

    assert units(pattern) - units("a") == (times - 1) * (units("a{2}") - units("a"))


def test_a_condition_with_too_costly_arguments_is_not_evaluated() -> None:
    with pytest.raises(ConditionFault, match="cost limit"):
        answer("size(args.a) == 130000", {"a": [0] * 130_000})


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.a.all(x, x >= 0 && x < 100000)", {"a": list(range(20_000))}),
        ("args.a.all(x, x.startsWith(args.p))", {"a": ["x/some/file"] * 5_000, "p": "x"}),
        ("args.a.all(row, row.all(cell, cell >= 0))", {"a": [[1, 2, 3]] * 5_000}),
        ("args.a.exists(x, args.a.exists(y, x == y))", {"a": list(range(200))}),
        ("!args.s.matches('BEGIN (RSA )?PRIVATE') && !args.s.contains('token')", {"s": "word " * 300_000}),
        ("args.s.matches('^[a-z]{1,63}$')", {"s": "abc"}),
        ("args.p == 'x'", {"p": "x", "unread": [[0]] * 1_000_000}),
        ("size(args.a) == 80000", {"a": [0] * 80_000}),
        ("has(args.p) && args.p in ['x', 'y', 'z'] && tool.name + '/' + principal.id != args.p", {"p": "x"}),
    ],
)
def test_honest_conditions_are_within_the_limit(text: str, args: dict[str, Any]) -> None:
    assert answer(text, args) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("args.s.matches(args.p)", "a literal pattern"),
        ("matches(args.s, args.p)", "a literal pattern"),
        ("args.s.matches('a' + args.p)", "a literal pattern"),
        ("args.p.exists(p, args.s.matches(p))", "a literal pattern"),
        ("args.s.matches('((a{99}){99}){99}')", "may exceed the cost limit of a call"),
        (
            "args.a" + "".join(f".map(x{n}, [x{n}, x{n}, x{n}, x{n}])" for n in range(9)) + " == []",
            "may exceed the cost limit",
        ),
    ],
)
def test_an_unbounded_condition_is_refused_when_the_policy_is_loaded(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Condition(text)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        (
            "args.path == 'a' && args['name'] == context.task_id",
            {("args", "path"), ("args", "name"), ("context", "task_id")},
        ),
        ("'args.b' == args.a // args.c", {("args", "a")}),
        ("args.all(k, k != '')", {("args", "")}),
        ("args[principal.id] == 1", {("args", ""), ("principal", "id")}),
        ("[1].all(args, args > 0)", set()),
        ("[1].all(args, args > 0) && args.a == 1", {("args", "a")}),
    ],
)
def test_only_members_that_are_named_are_read(text: str, members: set[tuple[str, str]]) -> None:
    assert set(cost_of(text).members) == members
