"""Names in a policy that fit nothing known, each told with what may have been meant."""

from __future__ import annotations

import pytest

from toolhub_service.policy.parsing import parse_policy
from toolhub_service.policy.unmatched import Known, unmatched

KNOWN = Known(
    tools=frozenset({"core/fs.readText", "core/fs.deletePath", "github/create_issue"}),
    capabilities=frozenset({"read:fs", "danger:destructive", "mcp:github"}),
    principals=frozenset({"local", "ann", "research-1"}),
    unread=frozenset({"papers"}),
)


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("rules: [{id: a, effect: DENY, tools: [core/fs.deletPath]}]", "rules[0].tools[0]", "`core/fs.deletePath`?"),
        ("rules: [{id: a, effect: DENY, tools: ['cor/*']}]", "rules[0].tools[0]", "fits no tool"),
        ("limits: [{id: a, quota: 1, tools: ['*', 'githb/*']}]", "limits[0].tools[1]", "fits no tool"),
        ("egress: [{hosts: [x.org], tools: [core/http.fetch]}]", "egress[0].tools[0]", "fits no tool"),
        ("grants: [{principals: [ann], capabilities: [reed:fs]}]", "grants[0].capabilities[0]", "`read:fs`?"),
        ("grants: [{principals: [ann], capabilities: ['raed:*']}]", "grants[0].capabilities[0]", "fits no capability"),
        ("rules: [{id: a, effect: DENY, capabilities: [mcp:githup]}]", "rules[0].capabilities[0]", "`mcp:github`?"),
        ("rules: [{id: a, effect: DENY, principals: [anne]}]", "rules[0].principals[0]", "`ann`?"),
        ("roles: [{principals: ['reserch-*'], roles: [agent]}]", "roles[0].principals[0]", "fits no principal"),
        ("impersonate: [bob]", "impersonate[0]", "fits no principal"),
        (
            "rules: [{id: a, effect: REQUIRE_APPROVAL, approval: {approvers: [bob]}}]",
            "rules[0].approval.approvers[0]",
            "fits no principal",
        ),
    ],
)
def test_what_fits_nothing_is_told(text: str, place: str, told: str) -> None:
    ((path, problem),) = unmatched(parse_policy(text)[0], KNOWN)
    assert path == place
    assert told in problem


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "rules: [{id: a, effect: DENY, tools: ['*', 'core/*', '*.readText', github/create_issue]}]",
        "rules: [{id: a, effect: DENY, tools: [papers/search, 'papers/*', 'pap*']}]",
        "grants: [{principals: ['*', ann, 'research-*'], capabilities: ['read:*', danger:destructive]}]",
    ],
)
def test_what_fits_something_or_may_is_not(text: str) -> None:
    assert not list(unmatched(parse_policy(text)[0], KNOWN))


def test_where_nobody_knows_nothing_is_judged() -> None:
    document, _ = parse_policy("grants: [{principals: [a], capabilities: [b]}]\nimpersonate: [c]")
    assert not list(unmatched(document, Known(frozenset(), frozenset(), frozenset())))
