"""One question, one person's answer, one use: what an approval is good for, and what it is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.fakes.planned_calls import a_call as a_planned_call
from tests.unit.runtime.approvals.approval_harness import (
    ANN,
    APPROVED,
    EXPIRES_S,
    LOCAL,
    POLICY,
    REJECTED,
    TEAM,
    ApprovalHarness,
    a_write,
    an_approval_harness,
)
from tests.unit.runtime.pipeline_harness import READ, WRITE, a_tool
from toolhub_service.domain.approval import ApprovalFilter, ApprovalState
from toolhub_service.domain.call import Mode
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.event import EventType
from toolhub_service.domain.result import Plan
from toolhub_service.domain.verdict import Effect, Verdict

ERASE = a_tool("test/text.erase", capability="write:fs", destructive=True)


async def asked_anew(harness: ApprovalHarness, old: str, **call: object) -> list[str]:
    """What differs, of a call that names `old` and is refused with another approval."""
    error = await harness.refused(approval_id=old, **call)  # type: ignore[arg-type]
    assert error.kind is ErrorKind.APPROVAL_REQUIRED
    assert error.details["approval_id"] != old
    assert harness.runs == 0
    differs = error.details["differs"]
    assert isinstance(differs, list)
    assert all(name in error.message for name in differs)
    return differs


class TestAsking:
    async def test_call_that_needs_a_yes_is_refused_with_the_question_it_opened(self) -> None:
        harness = an_approval_harness()
        error = await harness.refused("hello", purpose="tidy up")
        (approval,) = harness.asked
        assert error.kind is ErrorKind.APPROVAL_REQUIRED
        assert not error.is_retryable
        assert error.details["approval_id"] == approval.approval_id
        assert error.details["rule_id"] == "writes-need-a-yes"
        assert error.details["policy_revision"] == harness.parts.policy.revision
        assert error.details["approval"] == {"expires_s": EXPIRES_S, "approvers": ["ann", "team-*"]}
        assert "approval_id" in str(error.details["remedy"])
        assert error.details["expires_at"] == "2023-11-14T22:23:20Z"
        assert approval.approval_id in error.message
        assert "Writing changes what others read." in error.message
        assert (approval.state, approval.version) == (ApprovalState.PENDING, 1)
        assert approval.purpose == "tidy up"
        assert approval.args_summary_json == '{"text":"hello","times":1}', "completed, as they would run"
        assert approval.approvers == ("ann", "team-*")
        assert approval.expires_at_unix_ms - approval.requested_at_unix_ms == EXPIRES_S * 1_000
        assert harness.runs == 0

    async def test_model_that_repeats_itself_asks_once(self) -> None:
        harness = an_approval_harness()
        ids = {await harness.ask(number=number) for number in range(5)}
        assert len(ids) == len(harness.asked) == len(harness.events(EventType.APPROVAL_ASKED)) == 1

    async def test_fifty_equal_calls_at_once_ask_once(self) -> None:
        harness = an_approval_harness()
        ids = await asyncio.gather(*(harness.ask(number=number) for number in range(50)))
        assert len(set(ids)) == len(harness.asked) == 1

    async def test_another_callers_equal_call_is_another_question(self) -> None:
        harness = an_approval_harness()
        assert await harness.ask() != await harness.ask(principal="other")

    async def test_granted_one_is_not_used_unless_it_is_named(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        error = await harness.refused(number=2)
        assert (error.kind, error.details["approval_id"]) == (ErrorKind.APPROVAL_REQUIRED, approval_id)
        assert error.details["approval_state"] == "APPROVED"
        assert "granted" in error.message
        assert await harness.state(approval_id) is ApprovalState.APPROVED
        assert harness.runs == 0

    async def test_question_is_on_record_before_anybody_is_notified(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.ask(purpose="tidy up")
        (event,) = harness.events(EventType.APPROVAL_ASKED)
        assert (event.principal, event.tool, event.call_id) == ("local", WRITE.name, "call-1")
        assert (event.rule_id, event.outcome) == ("writes-need-a-yes", "PENDING")
        assert (event.attributes["approval_id"], event.purpose) == (approval_id, "tidy up")
        assert event.args_digest
        assert "audit.durably" in harness.parts.visited

    async def test_question_that_cannot_be_recorded_is_taken_back(self) -> None:
        harness = an_approval_harness()
        harness.parts.audit.broken = True
        assert (await harness.refused()).kind is ErrorKind.IO_ERROR
        assert not harness.asked
        harness.parts.audit.broken = False
        await harness.ask(number=2)
        assert len(harness.asked) == len(harness.events(EventType.APPROVAL_ASKED)) == 1

    async def test_caller_who_leaves_while_the_disk_is_slow_has_asked_anyway(self) -> None:
        harness = an_approval_harness()
        harness.parts.audit.gate = asyncio.Event()
        asking = asyncio.create_task(harness.call())
        await harness.parts.audit.waiting.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(harness.asked) == len(harness.events(EventType.APPROVAL_ASKED)) == 1

    async def test_too_many_open_questions_of_one_caller_are_refused(self) -> None:
        harness = an_approval_harness(max_pending=3)
        for number in range(3):
            await harness.ask(str(number))
        error = await harness.refused("one more")
        assert (error.kind, error.is_retryable) == (ErrorKind.RATE_LIMITED, True)
        assert await harness.ask("1"), "an equal one stands already"
        assert await harness.ask("one more", principal="other"), "others are not held up"
        assert len(harness.asked) == 4

    async def test_terms_default_when_the_rule_names_none(self) -> None:
        harness = an_approval_harness(default_expires_s=120.0)
        verdict = Verdict(Effect.REQUIRE_APPROVAL, "r" * 64, "guard", "Because.")
        approval = await harness.approvals.ask(a_planned_call(), verdict)
        assert approval.expires_at_unix_ms - approval.requested_at_unix_ms == 120_000
        assert approval.approvers == ()

    async def test_dry_run_asks_nobody(self) -> None:
        harness = an_approval_harness()
        plan = await harness.parts.ask(WRITE, {"text": "hello"}, mode=Mode.DRY_RUN)
        assert isinstance(plan, Plan)
        assert not harness.asked


class TestUse:
    async def test_granted_call_runs_once(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        answer = await harness.call(number=2, approval_id=approval_id)
        assert answer.ok
        again = await harness.refused(number=3, approval_id=approval_id)
        assert again.kind is ErrorKind.APPROVAL_REQUIRED
        assert "already been used" in again.message
        assert again.details["approval_id"] != approval_id
        assert harness.runs == 1
        used = await harness.store.get(approval_id)
        assert used is not None
        assert (used.state, used.used_by_call_id, used.decided_by) == (ApprovalState.USED, "call-2", "ann")

    async def test_approval_of_a_call_that_only_reads_is_used_up_too(self) -> None:
        policy = POLICY.replace("capabilities: [write:fs]\n", "capabilities: [read:fs]\n")
        harness = an_approval_harness(policy=policy, tools=(READ,))
        approval_id = await harness.grant(spec=READ)
        assert (await harness.call(number=2, spec=READ, approval_id=approval_id)).ok
        again = await harness.refused(number=3, spec=READ, approval_id=approval_id)
        assert (again.kind, harness.runs) == (ErrorKind.APPROVAL_REQUIRED, 1)

    @pytest.mark.promise("approval.four-events")
    async def test_asked_approved_executed_and_returned_are_four_events(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        before = len(harness.parts.events)
        await harness.call(number=2, approval_id=approval_id)
        types = [event.type for event in harness.parts.events]
        assert types[: before + 3][-3:] == [EventType.APPROVAL_USED, EventType.TOOL_CALLED, EventType.TOOL_RESULT]
        assert types.index(EventType.APPROVAL_ASKED) < types.index(EventType.APPROVAL_DECIDED) < before
        (used,) = harness.events(EventType.APPROVAL_USED)
        assert (used.call_id, used.outcome) == ("call-2", "USED")
        assert used.attributes == {"approval_id": approval_id, "decided_by": "ann", "asked_by_call": "call-1"}

    @pytest.mark.parametrize("concurrent", [50])
    async def test_exactly_one_of_fifty_calls_with_one_approval_runs(self, concurrent: int) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        calls = [harness.call(number=number, approval_id=approval_id) for number in range(concurrent)]
        answers = await asyncio.gather(*calls)
        assert sum(answer.ok for answer in answers) == harness.runs == 1
        refused = [answer.error for answer in answers if answer.error is not None]
        assert {error.kind for error in refused} == {ErrorKind.APPROVAL_REQUIRED}
        assert all("already been used" in error.message for error in refused)
        assert len(harness.events(EventType.APPROVAL_USED)) == 1

    async def test_approval_is_not_spent_on_a_call_that_has_no_budget(self) -> None:
        policy = POLICY + "limits: [{id: slow, rate_per_s: 0.001, burst: 1}]\n"
        harness = an_approval_harness(policy=policy)
        first, second = await harness.grant("a"), await harness.grant("b")
        assert (await harness.call("a", approval_id=first)).ok
        assert (await harness.refused("b", approval_id=second)).kind is ErrorKind.RATE_LIMITED
        assert await harness.state(second) is ApprovalState.APPROVED

    async def test_an_approval_use_that_cannot_be_recorded_runs_nothing(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        harness.parts.audit.broken = True
        assert (await harness.refused(approval_id=approval_id)).kind is ErrorKind.IO_ERROR
        assert harness.runs == 0

    @pytest.mark.promise("approval.exact-call")
    async def test_unknown_or_foreign_approval_is_answered_alike(self) -> None:
        harness = an_approval_harness()
        theirs = await harness.grant(principal="other")
        foreign, unknown = await harness.refused(approval_id=theirs), await harness.refused(approval_id="apr_nowhere")
        assert foreign.kind is unknown.kind is ErrorKind.APPROVAL_REQUIRED
        assert foreign.message.replace(theirs, "X") == unknown.message.replace("apr_nowhere", "X")
        assert await harness.state(theirs) is ApprovalState.APPROVED
        assert harness.runs == 0

    async def test_an_undecided_approval_is_to_be_waited_for(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.ask()
        error = await harness.refused(number=2, approval_id=approval_id)
        assert (error.kind, error.details["approval_id"]) == (ErrorKind.APPROVAL_REQUIRED, approval_id)
        assert "Nobody has decided yet" in error.message


class TestExactMatch:
    @pytest.mark.promise("approval.exact-call")
    async def test_other_arguments_are_another_call(self) -> None:
        harness = an_approval_harness()
        assert await asked_anew(harness, await harness.grant("hello"), text="bye", number=2) == ["arguments"]

    async def test_defaults_spelt_out_are_the_same_arguments(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant("hello")
        assert (await harness.call(args={"times": 1, "text": "hello"}, approval_id=approval_id)).ok

    @pytest.mark.promise("approval.exact-call")
    async def test_changed_policy_voids_it(self) -> None:
        harness = an_approval_harness()
        old = await harness.grant()
        harness.parts.policy.replace(POLICY.replace("[read:fs, write:fs]", "[read:fs, write:fs, network]"))
        assert await asked_anew(harness, old, number=2) == ["policy revision"]

    async def test_policy_that_no_longer_asks_lets_the_call_run(self) -> None:
        harness = an_approval_harness()
        old = await harness.ask()
        harness.parts.policy.replace(POLICY.partition("rules:")[0])
        assert (await harness.call(number=2, approval_id=old)).ok

    async def test_policy_that_denies_now_denies_a_granted_call(self) -> None:
        harness = an_approval_harness()
        old = await harness.grant()
        harness.parts.policy.replace(
            POLICY.replace("effect: REQUIRE_APPROVAL", "effect: DENY").partition("    approval:")[0]
        )
        assert (await harness.refused(approval_id=old)).kind is ErrorKind.POLICY_DENIED

    @pytest.mark.promise("approval.exact-call")
    async def test_changed_definition_voids_it(self) -> None:
        harness = an_approval_harness()
        old = await harness.grant()
        harness.parts.catalog.register(replace(WRITE, description="Say it louder.", digest=""), replace=True)
        assert await asked_anew(harness, old, number=2) == ["tool definition"]

    @pytest.mark.promise("approval.exact-call")
    async def test_another_tool_is_another_call(self) -> None:
        harness = an_approval_harness(tools=(ERASE,))
        assert await asked_anew(harness, await harness.grant(), number=2, spec=ERASE) == ["tool"]


class TestEnd:
    async def test_a_rejected_call_gets_the_persons_comment(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.ask()
        await harness.decide(approval_id, REJECTED, comment="not on a Friday")
        error = await harness.refused(number=2, approval_id=approval_id)
        assert (error.kind, error.is_retryable) == (ErrorKind.APPROVAL_REJECTED, False)
        assert "not on a Friday" in error.message
        assert error.details["comment"] == "not on a Friday"
        assert error.details["decided_by"] == "ann"

    async def test_long_comment_is_cut_for_the_model(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.ask()
        await harness.decide(approval_id, REJECTED, comment="no " * 1_000)
        assert len((await harness.refused(approval_id=approval_id)).message) < 1_000

    @pytest.mark.promise("approval.expires")
    async def test_question_that_nobody_answers_counts_as_no(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.ask()
        harness.parts.clock.advance(EXPIRES_S)
        error = await harness.refused(number=2, approval_id=approval_id)
        assert error.kind is ErrorKind.APPROVAL_REJECTED
        assert "nobody decided in time" in error.message
        assert await harness.state(approval_id) is ApprovalState.EXPIRED, "although no sweep has passed"
        (event,) = harness.events(EventType.APPROVAL_EXPIRED)
        assert event.attributes["approval_id"] == approval_id

    async def test_last_millisecond_counts(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        harness.parts.clock.advance(EXPIRES_S - 0.001)
        assert (await harness.call(number=2, approval_id=approval_id)).ok

    @pytest.mark.promise("approval.expires")
    async def test_granted_one_that_is_not_used_in_time_lapses(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        harness.parts.clock.advance(EXPIRES_S)
        error = await harness.refused(number=2, approval_id=approval_id)
        assert error.kind is ErrorKind.APPROVAL_REJECTED
        assert "expired before it was used" in error.message
        assert harness.runs == 0

    @pytest.mark.promise("approval.expires")
    async def test_an_approval_that_lapses_between_check_and_effect_runs_nothing(self) -> None:
        harness = an_approval_harness()
        approval = await harness.decide(await harness.ask())
        harness.parts.clock.advance(EXPIRES_S)
        with pytest.raises(ToolFailure) as refused:
            await harness.approvals.use(approval, a_write(number=2))
        assert refused.value.error.kind is ErrorKind.APPROVAL_REJECTED
        assert await harness.state(approval.approval_id) is ApprovalState.EXPIRED

    async def test_after_the_end_the_same_call_asks_anew(self) -> None:
        harness = an_approval_harness()
        lapsed = await harness.ask("a")
        harness.parts.clock.advance(EXPIRES_S)
        rejected = await harness.ask("b")
        await harness.decide(rejected, REJECTED)
        assert await harness.ask("a") != lapsed
        assert await harness.ask("b") != rejected

    async def test_sweep_puts_down_what_is_over_and_forgets_what_ended_long_ago(self) -> None:
        harness = an_approval_harness(keep_s=3_600.0)
        ids = [await harness.ask(str(number)) for number in range(3)]
        await harness.decide(ids[1])
        await harness.decide(ids[2], REJECTED)
        assert await harness.approvals.expire_due(harness.parts.clock.unix_ms()) == 0
        harness.parts.clock.advance(EXPIRES_S)
        assert await harness.approvals.expire_due(harness.parts.clock.unix_ms()) == 2
        assert [await harness.state(id) for id in ids] == [ApprovalState.EXPIRED] * 2 + [REJECTED]
        assert len(harness.events(EventType.APPROVAL_EXPIRED)) == 2
        await harness.approvals.sweep()
        assert len(harness.events(EventType.APPROVAL_EXPIRED)) == 2
        harness.parts.clock.advance(3_601)
        await harness.approvals.sweep()
        assert await harness.store.page(ApprovalFilter(), after=None, limit=9) == ([], 0)


class TestRepeats:
    async def test_rerun_of_the_same_job_may_use_what_it_has_used(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant(job_id="job-1")
        for _ in range(2):
            assert (await harness.call(number=2, approval_id=approval_id, job_id="job-1")).ok
        first, second = harness.events(EventType.APPROVAL_USED)
        assert "rerun" not in first.attributes
        assert (second.attributes["rerun"], second.attributes["job_id"]) == ("true", "job-1")

    async def test_rerun_of_a_job_is_not_stopped_by_the_clock(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant(job_id="job-1")
        assert (await harness.call(approval_id=approval_id, job_id="job-1")).ok
        harness.parts.clock.advance(EXPIRES_S * 2)
        assert (await harness.call(approval_id=approval_id, job_id="job-1")).ok

    @pytest.mark.promise("approval.exact-call")
    async def test_another_job_may_not_use_the_approval(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant(job_id="job-1")
        assert await asked_anew(harness, approval_id, number=2, job_id="job-2") == ["job"]
        assert await asked_anew(harness, approval_id, number=3) == ["job"]

    async def test_job_may_use_an_approval_that_was_asked_for_by_a_call(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        assert (await harness.call(number=2, approval_id=approval_id, job_id="job-1")).ok
        assert (
            await harness.refused(number=3, approval_id=approval_id, job_id="job-2")
        ).kind is ErrorKind.APPROVAL_REQUIRED
        assert harness.runs == 1

    async def test_call_repeated_under_its_key_is_answered_from_store(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        first = await harness.call(number=2, approval_id=approval_id, idempotency_key="k")
        again = await harness.call(number=3, approval_id=approval_id, idempotency_key="k")
        assert (first.ok, again.ok, again.replayed) == (True, True, True)
        assert harness.runs == 1
        assert len(harness.asked) == 1, "nobody was asked again"

    async def test_another_key_does_not_make_it_good_for_two(self) -> None:
        harness = an_approval_harness()
        approval_id = await harness.grant()
        assert (await harness.call(number=2, approval_id=approval_id, idempotency_key="k")).ok
        error = await harness.refused(number=3, approval_id=approval_id, idempotency_key="other")
        assert error.kind is ErrorKind.APPROVAL_REQUIRED
        assert "already been used" in error.message
        assert harness.runs == 1


async def test_approval_of_one_hub_serves_at_another_that_shares_the_store() -> None:
    here = an_approval_harness()
    there = an_approval_harness(store=here.store)
    approval_id = await here.ask()
    await there.decide(approval_id, APPROVED, by=TEAM)
    assert (await there.call(number=2, approval_id=approval_id)).ok
    assert not (await here.call(number=3, approval_id=approval_id)).ok
    assert (await here.approvals.get(LOCAL, approval_id)).decided_by == "team-1"
    assert (await here.approvals.get(ANN, approval_id)).state is ApprovalState.USED
