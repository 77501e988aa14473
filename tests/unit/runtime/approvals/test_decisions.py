"""Who may decide what, and how often; who may see what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.runtime.approvals.approval_harness import (
    ANN,
    APPROVED,
    EVE,
    EXPIRES_S,
    LOCAL,
    REJECTED,
    TEAM,
    an_approval_harness,
)
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.event import EventType
from toolhub_service.stores.memory.records import MemoryApprovals

BOTH = Principal("local", frozenset({Role.AGENT, Role.APPROVER}))
"""The one who asks, with the role of those who decide."""


async def refused(call: Awaitable[Any]) -> tuple[Code, str]:
    with pytest.raises(HubFailure) as failure:
        await call
    return failure.value.reason.code, failure.value.reason.name


async def test_decision_is_kept_with_who_when_and_why() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    harness.parts.clock.advance(5)
    after = await harness.decide(approval_id, comment="go ahead")
    assert after == await harness.store.get(approval_id)
    assert (after.state, after.decided_by, after.comment) == (APPROVED, "ann", "go ahead")
    assert after.decided_at_unix_ms - after.requested_at_unix_ms == 5_000
    (event,) = harness.events(EventType.APPROVAL_DECIDED)
    assert (event.principal, event.outcome, event.call_id) == ("ann", "APPROVED", "call-1")
    assert event.attributes == {"approval_id": approval_id, "asked_by": "local", "comment": "go ahead"}


async def test_nobody_decides_their_own_request() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    for decision in (APPROVED, REJECTED):
        assert await refused(harness.decide(approval_id, decision, by=BOTH)) == (
            Code.PERMISSION_DENIED,
            "OWN_REQUEST",
        )
    assert await harness.state(approval_id) is ApprovalState.PENDING
    assert not harness.events(EventType.APPROVAL_DECIDED)


async def test_only_those_whom_the_rule_names_decide() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    assert await refused(harness.decide(approval_id, by=EVE)) == (Code.PERMISSION_DENIED, "NOT_AMONG_APPROVERS")
    assert (await harness.decide(approval_id, by=TEAM)).decided_by == "team-1"


async def test_unknown_approval_cannot_be_decided() -> None:
    harness = an_approval_harness()
    assert await refused(harness.decide("apr_nowhere")) == (Code.NOT_FOUND, "APPROVAL_NOT_FOUND")


async def test_person_who_saw_other_arguments_decides_nothing() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    (asked,) = harness.asked
    assert await refused(harness.decide(approval_id, args_digest="0" * 64)) == (
        Code.FAILED_PRECONDITION,
        "ARGS_DIGEST_DIFFERS",
    )
    assert (await harness.decide(approval_id, args_digest=asked.binding.args_digest)).state is APPROVED


@pytest.mark.parametrize("decision", [APPROVED, REJECTED])
async def test_the_same_person_may_repeat_a_decision(decision: Any) -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    first = await harness.decide(approval_id, decision, comment="first")
    assert await harness.decide(approval_id, decision, comment="second") == first
    assert len(harness.events(EventType.APPROVAL_DECIDED)) == 1


async def test_same_person_may_repeat_a_yes_that_has_been_used_since() -> None:
    harness = an_approval_harness()
    approval_id = await harness.grant()
    assert (await harness.call(number=2, approval_id=approval_id)).ok
    assert (await harness.decide(approval_id)).state is ApprovalState.USED


@pytest.mark.parametrize(
    ("by", "decision"), [(TEAM, APPROVED), (ANN, REJECTED)], ids=["another person", "another decision"]
)
async def test_a_decision_is_final(by: Principal, decision: Any) -> None:
    harness = an_approval_harness()
    approval_id = await harness.grant()
    assert await refused(harness.decide(approval_id, decision, by=by)) == (
        Code.FAILED_PRECONDITION,
        "ALREADY_DECIDED",
    )
    assert await harness.state(approval_id) is APPROVED


async def test_decision_that_comes_too_late_is_refused() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    harness.parts.clock.advance(EXPIRES_S)
    assert await refused(harness.decide(approval_id)) == (Code.FAILED_PRECONDITION, "APPROVAL_EXPIRED")
    assert await harness.state(approval_id) is ApprovalState.EXPIRED


async def test_one_of_many_people_who_decide_at_once_decides() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    people = [Principal(f"team-{number}", frozenset({Role.APPROVER})) for number in range(20)]
    decisions = [
        harness.decide(approval_id, REJECTED if number % 2 else APPROVED, by=person)
        for number, person in enumerate(people)
    ]
    answers = await asyncio.gather(*decisions, return_exceptions=True)
    decided = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(decided) == len(harness.events(EventType.APPROVAL_DECIDED)) == 1
    assert decided[0] == await harness.store.get(approval_id)
    assert all(isinstance(answer, HubFailure) for answer in answers if answer is not decided[0])


async def test_decision_and_the_end_of_time_do_not_both_happen() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    harness.parts.clock.advance(EXPIRES_S)
    late = refused(harness.decide(approval_id))
    refusal, _ = await asyncio.gather(late, harness.approvals.expire_due(harness.parts.clock.unix_ms()))
    assert refusal == (Code.FAILED_PRECONDITION, "APPROVAL_EXPIRED")
    assert len(harness.events(EventType.APPROVAL_EXPIRED)) == 1
    assert not harness.events(EventType.APPROVAL_DECIDED)


async def test_asker_sees_its_own_and_approvers_see_all() -> None:
    harness = an_approval_harness()
    mine, theirs = await harness.ask(), await harness.ask(principal="other")
    assert (await harness.approvals.get(LOCAL, mine)).approval_id == mine
    assert await refused(harness.approvals.get(LOCAL, theirs)) == (Code.NOT_FOUND, "APPROVAL_NOT_FOUND")
    for approver in (ANN, EVE):
        assert {(await harness.approvals.get(approver, id)).approval_id for id in (mine, theirs)} == {mine, theirs}

    async def seen(by: Principal, **where: Any) -> tuple[set[str], int]:
        page, total = await harness.approvals.page(by, ApprovalFilter(**where), after=None, limit=10)
        return {approval.approval_id for approval in page}, total

    assert await seen(ANN) == ({mine, theirs}, 2)
    assert await seen(LOCAL) == ({mine}, 1)
    assert await seen(LOCAL, principal="local") == ({mine}, 1)
    assert await seen(LOCAL, principal="other") == (set(), 0)


async def test_expired_approval_is_shown_as_expired_before_any_sweep() -> None:
    harness = an_approval_harness()
    first, second = await harness.ask("a"), await harness.ask("b")
    harness.parts.clock.advance(EXPIRES_S)
    assert (await harness.approvals.get(ANN, first)).state is ApprovalState.EXPIRED
    pending = ApprovalFilter(states=frozenset({ApprovalState.PENDING}))
    assert await harness.approvals.page(ANN, pending, after=None, limit=10) == ([], 0)
    assert (await harness.approvals.get(ANN, second)).state is ApprovalState.EXPIRED


class AnswerLosingStore(MemoryApprovals):
    """Keeps a decision or a use, and the first answer is lost on the way."""

    def __init__(self, state: ApprovalState) -> None:
        super().__init__()
        self.state = state
        self.lost = 0

    async def put(self, after: Approval) -> bool:
        kept = await super().put(after)
        if kept and after.state is self.state and not self.lost:
            self.lost += 1
            return False
        return kept


async def test_decision_whose_store_answer_was_lost_is_reported_and_recorded_once() -> None:
    harness = an_approval_harness(store=AnswerLosingStore(APPROVED))
    approval_id = await harness.ask()
    after = await harness.decide(approval_id)
    assert (after.state, after.decided_by) == (APPROVED, "ann")
    assert after == await harness.store.get(approval_id)
    assert len(harness.events(EventType.APPROVAL_DECIDED)) == 1


async def test_use_whose_store_answer_was_lost_runs_the_call_once() -> None:
    harness = an_approval_harness(store=AnswerLosingStore(ApprovalState.USED))
    approval_id = await harness.grant()
    assert (await harness.call(number=2, approval_id=approval_id)).ok
    assert not (await harness.call(number=3, approval_id=approval_id)).ok
    assert harness.runs == 1


class OvertakenStore(MemoryApprovals):
    """Another approver says no a moment before the first yes is kept."""

    is_overtaken = False

    async def put(self, after: Approval) -> bool:
        if after.state is APPROVED and not self.is_overtaken:
            self.is_overtaken = True
            assert await super().put(replace(after, state=REJECTED, decided_by="bob"))
        return await super().put(after)


async def test_decision_that_another_one_overtakes_is_refused_and_not_recorded() -> None:
    harness = an_approval_harness(store=OvertakenStore())
    approval_id = await harness.ask()
    assert await refused(harness.decide(approval_id)) == (Code.FAILED_PRECONDITION, "ALREADY_DECIDED")
    assert await harness.state(approval_id) is REJECTED
    assert not harness.events(EventType.APPROVAL_DECIDED)
