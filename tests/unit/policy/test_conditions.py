"""Conditions: what they see, and that any failure in one denies."""

from __future__ import annotations

from typing import Any

import cel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.planned_calls import READ_TEXT, REQUEST, TIME_NOW, a_call, a_tool
from toolhub_service.domain.call import Principal
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.conditions import FUNCTIONS, Condition, ConditionFault
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.parsing import InvalidPolicy

ARGS: dict[str, Any] = {"n": 3, "s": "abc", "items": [1, 2], "nested": {"key": None}}


@pytest.mark.parametrize(
    "text",
    [
        "args.n == 3 && args.s.startsWith('ab')",
        "tool.name == 'x/tool' && tool.kind == 'core' && !tool.read_only",
        "'read:fs' in tool.capabilities",
        "principal.id == 'local' && 'agent' in principal.roles",
        "context.labels.team == 'red' && context.request_id == 'r-1' && context.mode == 'EXECUTE'",
        "args.items.all(item, item > 0)",
        "!has(args.absent) && has(args.nested.key) && args.nested.key == null",
        "args.s.matches('^[a-c]+$')",
        "size(args.items) == 2 ? true : false",
        "type(args.n) == int",
    ],
)
def test_a_condition_sees_arguments_tool_principal_and_context(text: str) -> None:
    call = a_call(a_tool("x/tool", "read:fs"), ARGS, request_id="r-1", labels={"team": "red"})
    assert Condition(text).holds(call) is True


@pytest.mark.parametrize(
    ("principal", "user_id", "text"),
    [
        (Principal("bot"), "", "subject.id == 'bot' && actor.id == 'bot' && delegation == []"),
        (Principal("bot"), "ann", "subject.id == 'ann' && actor.id == 'bot' && delegation == ['bot']"),
        (Principal("ann", actors=("desk",)), "", "subject.id == 'ann' && actor.id == 'desk' && delegation == ['desk']"),
    ],
    ids=["for itself", "for a user", "with a token that names an actor"],
)
def test_sees_for_whom_a_call_is_made_and_who_acts(principal: Principal, user_id: str, text: str) -> None:
    assert Condition(text).holds(a_call(principal=principal, user_id=user_id)) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("args.n ==", "column"),
        ("args.n = 3", "column"),
        ("argz.n == 3", "unknown variable `argz`"),
        ("now() > 3", "unknown function `now`"),
        ("args.s.lowerAscii() == 'a'", "unknown function `lowerAscii`"),
        ("true || nobody", "unknown variable `nobody`"),
        ("request.time > timestamp('2026-01-01T00:00:00Z')", "unknown variable `request`"),
        ("(" * 500 + "true" + ")" * 500, "not a CEL expression"),
    ],
)
def test_a_condition_that_cannot_be_compiled_makes_the_document_invalid(text: str, expected: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        PolicySnapshot.load(f'rules:\n- id: r\n  effect: DENY\n  when: "{text}"\n')
    assert expected in caught.value.problem
    assert caught.value.path == "rules[0].when"
    assert caught.value.line == 4


FAULTY = {
    "a missing argument": "args.absent == 1",
    "a missing label": "context.labels.team == 'red'",
    "an answer that is a number": "args.n",
    "an answer that is a text": "args.s",
    "an answer that is null": "args.nested.key",
    "a comparison of unlike things": "args.n > 'x'",
    "a division by nothing": "args.n / 0 == 1",
    "an overflow": "args.n + 9223372036854775807 > 0",
    "an index beyond": "args.items[7] == 1",
    "a pattern that is none": "args.s.matches('[')",
    "a conversion that fails": "int(args.s) == 1",
}


@pytest.mark.promise("policy.fault-is-deny")
@pytest.mark.parametrize("effect", ["DENY", "REQUIRE_APPROVAL", "REQUIRE_PLAN", "ALLOW"])
@pytest.mark.parametrize("what", FAULTY)
def test_a_condition_that_fails_denies_under_any_rule(what: str, effect: str) -> None:
    source = PolicySnapshot.load({"rules": [{"id": "odd", "effect": effect, "when": FAULTY[what]}]})
    verdict = source.decide(a_call(TIME_NOW, ARGS))
    assert (verdict.effect, verdict.rule_id) == (Effect.DENY, "odd")
    assert "odd could not be evaluated" in verdict.reason


def test_a_fault_never_quotes_a_value_of_the_call() -> None:
    canary = "hunter2canary"
    condition = Condition("args.table[args.s] == 1")
    with pytest.raises(ConditionFault) as caught:
        condition.holds(a_call(TIME_NOW, {"table": {}, "s": canary}))
    assert canary not in str(caught.value)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ConditionFault, match="`absent`"):
        Condition("args.absent == 1").holds(a_call())


@pytest.mark.promise("policy.one-spelling")
@pytest.mark.parametrize("path", ["secret/x", "./secret/x", "a/../secret/x", "secret//x", ".//./secret/./x"])
def test_no_spelling_of_a_path_gets_past_a_rule(path: str) -> None:
    source = PolicySnapshot.load(
        {"rules": [{"id": "secret", "effect": "DENY", "when": "args.path.startsWith('secret/')"}]}
    )
    assert source.decide(a_call(READ_TEXT, {"path": path})).rule_id == "secret"
    assert source.decide(a_call(READ_TEXT, {"path": "secrets/x"})).effect is Effect.ALLOW
    assert source.decide(a_call(READ_TEXT, {"path": "../secret/x"})).rule_id == "guard:path"


def test_urls_and_methods_are_seen_in_one_spelling() -> None:
    condition = Condition("args.url == 'https://xn--bcher-kva.example/a' && args.method == 'POST'")
    assert condition.holds(a_call(REQUEST, {"url": "HTTPS://BÜCHER.example:443/a#b", "method": "post"}))
    several = Condition("args.url.exists(url, url.startsWith('https://evil.org/'))")
    assert several.holds(a_call(REQUEST, {"url": ["https://good.org/", "https://EVIL.org./"]}))


def test_conditions_see_capabilities_by_todays_names() -> None:
    assert Condition("'write:fs' in tool.capabilities").holds(a_call(a_tool("old/delete", "delete:file")))


@pytest.mark.promise("bounds.regex-linear")
def test_a_catastrophic_pattern_takes_linear_time() -> None:
    call = a_call(TIME_NOW, {"s": "a" * 50_000 + "!"})
    assert Condition("args.s.matches('^(a+)+$')").holds(call) is False


def test_every_function_offered_exists() -> None:
    macros = {"has", "all", "exists", "exists_one", "map", "filter"}
    for name in FUNCTIONS - macros:
        texts = (f"{name}('1') == 1", f"'1'.{name}('1')", f"timestamp('2026-01-01T00:00:00Z').{name}() == 1")
        assert any(_is_defined(text) for text in texts), name


def _is_defined(text: str) -> bool:
    try:
        cel.compile(text).execute({})
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        return "Undefined" not in str(error)
    return True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(
        ["args.x == 1", "args.x > args.y", "args.x in args.y", "-args.x < args.y % 2", "args.x[args.y] == args.x"]
    ),
    JSON,
    JSON,
)
def test_a_decision_is_made_for_any_arguments(text: str, x: Any, y: Any) -> None:
    source = PolicySnapshot.load({"rules": [{"id": "r", "effect": "REQUIRE_APPROVAL", "when": text}]})
    assert source.decide(a_call(TIME_NOW, {"x": x, "y": y})).rule_id in ("r", "grant:local")
