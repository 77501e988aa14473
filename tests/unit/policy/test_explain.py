"""An explanation shows all that was considered, in order, and the verdict that `decide` gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.planned_calls import DELETE_PATH, READ_TEXT, TIME_NOW, a_call
from toolhub_service.domain.call import PlannedCall
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.explain import Consideration, explain

SOURCE = PolicySnapshot.load(
    {
        "grants": [
            {"principals": ["local"], "capabilities": ["danger:destructive"]},
            {"principals": ["bot"], "capabilities": ["*"]},
        ],
        "rules": [
            {"id": "wave", "effect": "ALLOW", "tools": ["core/fs.*"]},
            {"id": "ask", "effect": "REQUIRE_APPROVAL", "tools": ["core/fs.*"], "when": "args.path == 'asked'"},
            {"id": "secret", "effect": "DENY", "tools": ["core/fs.*"], "when": "args.path.startsWith('secret')"},
            {"id": "bots", "effect": "DENY", "principals": ["bot"], "tools": ["core/util.*"]},
            {"id": "nets", "effect": "DENY", "capabilities": ["network"]},
            {"id": "times", "effect": "DENY", "tools": ["core/util.*"]},
        ],
    }
)


def considered(planned: PlannedCall) -> dict[str, Consideration]:
    explanation = explain(SOURCE, planned)
    assert explanation.verdict == SOURCE.decide(planned)
    return {consideration.id: consideration for consideration in explanation.considerations}


def test_an_explanation_lists_everything_in_the_order_of_asking() -> None:
    ids = list(considered(a_call(READ_TEXT, {"path": "a"})))
    assert ids == [
        "identity",
        "grants[0]",
        "grants[1]",
        "grants[2]",
        "capabilities",
        "permissions",
        "secret",
        "bots",
        "nets",
        "times",
        "guard:path",
        "ask",
        "wave",
        "grant:local",
    ]


@pytest.mark.parametrize(
    ("principal", "id", "why"),
    [
        ("acme-bot", "tenants[1]", "`acme-*` names the caller; source core is listed by tenants[1]"),
        ("globex-bot", "tenants[2]", "`globex-*` names the caller; source core is listed by tenants[1], and so not"),
        ("nobody", "tenants", "no entry names the caller; source core is listed by tenants[1], and so not there"),
        ("ops", "tenants[0]", "`ops` names the caller; it sees every source"),
    ],
)
def test_an_explanation_names_the_tenant_entry_that_shows_or_hides_the_source(
    principal: str, id: str, why: str
) -> None:
    policy = PolicySnapshot.load(
        {
            "tenants": [
                {"name": "*", "principals": ["ops"]},
                {"name": "acme", "principals": ["acme-*"], "sources": ["core"]},
                {"name": "globex", "principals": ["globex-*"]},
            ],
            "grants": [{"principals": ["*"], "capabilities": ["*"]}],
        }
    )
    planned = a_call(TIME_NOW, {})
    explanation = explain(policy, planned._replace(call=planned.call._replace(principal=policy.principal(principal))))
    first = explanation.considerations[0]
    assert (first.id, first.matched) == (id, not explanation.verdict.allows)
    assert first.why.startswith(why)
    assert explanation.verdict.allows or explanation.verdict.rule_id == "tenants"


def test_an_explanation_states_why_each_rule_did_or_did_not_match() -> None:
    entries = considered(a_call(READ_TEXT, {"path": "asked"}))
    assert entries["ask"].matched
    assert entries["ask"].why == "`args.path == 'asked'` is true"
    assert not entries["secret"].matched
    assert "false" in entries["secret"].why
    assert (entries["bots"].matched, entries["bots"].why) == (False, "names other principals")
    assert (entries["nets"].matched, entries["nets"].why) == (False, "the tool has none of its capabilities")
    assert (entries["times"].matched, entries["times"].why) == (False, "names other tools")
    assert entries["grants[0]"].why.endswith("covers read:fs")
    assert entries["grants[2]"].why == "names other principals"


def test_an_explanation_states_why_a_star_lifts_no_plan() -> None:
    entries = considered(a_call(DELETE_PATH, {"path": "a"}))
    assert not entries["wave"].matched
    assert entries["wave"].why.endswith("does not replace the plan: name the tool or danger:destructive")
    assert entries["destructive_requires_plan"].matched


def test_an_explanation_reports_a_fault_of_a_condition() -> None:
    entries = considered(a_call(READ_TEXT, {}))
    assert entries["secret"].matched
    assert "which counts as a deny" in entries["secret"].why
    assert entries["guard:path"].why == "not checked: the argument is absent"


@pytest.mark.parametrize(
    ("call", "id"),
    [
        (a_call(TIME_NOW, user_id="ann"), "identity"),
        (a_call(TIME_NOW, principal="stranger"), "capabilities"),
        (a_call(READ_TEXT, {"path": "a"}, permissions=frozenset({"gpu"})), "permissions"),
        (a_call(READ_TEXT, {"path": "/etc"}), "guard:path"),
        (a_call(READ_TEXT, {"path": "secret/x"}), "secret"),
    ],
)
def test_the_refusing_step_is_marked(call: PlannedCall, id: str) -> None:
    assert considered(call)[id].matched


def test_impersonation_is_reported() -> None:
    trusted = PolicySnapshot.load({"impersonate": ["local"]})
    first: Any = explain(trusted, a_call(TIME_NOW, user_id="ann")).considerations[0]
    assert (first.matched, first.why) == (False, "the caller may act for others")


@pytest.mark.parametrize(
    ("permissions", "refused", "why"),
    [
        (None, False, "the call gives none"),
        ({"read:fs"}, False, "they cover what the tool needs"),
        ({"gpu"}, True, "they leave out read:fs"),
    ],
)
def test_tells_what_the_permissions_of_a_call_leave_out(permissions: set[str] | None, refused: bool, why: str) -> None:
    given = None if permissions is None else frozenset(permissions)
    entry = considered(a_call(READ_TEXT, {"path": "a"}, permissions=given))["permissions"]
    assert (entry.matched, entry.why) == (refused, why)
