"""Decisions: gates, precedence, identity, destruction; and what must hold for every policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.planned_calls import (
    DELETE_PATH,
    READ_TEXT,
    REQUEST,
    TIME_NOW,
    WRITE_TEXT,
    a_call,
    a_tool,
)
from tests.ports.policy_source_suite import PolicySourceSuite
from toolhub_service.domain.call import PlannedCall, Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Limit, Sandbox
from toolhub_service.policy import decide as decide_module
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.document import SandboxRule
from toolhub_service.policy.live import LivePolicy
from toolhub_service.policy.selectors import Party

ALLOW, DENY = Effect.ALLOW, Effect.DENY
ALL = {"principals": ["*"], "capabilities": ["*"]}


def policy(**document: Any) -> PolicySnapshot:
    return PolicySnapshot.load({"extends": "none", "grants": [ALL], **document})


def rule(id: str, effect: str, **rest: Any) -> dict[str, Any]:
    return {"id": id, "effect": effect, **rest}


class TestSnapshotAsPolicySource(PolicySourceSuite):
    def source(self) -> PolicySource:
        return policy(
            rules=[rule("no", "DENY", tools=["core/fs.write*"]), rule("ask", "REQUIRE_APPROVAL", when="args.n > 1")]
        )

    def calls(self) -> Sequence[PlannedCall]:
        return [
            a_call(READ_TEXT, {"path": "a", "n": 1}),
            a_call(WRITE_TEXT, {"path": "a"}),
            a_call(READ_TEXT, {"path": "a", "n": 2}),
            a_call(READ_TEXT, {"path": "../a", "n": 2}),
            a_call(DELETE_PATH, {"path": "a", "n": 1}),
            a_call(TIME_NOW),
        ]


@pytest.mark.promise("policy.default-deny")
def test_a_principal_without_a_grant_is_allowed_nothing() -> None:
    verdict = PolicySnapshot().decide(a_call(TIME_NOW, principal="stranger"))
    assert (verdict.effect, verdict.rule_id, verdict.kind) == (DENY, "default", ErrorKind.POLICY_DENIED)
    assert not PolicySnapshot().could_allow(Principal("stranger"), TIME_NOW)


def test_a_call_could_need_a_plan_by_default_or_by_a_rule_that_may_decide() -> None:
    def could(spec: ToolSpec, *rules: dict[str, Any]) -> bool:
        return policy(rules=list(rules)).could_require_plan(Principal("local"), spec)

    assert could(DELETE_PATH)
    assert not could(WRITE_TEXT)
    planned = rule("plans", "REQUIRE_PLAN", tools=[WRITE_TEXT.name])
    assert could(WRITE_TEXT, planned)
    assert could(WRITE_TEXT, {**planned, "when": "args.path == 'a'"})
    always = rule("yes", "ALLOW", tools=[DELETE_PATH.name])
    assert not could(DELETE_PATH, always)
    assert could(DELETE_PATH, {**always, "when": "args.path == 'a'"})
    assert not could(WRITE_TEXT, planned, rule("asks", "REQUIRE_APPROVAL", tools=[WRITE_TEXT.name]))


def test_a_tool_without_capabilities_is_open_to_every_known_principal() -> None:
    granted = PolicySnapshot.load({"grants": [{"principals": ["bot-*"], "capabilities": ["read:fs"]}]})
    assert granted.decide(a_call(TIME_NOW, principal="bot-1")).effect is ALLOW
    agent = PolicySnapshot.load({"roles": [{"principals": ["bot-2"], "roles": ["agent"]}]})
    assert agent.decide(a_call(TIME_NOW, principal="bot-2")).rule_id == "role:agent"
    auditor = PolicySnapshot.load({"roles": [{"principals": ["ann"], "roles": ["auditor"]}]})
    assert auditor.decide(a_call(TIME_NOW, principal="ann")).effect is DENY


def test_missing_capabilities_are_named_in_the_details() -> None:
    verdict = PolicySnapshot().decide(a_call(REQUEST, {"url": "https://api.github.com/"}))
    assert verdict.effect is DENY
    assert verdict.details["missing_capabilities"] == ["network"]
    assert verdict.rule_id == "capabilities"


def test_older_capability_names_mean_todays() -> None:
    older = PolicySnapshot.load({"grants": [{"principals": ["bot"], "capabilities": ["read:file", "delete:file"]}]})
    assert older.decide(a_call(READ_TEXT, {"path": "a"}, principal="bot")).effect is ALLOW
    assert older.decide(a_call(DELETE_PATH, {"path": "a"}, principal="bot")).effect is Effect.REQUIRE_PLAN
    legacy_tool = a_tool("old/read", "read:file")
    assert PolicySnapshot().decide(a_call(legacy_tool)).effect is ALLOW
    assert (
        PolicySnapshot().decide(a_call(READ_TEXT, {"path": "a"}, permissions=frozenset({"read:file"}))).effect is ALLOW
    )


@pytest.mark.promise("policy.destruction-by-name")
@pytest.mark.parametrize("capabilities", [["*"], ["*:*"], ["write:*", "*"]])
def test_no_star_ever_grants_destruction(capabilities: list[str]) -> None:
    verdict = policy(grants=[{"principals": ["*"], "capabilities": capabilities}]).decide(
        a_call(DELETE_PATH, {"path": "a"})
    )
    assert verdict.effect is DENY
    assert verdict.details["missing_capabilities"] == ["danger:destructive"]


def test_permissions_of_a_call_narrow_the_grant_and_never_widen_it() -> None:
    source = PolicySnapshot()
    narrowed = source.decide(a_call(READ_TEXT, {"path": "a"}, permissions=frozenset({"write:fs"})))
    assert (narrowed.effect, narrowed.rule_id) == (DENY, "permissions")
    assert narrowed.details["missing_capabilities"] == ["read:fs"]
    widened = source.decide(a_call(REQUEST, {"url": "https://x.org"}, permissions=frozenset({"network", "*"})))
    assert (widened.effect, widened.rule_id) == (DENY, "capabilities")
    assert source.decide(a_call(READ_TEXT, {"path": "a"}, permissions=frozenset())).effect is DENY
    assert source.decide(a_call(TIME_NOW, permissions=frozenset())).effect is ALLOW
    assert source.decide(a_call(READ_TEXT, {"path": "a"}, permissions=frozenset({"read:*"}))).effect is ALLOW


def test_a_star_in_permissions_does_not_pass_destruction_on() -> None:
    source = PolicySnapshot.load({"grants": [{"principals": ["local"], "capabilities": ["danger:destructive"]}]})
    assert source.decide(a_call(DELETE_PATH, {"path": "a"}, permissions=frozenset({"*"}))).rule_id == "permissions"


@pytest.mark.promise("identity.from-credential")
@pytest.mark.parametrize("field", ["agent_id", "user_id"])
def test_a_message_cannot_choose_its_caller(field: str) -> None:
    other: dict[str, Any] = {field: "somebody-else"}
    own: dict[str, Any] = {field: "local"}
    source = PolicySnapshot()
    verdict = source.decide(a_call(TIME_NOW, **other))
    assert (verdict.effect, verdict.kind, verdict.rule_id) == (DENY, ErrorKind.PERMISSION_DENIED, "identity")
    assert source.decide(a_call(TIME_NOW, **own)).effect is ALLOW
    trusted = Principal("local", may_impersonate=True)
    assert source.decide(a_call(TIME_NOW, principal=trusted, **other)).effect is ALLOW
    orchestrator = PolicySnapshot.load({"impersonate": ["loc*"]})
    assert orchestrator.decide(a_call(TIME_NOW, **other)).effect is ALLOW


@pytest.mark.promise("policy.deny-overrides")
def test_rules_are_asked_in_order_of_precedence_for_any_order_in_the_file() -> None:
    rules = [rule("a", "ALLOW"), rule("p", "REQUIRE_PLAN"), rule("q", "REQUIRE_APPROVAL"), rule("d", "DENY")]
    call = a_call(READ_TEXT, {"path": "a"})
    for expected in ("d", "q", "p", "a"):
        assert policy(rules=rules).decide(call).rule_id == expected
        rules.pop()


def test_among_equal_rules_the_first_in_the_file_decides() -> None:
    source = policy(rules=[rule("one", "DENY", when="args.n == 1"), rule("two", "DENY")])
    assert source.decide(a_call(TIME_NOW, {"n": 1})).rule_id == "one"
    assert source.decide(a_call(TIME_NOW, {"n": 2})).rule_id == "two"


def test_an_allow_rule_grants_no_capability() -> None:
    source = PolicySnapshot.load({"rules": [rule("yes", "ALLOW", tools=["core/http.*"])]})
    assert source.decide(a_call(REQUEST, {"url": "https://x.org"})).effect is DENY


def test_a_rule_applies_only_to_its_principals_tools_and_capabilities() -> None:
    source = policy(
        rules=[
            rule("writers", "DENY", capabilities=["write:*"], reason="No writing.", remedy="Read instead."),
            rule("bots", "DENY", principals=["bot-*"], tools=["core/util.*"]),
        ]
    )
    verdict = source.decide(a_call(WRITE_TEXT, {"path": "a"}))
    assert (verdict.rule_id, verdict.reason, verdict.remedy) == ("writers", "No writing.", "Read instead.")
    assert source.decide(a_call(READ_TEXT, {"path": "a"})).effect is ALLOW
    assert source.decide(a_call(TIME_NOW, principal="bot-9")).rule_id == "bots"
    assert source.decide(a_call(TIME_NOW, principal="ann")).effect is ALLOW


def test_a_star_in_a_deny_rule_covers_destruction_too() -> None:
    source = policy(
        grants=[ALL, {"principals": ["*"], "capabilities": ["danger:destructive"]}],
        rules=[rule("calm", "DENY", capabilities=["danger:*"])],
    )
    assert source.decide(a_call(DELETE_PATH, {"path": "a"})).rule_id == "calm"


def test_an_approval_verdict_carries_its_terms() -> None:
    asks = rule("ask", "REQUIRE_APPROVAL", approval={"expires_s": 60, "approvers": ["boss"]})
    verdict = policy(rules=[asks]).decide(a_call(TIME_NOW))
    assert (verdict.effect, verdict.kind) == (Effect.REQUIRE_APPROVAL, ErrorKind.APPROVAL_REQUIRED)
    assert verdict.details["approval"] == {"expires_s": 60.0, "approvers": ["boss"]}
    assert "approval_id" in verdict.remedy


def test_an_approval_without_a_time_of_its_own_leaves_it_to_the_hub() -> None:
    verdict = policy(rules=[rule("ask", "REQUIRE_APPROVAL")]).decide(a_call(TIME_NOW))
    assert verdict.details["approval"] == {"approvers": ["*"]}


class TestDestruction:
    GRANTED: ClassVar[dict[str, Any]] = {"grants": [{"principals": ["local"], "capabilities": ["danger:destructive"]}]}
    CALL = a_call(DELETE_PATH, {"path": "a"})

    @pytest.mark.promise("policy.destruction-by-name")
    def test_destruction_needs_a_plan(self) -> None:
        verdict = PolicySnapshot.load(self.GRANTED).decide(self.CALL)
        assert (verdict.effect, verdict.kind) == (Effect.REQUIRE_PLAN, ErrorKind.PLAN_REQUIRED)
        assert verdict.rule_id == "destructive_requires_plan"

    def test_destruction_needs_no_plan_when_only_the_annotation_marks_it(self) -> None:
        tool = a_tool("x/overwrite", "write:fs", destructive=True)
        assert PolicySnapshot.load(self.GRANTED).decide(a_call(tool)).effect is ALLOW

    def test_destruction_needs_a_plan_where_a_rule_reads_the_annotation(self) -> None:
        source = policy(rules=[rule("look", "REQUIRE_PLAN", tools=["x/*"], when="tool.destructive")])
        assert source.decide(a_call(a_tool("x/overwrite", destructive=True))).rule_id == "look"
        assert source.decide(a_call(a_tool("x/append"))).effect is ALLOW

    @pytest.mark.parametrize("terms", [{"tools": ["core/fs.deletePath"]}, {"capabilities": ["danger:destructive"]}])
    def test_destruction_needs_no_plan_when_a_rule_names_it(self, terms: dict[str, Any]) -> None:
        source = PolicySnapshot.load({**self.GRANTED, "rules": [rule("ok", "ALLOW", **terms)]})
        assert source.decide(self.CALL).effect is ALLOW

    @pytest.mark.promise("policy.destruction-by-name")
    @pytest.mark.parametrize("terms", [{"tools": ["core/fs.*"]}, {"capabilities": ["*"]}, {}])
    def test_a_star_does_not_lift_the_plan_requirement(self, terms: dict[str, Any]) -> None:
        source = PolicySnapshot.load({**self.GRANTED, "rules": [rule("ok", "ALLOW", **terms)]})
        assert source.decide(self.CALL).effect is Effect.REQUIRE_PLAN

    def test_destruction_needs_no_plan_when_the_document_allows_it(self) -> None:
        source = PolicySnapshot.load({**self.GRANTED, "destructive_requires_plan": False})
        assert source.decide(self.CALL).effect is ALLOW

    def test_an_approval_comes_before_a_plan(self) -> None:
        source = PolicySnapshot.load({**self.GRANTED, "rules": [rule("ask", "REQUIRE_APPROVAL", tools=["core/fs.*"])]})
        assert source.decide(self.CALL).effect is Effect.REQUIRE_APPROVAL


class TestApprovalByDefault:
    SEND = a_call(a_tool("core/media.send", "send:message", "network"), {"channel": "team"})

    @pytest.mark.promise("media.approval-by-default")
    @pytest.mark.parametrize(
        ("rules", "effect"),
        [
            ([], Effect.REQUIRE_APPROVAL),
            ([rule("all", "ALLOW")], Effect.REQUIRE_APPROVAL),
            ([rule("star", "ALLOW", tools=["core/media.*"], capabilities=["send:*"])], Effect.REQUIRE_APPROVAL),
            ([rule("plan", "REQUIRE_PLAN", tools=["core/*"])], Effect.REQUIRE_APPROVAL),
            ([rule("other", "ALLOW", capabilities=["network"])], Effect.REQUIRE_APPROVAL),
            ([rule("tool", "ALLOW", tools=["core/media.send"])], ALLOW),
            ([rule("capability", "ALLOW", capabilities=["send:message"])], ALLOW),
            ([rule("me", "ALLOW", tools=["core/media.send"], when="args.channel == 'me'")], Effect.REQUIRE_APPROVAL),
            ([rule("no", "DENY", tools=["core/*"])], DENY),
        ],
    )
    def test_the_default_approval_is_lifted_by_an_allow_that_names_tool_or_capability_alone(
        self, rules: list[dict[str, Any]], effect: Effect
    ) -> None:
        assert policy(rules=rules).decide(self.SEND).effect is effect

    def test_the_document_sets_which_capabilities_need_approval_by_default(self) -> None:
        assert policy(approval_by_default=[]).decide(self.SEND).effect is ALLOW
        asking = policy(approval_by_default=["write:*"])
        assert asking.decide(self.SEND).effect is ALLOW
        verdict = asking.decide(a_call(WRITE_TEXT, {"path": "a", "text": ""}))
        assert (verdict.rule_id, verdict.kind) == ("approval_by_default", ErrorKind.APPROVAL_REQUIRED)
        assert verdict.details == {"approval": {"approvers": ["*"]}}


class TestConstraints:
    def test_egress_commands_and_sandbox_reach_the_verdict(self) -> None:
        source = policy(
            egress=[
                {"hosts": ["API.GitHub.com", "::1"], "tools": ["core/http.*"]},
                {"hosts": ["other.org"], "principals": ["bot"]},
            ],
            commands=[{"name": "git", "path": "/usr/bin/git", "flags": [{"flag": "-n", "value": "[0-9]+"}]}],
            sandbox={"max_read_bytes": 7},
        )
        verdict = source.decide(a_call(REQUEST, {"url": "https://api.github.com/"}))
        assert verdict.effect is ALLOW
        (egress,) = verdict.constraints.egress
        assert egress.hosts == ("api.github.com", "::1")
        assert [command.path for command in verdict.constraints.commands] == ["/usr/bin/git"]
        assert verdict.constraints.sandbox.max_read_bytes == 7
        assert source.table.constraints([Party("bot")], "core/fs.readText").egress[0].hosts == ("other.org",)

    def test_the_sandbox_of_the_document_has_the_defaults_of_the_domain(self) -> None:
        rule_fields = SandboxRule()
        assert Sandbox(**{name: getattr(rule_fields, name) for name in rule_fields.__struct_fields__}) == Sandbox()

    @pytest.mark.parametrize(
        ("per", "one", "other", "shared"),
        [
            ("principal", ("ann", "t/a"), ("ann", "t/b"), True),
            ("principal", ("ann", "t/a"), ("bob", "t/a"), False),
            ("tool", ("ann", "t/a"), ("bob", "t/a"), True),
            ("principal_tool", ("ann", "t/a"), ("ann", "t/b"), False),
            ("global", ("ann", "t/a"), ("bob", "t/b"), True),
        ],
    )
    def test_limits_share_a_counter_as_per_states(
        self, per: str, one: tuple[str, str], other: tuple[str, str], shared: bool
    ) -> None:
        source = policy(limits=[{"id": "l", "per": per, "quota": 3}])
        first, second = (source.decide(a_call(a_tool(tool), principal=who)).limits for who, tool in (one, other))
        assert (first[0].id == second[0].id) is shared
        assert first[0] == Limit(id=first[0].id, quota=3)

    def test_names_with_separators_cannot_meet_in_one_counter(self) -> None:
        source = policy(limits=[{"id": "l", "per": "principal_tool", "quota": 3}])
        first = source.decide(a_call(a_tool("b|c"), principal="a")).limits[0].id
        second = source.decide(a_call(a_tool("c"), principal="a|b")).limits[0].id
        assert first != second


def test_roles_and_impersonation_come_from_the_document() -> None:
    source = PolicySnapshot.load(
        {
            "grants": [{"principals": ["bot"]}],
            "roles": [
                {"principals": ["ops-*"], "roles": ["operator", "approver"]},
                {"principals": ["idle"], "roles": []},
            ],
            "impersonate": ["ops-1"],
        }
    )
    assert source.principal("ops-1") == Principal(
        "ops-1", frozenset({Role.OPERATOR, Role.APPROVER}), may_impersonate=True
    )
    assert source.principal("bot") == Principal("bot", frozenset({Role.AGENT}))
    assert source.principal("idle").roles == source.principal("stranger").roles == frozenset()


def test_a_principal_with_grants_but_without_the_role_of_an_agent_calls_nothing() -> None:
    """Fails at befa727, where a job that was queued by an agent ran after the role had been taken away."""
    source = PolicySnapshot.load(
        {
            "grants": [{"principals": ["bot"], "capabilities": ["read:*"]}],
            "roles": [{"principals": ["bot"], "roles": ["approver"]}],
        }
    )
    verdict = source.decide(a_call(a_tool(), principal="bot"))
    assert (verdict.effect, verdict.rule_id) == (Effect.DENY, "default")
    assert 'roles: [{principals: ["bot"], roles: [agent]}]' in verdict.operator_remedy
    assert not source.could_allow(Principal("bot"), a_tool())


def test_verdict_that_no_argument_changes_is_known_before_the_call_and_of_a_stranger_none_is() -> None:
    source = PolicySnapshot.load({"grants": [{"principals": ["bot"], "capabilities": ["read:fs"]}]})
    assert source.decide_beforehand(Principal("bot"), TIME_NOW) == source.decide(a_call(TIME_NOW, principal="bot"))
    assert source.decide_beforehand(Principal("bot"), WRITE_TEXT) is None, "the refusal of each call says what it lacks"
    assert source.decide_beforehand(Principal("stranger"), TIME_NOW) is None


def test_the_revision_is_the_digest_of_what_the_document_means() -> None:
    text = "grants:\n- {principals: [a], capabilities: [network]}\n"
    commented = "# who may what\ngrants:\n- capabilities: [network]\n  principals: [a]\nextends: starter\n"
    assert PolicySnapshot.load(text).revision == PolicySnapshot.load(commented).revision
    assert PolicySnapshot.load(text).revision != PolicySnapshot.load(text.replace("[a]", "[b]")).revision
    assert len(PolicySnapshot().revision) == 64


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide_module, "MAX_ROWS", 3)
    source = policy()
    for index in range(10):
        assert source.decide(a_call(a_tool(f"t/{index}"))).effect is ALLOW
    assert len(source._rows) == 3


def test_a_changed_definition_under_the_same_name_is_checked_anew() -> None:
    source = PolicySnapshot()
    assert source.decide(a_call(a_tool("x/tool"))).effect is ALLOW
    assert source.decide(a_call(a_tool("x/tool", "network"))).effect is DENY


CAPABILITIES = st.sampled_from(["read:fs", "write:fs", "network", "danger:destructive", "gpu"])
NAMES = st.sampled_from(["ann", "bob", "bot-1"])
TOOLS = st.sampled_from(["core/fs.readText", "core/http.request", "x/y"])
RULES = st.fixed_dictionaries(
    {
        "effect": st.sampled_from(["ALLOW", "DENY", "REQUIRE_APPROVAL", "REQUIRE_PLAN"]),
        "principals": st.lists(st.sampled_from(["*", "ann", "b*", "bot-1"]), min_size=1, max_size=2),
        "tools": st.lists(st.sampled_from(["*", "core/*", "x/y", "*.request"]), min_size=1, max_size=2),
        "when": st.sampled_from(["", "args.n > 1", "args.missing == 1", "principal.id == 'ann'"]),
    }
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "extends": st.just("none"),
        "grants": st.lists(
            st.fixed_dictionaries(
                {
                    "principals": st.lists(st.sampled_from(["*", "ann", "bo*"]), min_size=1, max_size=2),
                    "capabilities": st.lists(st.one_of(CAPABILITIES, st.sampled_from(["*", "read:*"])), max_size=3),
                }
            ),
            max_size=3,
        ),
        "rules": st.lists(RULES, max_size=4).map(lambda rules: [{"id": f"r{i}", **r} for i, r in enumerate(rules)]),
    }
)
CALLS = st.builds(
    lambda who, tool, needs, n, permissions: a_call(
        a_tool(tool, *needs), {"n": n}, principal=who, permissions=permissions
    ),
    NAMES,
    TOOLS,
    st.frozensets(CAPABILITIES, max_size=2),
    st.integers(0, 3),
    st.none() | st.frozensets(CAPABILITIES, max_size=4),
)


@pytest.mark.promise("policy.deterministic")
@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, CALLS)
def test_decisions_are_deterministic_and_lists_hide_nothing_callable(
    document: dict[str, Any], call: PlannedCall
) -> None:
    source = PolicySnapshot.load(document)
    verdict = source.decide(call)
    assert PolicySnapshot.load(document).decide(call) == verdict == source.decide(call)
    assert verdict.effect is DENY or source.could_allow(call.call.principal, call.spec)


@pytest.mark.promise("policy.deny-overrides")
@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, CALLS)
def test_an_added_deny_always_denies(document: dict[str, Any], call: PlannedCall) -> None:
    document = {**document, "rules": [*document["rules"], {"id": "last", "effect": "DENY"}]}
    assert PolicySnapshot.load(document).decide(call).effect is DENY


@pytest.mark.promise("policy.permissions-narrow")
@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, CALLS, st.frozensets(CAPABILITIES, max_size=4))
def test_permissions_only_ever_narrow(document: dict[str, Any], call: PlannedCall, permissions: frozenset[str]) -> None:
    source = PolicySnapshot.load(document)
    unnarrowed = a_call(call.spec, dict(call.args), principal=call.call.principal)
    narrowed = a_call(call.spec, dict(call.args), principal=call.call.principal, permissions=permissions)
    if source.decide(narrowed).effect is not DENY:
        assert source.decide(narrowed) == source.decide(unnarrowed)


def test_a_limit_binds_only_those_that_it_names() -> None:
    policy = PolicySnapshot.load(
        "extends: none\ngrants: [{principals: ['*'], capabilities: ['read:fs']}]\n"
        "limits: [{id: ann-only, principals: [ann], quota: 1}, {id: far, tools: ['far/*'], quota: 1}]"
    )
    limits = {who: policy.decide(a_call(READ_TEXT, {"path": "a"}, principal=who)).limits for who in ("ann", "bob")}
    assert [limit.quota for limit in limits["ann"]] == [1]
    assert limits["bob"] == ()


@pytest.mark.promise("identity.tokens")
def test_a_job_runs_as_the_principal_of_its_token_under_current_roles() -> None:
    live = LivePolicy(PolicySnapshot.load("extends: none\nroles: [{principals: ['corp:*'], roles: [agent, operator]}]"))
    plain = Principal("corp:bot", frozenset({Role.AUDITOR}), may_impersonate=True)
    assert live.again(plain) is live.principal("corp:bot")
    kept = Principal(
        "corp:acme/ann", frozenset({Role.AGENT, Role.AUDITOR}), issuer="corp", tenant="acme", groups=frozenset({"dev"})
    )
    assert live.again(kept) == replace(kept, roles=frozenset({Role.AGENT}))
