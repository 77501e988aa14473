"""Reload is whole or not at all; a shadow watches and never decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.planned_calls import READ_TEXT, REQUEST, TIME_NOW, a_call
from tests.ports.policy_source_suite import PolicySourceSuite
from toolhub_service.domain.call import PlannedCall, Principal
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.live import Difference, LivePolicy

NO_TIME: dict[str, Any] = {"rules": [{"id": "no-time", "effect": "DENY", "tools": ["core/util.*"]}]}
CALL = a_call(TIME_NOW)


class TestLiveAsPolicySource(PolicySourceSuite):
    def source(self) -> PolicySource:
        return LivePolicy()

    def calls(self) -> Sequence[PlannedCall]:
        return [CALL, a_call(READ_TEXT, {"path": "a"}), a_call(REQUEST, {"url": "https://x.org"})]


def test_a_reload_puts_the_new_policy_in_force() -> None:
    live = LivePolicy()
    before = live.revision
    assert live.decide(CALL).effect is Effect.ALLOW
    change = live.replace(NO_TIME)
    assert (change.applied, change.previous_revision, change.revision) == (True, before, live.revision)
    assert live.revision != before
    assert live.decide(CALL).rule_id == "no-time"
    assert not live.could_allow(Principal("local"), TIME_NOW)


@pytest.mark.parametrize("text", ["grants: [", "graints: []", "rules:\n- {id: a, effect: DENY, when: 'nobody'}"])
def test_a_document_that_is_no_policy_is_refused_with_a_reason_and_the_old_one_stays(text: str) -> None:
    live = LivePolicy(PolicySnapshot.load(NO_TIME))
    before = live.revision
    change = live.replace(text)
    assert (change.applied, change.revision, live.revision) == (False, before, before)
    assert "line" in change.problem
    assert live.decide(CALL).rule_id == "no-time"


@pytest.mark.promise("policy.shadow-never-decides")
def test_a_shadow_reports_differences_and_changes_no_verdict() -> None:
    seen: list[Difference] = []
    live = LivePolicy(on_difference=seen.append)
    assert live.shadow(NO_TIME).applied
    assert live.decide(CALL).effect is Effect.ALLOW
    assert live.decide(a_call(READ_TEXT, {"path": "a"})).effect is Effect.ALLOW
    (difference,) = seen
    assert (difference.live.effect, difference.shadow.effect) == (Effect.ALLOW, Effect.DENY)
    assert difference.shadow.policy_revision == live.shadow_revision != live.revision
    live.shadow(None)
    live.decide(CALL)
    assert (len(seen), live.shadow_revision) == (1, "")


@pytest.mark.promise("policy.shadow-never-decides")
def test_a_permissive_shadow_never_turns_a_deny_into_an_allow() -> None:
    live = LivePolicy(PolicySnapshot.load(NO_TIME), on_difference=lambda _: None)
    live.shadow({})
    assert live.decide(CALL).effect is Effect.DENY


def test_a_shadow_that_is_no_policy_leaves_the_candidate_as_it_was() -> None:
    live = LivePolicy()
    live.shadow(NO_TIME)
    candidate = live.shadow_revision
    assert not live.shadow("grants: [").applied
    assert live.shadow_revision == candidate


def test_a_failing_recorder_is_counted_and_changes_no_verdict() -> None:
    def fail(difference: Difference) -> None:
        raise RuntimeError("disk full")

    live = LivePolicy(on_difference=fail)
    live.shadow(NO_TIME)
    assert live.decide(CALL).effect is Effect.ALLOW
    assert live.shadow_faults == 1


@pytest.mark.promise("policy.atomic-reload")
@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["good", "bad", "decide"]), max_size=12))
def test_every_verdict_is_of_the_last_good_document(steps: list[str]) -> None:
    live, good = LivePolicy(), 0
    expected = live.revision
    for step in steps:
        if step == "good":
            good += 1
            expected = live.replace({"sandbox": {"max_read_bytes": good}}).revision
        elif step == "bad":
            assert not live.replace("graints: []").applied
        verdict = live.decide(CALL)
        assert verdict.policy_revision == live.revision == expected
        assert verdict.constraints.sandbox.max_read_bytes == (good or 5 * 1024 * 1024)


@pytest.mark.promise("identity.keys-narrow")
def test_the_tenant_of_a_key_is_that_of_its_job() -> None:
    roles = [{"principals": ["robot"], "roles": ["agent", "operator"]}]
    live = LivePolicy(PolicySnapshot.load({"roles": roles}))
    whole = live.principal("robot")
    assert live.again(replace(whole)) is whole
    assert live.again(replace(whole, tenant="acme")).tenant == "acme", "where the policy has no tenants, a key has"
    live.replace({"roles": roles, "tenants": [{"name": "globex", "principals": ["robot"]}]})
    assert live.again(replace(whole, tenant="acme")).tenant == "globex"
