"""Plan digests commit exactly what was shown, and name the difference otherwise."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.fakes.planned_calls import DELETE_PATH, a_call, a_tool
from toolhub_service.domain.call import Preconditions
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.runtime import plan_digest
from toolhub_service.runtime.plan_digest import check, commit_verdict, is_stale, seal, shorten

KEY = b"k" * 32
NOW, LATER = 1_000_000, 1_600_000
POLICY: dict[str, Any] = {"grants": [{"principals": ["*"], "capabilities": ["*", "danger:destructive"]}]}
SOURCE = PolicySnapshot.load(POLICY)
SHOWN = a_call(DELETE_PATH, {"path": "old"})
VERDICT = SOURCE.decide(SHOWN)
DIGEST = seal(SHOWN, VERDICT, LATER, KEY)
SHORT = shorten(DIGEST, KEY)


def differs(
    digest: str = DIGEST, planned: Any = SHOWN, verdict: Any = VERDICT, now: int = NOW, key: bytes = KEY
) -> Any:
    with pytest.raises(ToolFailure) as caught:
        check(digest, planned, verdict, now, key)
    assert caught.value.error.kind is ErrorKind.PLAN_REQUIRED
    return caught.value.error.details["differs"]


def test_a_plan_makes_the_verdict_that_asked_for_it_an_allow() -> None:
    assert VERDICT.effect is Effect.REQUIRE_PLAN
    check(DIGEST, SHOWN, VERDICT, NOW, KEY)
    verdict = commit_verdict(VERDICT)
    assert verdict.effect is Effect.ALLOW
    assert (verdict.rule_id, verdict.constraints) == (VERDICT.rule_id, VERDICT.constraints)


@pytest.mark.promise("plan.never-lifts-a-deny")
def test_a_plan_lifts_no_other_refusal() -> None:
    denied = structs.replace(VERDICT, effect=Effect.DENY)
    assert commit_verdict(denied) == denied


def test_other_arguments_are_named() -> None:
    assert differs(planned=a_call(DELETE_PATH, {"path": "new"})) == ["arguments"]


def test_another_definition_is_named() -> None:
    changed = a_tool("core/fs.deletePath", "write:fs", "danger:destructive", destructive=True, idempotent=True)
    assert differs(planned=a_call(changed, {"path": "old"})) == ["tool definition"]


def test_another_caller_is_named() -> None:
    assert differs(planned=a_call(DELETE_PATH, {"path": "old"}, principal="ann")) == ["principal"]


def test_another_policy_or_rule_is_named() -> None:
    changed = PolicySnapshot.load({**POLICY, "sandbox": {"max_read_bytes": 1}})
    assert differs(verdict=changed.decide(SHOWN)) == ["policy verdict"]
    assert differs(verdict=structs.replace(VERDICT, rule_id="other")) == ["policy verdict"]
    assert differs(verdict=structs.replace(VERDICT, effect=Effect.REQUIRE_APPROVAL)) == ["policy verdict"]


def test_everything_that_differs_is_named() -> None:
    other = a_call(DELETE_PATH, {"path": "new"}, principal="ann")
    assert differs(planned=other) == ["principal", "arguments"]


def test_a_plan_expires() -> None:
    check(DIGEST, SHOWN, VERDICT, LATER - 1, KEY)
    assert differs(now=LATER) == ["expired"]


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "v1",
        "v1.1.2.3",
        "x" * 10_000,
        "v1.9999999.a-b-c-d.mac",
        "é.é.é.é",
        DIGEST + "0",
        DIGEST[:-1],
        DIGEST.upper(),
    ],
)
def test_a_plan_that_this_hub_did_not_make_is_forged(digest: str) -> None:
    assert differs(digest=digest) == ["forged"]


@pytest.mark.promise("plan.expires-and-cannot-be-forged")
def test_a_plans_lifetime_cannot_be_prolonged() -> None:
    assert differs(digest=DIGEST.replace(str(LATER), str(LATER * 2))) == ["forged"]


def test_another_key_makes_another_digest() -> None:
    assert differs(key=b"other" * 8) == ["forged"]
    assert seal(SHOWN, VERDICT, LATER, b"other" * 8) != DIGEST


def test_any_replica_with_the_key_makes_the_same_digest() -> None:
    assert seal(SHOWN, PolicySnapshot.load(POLICY).decide(SHOWN), LATER, KEY) == DIGEST
    assert len(DIGEST) < 256


def test_a_plan_without_an_arguments_digest_is_a_defect() -> None:
    with pytest.raises(ValueError, match="digest"):
        seal(SHOWN._replace(args_digest=""), VERDICT, LATER, KEY)


@given(st.text(max_size=200))
def test_no_text_passes_for_a_digest(text: str) -> None:
    assert differs(digest=text) == ["forged"]


@given(st.integers(0, len(DIGEST) - 1), st.sampled_from("0aZ.-_"))
def test_a_changed_signature_is_refused(at: int, sign: str) -> None:
    changed = DIGEST[:at] + sign + DIGEST[at + 1 :]
    if changed != DIGEST:
        assert differs(digest=changed) == ["forged"]


def test_digest_of_an_earlier_version_is_distinguished_from_a_forged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_digest, "VERSION", "v1")
    earlier = seal(SHOWN, VERDICT, LATER, KEY)
    monkeypatch.undo()
    assert differs(earlier) == ["version"]


@pytest.mark.parametrize(
    ("there", "named"), [({"workspace": "request/ann/other"}, ["workspace"]), ({"state": "b"}, [])]
)
def test_another_workspace_is_named_and_another_state_is_stale(there: dict[str, Any], named: list[str]) -> None:
    shown = SHOWN._replace(preconditions=Preconditions("request/ann/work", "a"))
    digest, now = seal(shown, VERDICT, LATER, KEY), shown._replace(preconditions=shown.preconditions._replace(**there))
    if named:
        assert differs(digest, now) == named
        return
    check(digest, now, VERDICT, NOW, KEY)
    assert plan_digest.is_stale(digest, now, VERDICT, KEY)
    assert not plan_digest.is_stale(digest, shown, VERDICT, KEY)


# Short digests, which models copy.


def test_a_short_digest_commits_the_same_plan_until_it_expires() -> None:
    assert re.fullmatch("plan_[a-z2-7]{40}", SHORT)
    check(SHORT, SHOWN, VERDICT, NOW, KEY)
    assert differs(SHORT, now=LATER) == ["expired"]


@pytest.mark.promise("plan.expires-and-cannot-be-forged")
def test_a_short_digest_binds_all_that_a_long_one_does() -> None:
    other_verdict = structs.replace(VERDICT, rule_id="other")
    other_tool = a_tool("core/fs.deletePath", "write:fs", "danger:destructive", destructive=True, idempotent=True)
    elsewhere = SHOWN._replace(preconditions=Preconditions("request/ann/other", SHOWN.preconditions.state))
    assert differs(SHORT, a_call(DELETE_PATH, {"path": "new"})) == ["call"]
    assert differs(SHORT, a_call(other_tool, {"path": "old"})) == ["call"]
    assert differs(SHORT, a_call(DELETE_PATH, {"path": "old"}, principal="ann")) == ["call"]
    assert differs(SHORT, elsewhere) == ["call"]
    assert differs(SHORT, verdict=other_verdict) == ["call"]
    assert differs(SHORT, key=b"other" * 8) == ["call"]


def test_a_short_digest_of_another_state_is_stale() -> None:
    shown = SHOWN._replace(preconditions=Preconditions("request/ann/work", "a"))
    now = shown._replace(preconditions=Preconditions("request/ann/work", "b"))
    short = shorten(seal(shown, VERDICT, LATER, KEY), KEY)
    check(short, now, VERDICT, NOW, KEY)
    assert is_stale(short, now, VERDICT, KEY)
    assert not is_stale(short, shown, VERDICT, KEY)


@given(st.integers(len("plan_"), len(SHORT) - 1), st.sampled_from("abz27"))
def test_a_short_digest_with_another_sign_is_refused(at: int, sign: str) -> None:
    changed = SHORT[:at] + sign + SHORT[at + 1 :]
    if changed != SHORT:
        assert differs(changed) in (["call"], ["expired"])


@pytest.mark.parametrize("digest", ["plan_", "plan_" + "a" * 39, "plan_" + "1" * 40, "plan_" + "é" * 40, "plan_" * 999])
def test_a_text_that_is_no_short_digest_is_forged(digest: str) -> None:
    assert differs(digest) == ["forged"]


def test_only_a_digest_of_this_hub_is_shortened() -> None:
    with pytest.raises(ToolFailure):
        shorten(DIGEST[:-1], KEY)
