"""Whom entries of a policy select, and that a call for others never has more rights than each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.planned_calls import DELETE_PATH, READ_TEXT, TIME_NOW, WRITE_TEXT, a_call, a_tool
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.tool import SEND_MESSAGE
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.explain import explain
from toolhub_service.policy.parsing import InvalidPolicy, parse_policy
from toolhub_service.policy.selectors import Party, Selector, parties_of
from toolhub_service.policy.table import PRECEDENCE

ANN = Principal("corp:ann", issuer="corp", groups=frozenset({"admins", "/dev/hub"}))
BOT_FOR_ANN = Principal("corp:ann", issuer="corp", actors=("corp:bot", "corp:relay"))
SPIFFE = "spiffe://example.org/ns/agents"

MATCHES: list[tuple[str, Party, bool]] = [
    ("*", Party("corp:ann"), True),
    ("corp:*", Party("corp:ann", "corp"), True),
    ("group:corp/admins", Party("corp:ann", "corp", frozenset({"admins"})), True),
    ("group:corp//dev/*", Party("corp:ann", "corp", frozenset({"/dev/hub"})), True),
    # Groups of another issuer, of nobody, and names that only look like a group, an issuer or an actor.
    ("group:corp/admins", Party("evil:ann", "evil", frozenset({"admins"})), False),
    ("group:corp/admins", Party("evil:ann", "evil", frozenset({"corp/admins", "group:corp/admins"})), False),
    ("group:corp/admins", Party("ann", "", frozenset({"admins"})), False),
    ("group:corp/admins", Party("group:corp/admins"), False),
    ("group:corp/admins", Party("group:corp/admins", "group", frozenset({"corp/admins"})), False),
    ("issuer:corp", Party("corp:ann", "corp"), True),
    ("issuer:corp", Party("corp:ann"), False),
    ("issuer:corp", Party("issuer:corp"), False),
    ("issuer:corp", Party("corp2:ann", "corp2"), False),
    ("actor:corp:bot", Party("corp:ann", "corp", actor="corp:bot"), True),
    ("actor:corp:*", Party("corp:ann", "corp", actor="corp:bot"), True),
    ("actor:corp:bot", Party("corp:bot", "corp"), False),
    ("actor:corp:bot", Party("actor:corp:bot"), False),
    ("actor:*", Party("corp:ann"), False),
    (f"actor:{SPIFFE}/*", Party("corp:ann", actor=f"{SPIFFE}/a"), True),
    (f"{SPIFFE}/*", Party(f"{SPIFFE}/a"), True),
    (f"{SPIFFE}/*", Party(f"{SPIFFE}/a/b"), False),
    (f"{SPIFFE}/*", Party(f"{SPIFFE}/"), False),
    (f"{SPIFFE}/*", Party(SPIFFE), False),
    (f"{SPIFFE}/*", Party(f"{SPIFFE}-of-others/a"), False),
    (f"{SPIFFE}*", Party(f"{SPIFFE}-of-others/a"), False),
    (f"{SPIFFE}/*", Party("spiffe://example.org.evil.com/ns/agents/a"), False),
    (f"{SPIFFE}/**", Party(f"{SPIFFE}/a"), True),
    (f"{SPIFFE}/**", Party(f"{SPIFFE}/a/b/c"), True),
    (f"{SPIFFE}/**", Party(f"{SPIFFE}/a//c"), False),
    (f"{SPIFFE}/**", Party(SPIFFE), False),
    (f"{SPIFFE}/**", Party(f"{SPIFFE}2/a"), False),
    ("spiffe://example.org/ns/*/sa/web-*", Party("spiffe://example.org/ns/a/sa/web-1"), True),
    ("spiffe://example.org/ns/*/sa/web-*", Party("spiffe://example.org/ns/a/b/sa/web-1"), False),
    (SPIFFE, Party(SPIFFE), True),
]


@pytest.mark.promise("policy.selectors")
def test_selectors_match_what_a_credential_proves_and_no_name_that_looks_alike() -> None:
    wrong = [(text, party) for text, party, meant in MATCHES if Selector(text).matches(party) is not meant]
    assert wrong == []


@pytest.mark.promise("policy.selectors")
def test_selectors_that_could_never_match_make_the_file_invalid() -> None:
    for text in (
        *("group:admins", "group:*/admins", "group:corp/", "group:Corp/admins", "issuer:*", "issuer:", "actor:"),
        *("actor:group:corp/admins", "actor:actor:x", "spiffe://*/ns", "spiffe:///ns", "spiffe://a*/ns"),
        *("spiffe://a/**/b", "spiffe://a/x**", "spiffe://a//b", "spiffe://a/b/", "actor:spiffe://*/a"),
    ):
        documents: list[Any] = [
            {"grants": [{"principals": ["ann", text]}]},
            {"rules": [{"id": "r", "effect": "REQUIRE_APPROVAL", "approval": {"approvers": [text]}}]},
            {"impersonate": [text]},
        ]
        for document in documents:
            with pytest.raises(InvalidPolicy) as refused:
                parse_policy(document)
            assert text in refused.value.problem, text


def test_keys_differ_wherever_a_policy_could_distinguish_two_principals() -> None:
    alike = [Principal("a"), Principal("a", frozenset({Role.OPERATOR}), may_impersonate=True)]
    assert {each.key for each in alike} == {"a"}
    others = [
        Principal("a", issuer="a"),
        Principal("a", tenant="a"),
        Principal("a", actors=("a",)),
        Principal("a", actors=("a", "a")),
        Principal("a", issuer="a", groups=frozenset({"a"})),
        Principal("a", issuer="a", groups=frozenset({"a", "b"})),
        Principal("a", issuer="a", groups=frozenset({"a\0b"})),
        Principal("a", issuer="a", groups=frozenset({"a', 'b"})),
    ]
    assert len({each.key for each in [*alike, *others]}) == len(others) + 1


@pytest.mark.promise("policy.selectors")
def test_policy_fields_match_groups_issuers_actors_and_paths() -> None:
    policy = PolicySnapshot.load(
        {
            "extends": "none",
            "grants": [
                {"principals": ["group:corp/admins"], "capabilities": ["write:fs"]},
                {"principals": ["issuer:corp", f"{SPIFFE}/*"], "capabilities": ["read:fs"]},
            ],
            "roles": [{"principals": ["group:corp/admins"], "roles": ["agent", "operator"]}],
            "rules": [{"id": "slow", "effect": "DENY", "principals": ["actor:corp:bot"], "tools": ["core/slow"]}],
            "limits": [{"id": "few", "principals": ["issuer:corp"], "rate_per_s": 1}],
        }
    )
    assert policy.apply_to_principal(ANN).roles == frozenset({Role.AGENT})  # at most the roles that it comes with
    assert policy.apply_to_principal(
        Principal("corp:ann", frozenset(Role), issuer="corp", groups=ANN.groups)
    ).roles == {
        Role.AGENT,
        Role.OPERATOR,
    }
    plain = Principal("corp:bob", issuer="corp")
    allowed = {
        (who.id, tool.name)
        for who in (ANN, plain, Principal("corp:ann"), Principal(f"{SPIFFE}/a"), Principal(f"{SPIFFE}/a/b"))
        for tool in (READ_TEXT, WRITE_TEXT)
        if policy.decide(a_call(tool, {"path": "a"}, principal=who)).effect is Effect.ALLOW
    }
    assert allowed == {
        (ANN.id, READ_TEXT.name),
        (ANN.id, WRITE_TEXT.name),
        (plain.id, READ_TEXT.name),
        (f"{SPIFFE}/a", READ_TEXT.name),
    }
    assert [limit.id for limit in policy.limits(plain, READ_TEXT)] == ["few|corp%3Abob"]
    assert policy.limits(Principal("corp:bob"), READ_TEXT) == ()


@pytest.mark.promise("policy.delegation")
def test_an_actor_needs_the_rights_of_the_call_and_is_named_where_it_lacks_them() -> None:
    grants: list[dict[str, Any]] = [{"principals": ["corp:ann"], "capabilities": ["read:fs", "write:fs"]}]

    def verdict(
        *more: dict[str, Any], principal: Principal = BOT_FOR_ANN, tool: Any = WRITE_TEXT, **context: Any
    ) -> Any:
        policy = PolicySnapshot.load({"extends": "none", "grants": [*grants, *more], "impersonate": ["gateway"]})
        call = a_call(tool, {"path": "a"}, principal=principal, **context)
        explained = explain(policy, call)
        assert explained.verdict == policy.decide(call)
        assert policy.could_allow(principal, tool) or explained.verdict.effect is Effect.DENY or context
        return explained.verdict

    unknown = verdict(tool=TIME_NOW)
    assert (unknown.effect, unknown.details["principal"]) == (Effect.DENY, "corp:bot")
    assert "corp:bot, who acts for the caller," in unknown.reason
    bot = {"principals": ["corp:bot"], "capabilities": ["read:fs"]}
    assert verdict(bot, tool=READ_TEXT).details["principal"] == "corp:relay"
    both = {"principals": ["corp:bot", "corp:relay"], "capabilities": ["read:fs"]}
    assert verdict(both, tool=READ_TEXT).effect is Effect.ALLOW
    lacking = verdict(both)
    assert (lacking.rule_id, lacking.details) == ("capabilities", {"missing_capabilities": ["write:fs"]})
    assert lacking.operator_remedy.count('capabilities: ["write:fs"]') == 2

    # The same where a message names another: as far as the policy knows it, and not merely as anybody.
    gateway = Principal("gateway")
    all_rights = {"principals": ["gateway"], "capabilities": ["*"]}
    for_bob = {"principals": ["bob"], "capabilities": ["read:fs"]}
    named: dict[str, Any] = {"principal": gateway, "user_id": "bob"}
    assert verdict(all_rights, **named).effect is Effect.ALLOW
    assert verdict(all_rights, for_bob, tool=READ_TEXT, **named).effect is Effect.ALLOW
    refused = verdict(all_rights, for_bob, **named)
    assert refused.reason.startswith("bob, for whom the caller acts, lacks write:fs")
    assert verdict(all_rights, {"principals": ["*"], "capabilities": []}, **named).effect is Effect.ALLOW
    assert verdict(all_rights, for_bob, principal=Principal("other"), user_id="bob").rule_id == "identity"


# What holds of every policy.

WHO = st.sampled_from(["*", "ann", "bot", "issuer:corp", "group:corp/dev", "actor:bot", "actor:*"])
NEEDS = ["read:fs", "write:fs", "danger:destructive", SEND_MESSAGE]
TOOLS = [READ_TEXT, WRITE_TEXT, DELETE_PATH, a_tool("core/media.send", SEND_MESSAGE), TIME_NOW]
DOCUMENTS = st.fixed_dictionaries(
    {
        "extends": st.just("none"),
        "grants": st.lists(
            st.fixed_dictionaries(
                {
                    "principals": st.lists(WHO, min_size=1, max_size=3),
                    "capabilities": st.lists(st.sampled_from([*NEEDS, "*"]), max_size=4),
                }
            ),
            min_size=1,
            max_size=5,
        ),
        "roles": st.lists(
            st.fixed_dictionaries(
                {
                    "principals": st.lists(WHO, min_size=1, max_size=2),
                    "roles": st.lists(st.sampled_from(["agent", "operator", "approver"]), unique=True),
                }
            ),
            max_size=2,
        ),
        "rules": st.lists(
            st.fixed_dictionaries(
                {
                    "effect": st.sampled_from([effect.value for effect in Effect]),
                    "principals": st.lists(WHO, min_size=1, max_size=2),
                    "tools": st.lists(st.sampled_from(["*", *(tool.name for tool in TOOLS)]), min_size=1, max_size=2),
                },
                optional={"when": st.sampled_from(["args.n > 1", "has(args.path)"])},
            ),
            max_size=5,
        ).map(lambda rules: [{"id": f"r{index}", **rule} for index, rule in enumerate(rules)]),
        "impersonate": st.just(["*"]),
    }
)


@pytest.mark.promise("policy.delegation")
@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.sampled_from(TOOLS), st.integers(0, 2), st.booleans(), st.booleans())
def test_a_call_for_another_is_never_allowed_more_than_each_of_them(
    document: dict[str, Any], tool: Any, n: int, has_group: bool, is_spoken_for: bool
) -> None:
    """Each as the call sees it: the one for whom is acted has an actor, the other acts itself."""
    policy = PolicySnapshot.load(document)
    groups, context = frozenset({"dev"} if has_group else ()), dict[str, Any]()
    if is_spoken_for:
        principal, context = Principal("bot"), dict[str, Any](user_id="ann")
        spoken_for = policy.table.represented_party("ann", "bot")
        if spoken_for is None or not spoken_for.is_known:
            return
    else:
        principal = Principal("ann", issuer="corp", groups=groups, actors=("bot",))
    call = a_call(tool, {"n": n, "path": "a"}, principal=principal, **context)
    together = policy.decide(call).effect
    parties = parties_of(principal, policy.others_of(call))
    assert len(parties) == 2
    roles, whole = policy.table.roles_of(parties), policy.table.row(parties, tool)
    for party in parties:
        alone = policy.table.row([party], tool)
        assert roles <= policy.table.roles_of([party])
        assert whole.needs - set(whole.missing) <= alone.needs - set(alone.missing)
        assert set(whole.fallback.constraints.egress) <= set(alone.fallback.constraints.egress)
        assert PRECEDENCE.index(together) <= PRECEDENCE.index(_alone(policy, call, alone))


def _alone(policy: PolicySnapshot, call: Any, row: Any) -> Effect:
    """What `decide` makes of a row."""
    refusal = policy.gate(call, row) or policy.first_verdict(row.denies, call)
    return (refusal or policy.first_verdict(row.others, call) or row.fallback).effect
