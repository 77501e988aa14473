"""A tool that asks in the middle of a call: an approval carries its question, and the answer resumes the call once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tests.fakes.asking_adapter import CANARY, COLOUR, FREE, a_question
from tests.unit.runtime.approvals.approval_harness import ANN, EVE, LOCAL, POLICY, REJECTED, an_approval_harness
from tests.unit.runtime.approvals.question_harness import ALLOWING, PAINT, RED, QuestionHarness, asking
from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.call import Mode, Question
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import IdempotencyMode
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.tool_questions import CONTINUATION_MAX_BYTES, QUESTION_MAX_BYTES, ROUNDS_MAX
from toolhub_service.stores.memory.records import MemoryApprovals
from toolhub_service.telemetry.approvals import payload
from toolhub_service.transport.convert.records import from_approval

ANOTHER = ALLOWING + "limits: [{id: all, rate_per_s: 9, burst: 9}]\n"
ANSWER = {"colour": "red", "password": "none"}


class TestAsking:
    async def test_question_ends_the_call_with_an_approval_that_carries_it(self) -> None:
        it = asking()
        result = await it.call(purpose="a nice wall")
        error = result.error
        assert error is not None
        assert (error.kind, error.is_retryable, result.attempts) == (ErrorKind.APPROVAL_REQUIRED, False, 1)
        asked: Any = error.details["question"]
        assert asked["message"] == "Which colour?"
        assert asked["schema"]["properties"]["colour"] == {"type": "string", "enum": ["red", "green"]}
        assert "asks a question during the call" in error.message
        (approval,) = it.harness.asked
        assert error.details["approval_id"] == approval.approval_id
        assert (approval.state, approval.round, approval.purpose) == (ApprovalState.PENDING, 1, "a nice wall")
        assert approval.question is not None
        assert approval.question.continuation == f"{CANARY}:0"
        assert len(approval.binding.question_digest) == 64
        assert it.adapter.done == []

    async def test_same_question_of_the_same_call_is_asked_once(self) -> None:
        it = asking()
        assert await it.asks() == await it.asks(number=2)
        assert len(it.harness.asked) == 1
        assert it.runs == 2

    async def test_another_question_of_the_same_call_is_another_approval(self) -> None:
        it = asking()
        first = await it.asks()
        it.adapter.questions = [a_question("Which shade?")]
        assert await it.asks() != first

    @pytest.mark.parametrize(
        ("question", "why"),
        [
            (a_question(schema={"description": "x" * QUESTION_MAX_BYTES}), "16 KiB"),
            (a_question(schema={"type": "no such type"}), "refused as invalid"),
            (a_question(schema={"$ref": "https://elsewhere.example/x"}), "refused as"),
            (a_question(schema={"const": float("nan")}), "not JSON"),
            (Question("Well?", FREE, "x" * CONTINUATION_MAX_BYTES), "64 KiB"),
        ],
    )
    async def test_question_that_cannot_be_put_to_anybody_is_the_tools_failure(
        self, question: Question, why: str
    ) -> None:
        it = asking(question)
        error = await it.refused()
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert not error.is_retryable
        assert why in error.message
        assert it.harness.asked == []

    async def test_words_of_the_tool_are_cut_and_redacted_and_its_schema_stays_a_schema(self) -> None:
        it = asking(a_question("hunter2-value " + "é" * 9_000), redactor=Redactor(("hunter2-value",)))
        await it.asks()
        (approval,) = it.harness.asked
        assert approval.question is not None
        assert "hunter2" not in approval.question.message
        assert len(approval.question.message.encode()) <= 4_096
        assert approval.question.schema == COLOUR, "a property called password is no secret"

    async def test_store_that_is_away_leaves_nothing_behind(self) -> None:
        class UnavailableStore(MemoryApprovals):
            async def create(self, approval: Approval) -> Approval | None:
                raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The store of approvals is away.")

        it = asking(store=UnavailableStore())
        error = await it.refused(idempotency_key="k")
        assert (error.kind, error.is_retryable, error.details["unasked"]) == (ErrorKind.TOOL_UNAVAILABLE, True, True)
        assert (await it.refused(idempotency_key="k", number=2)).kind is ErrorKind.TOOL_UNAVAILABLE
        assert it.runs == 2, "the key was free again"


class TestAnswering:
    @pytest.mark.promise("approval.question-resumes-once")
    async def test_answered_call_goes_on_exactly_once(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id)
        done = await it.call(approval_id, number=2)
        assert done.ok
        assert done.value == {"said": [ANSWER]}
        reply = it.adapter.calls[1].reply
        assert reply is not None
        assert reply == (ANSWER, f"{CANARY}:0")
        again = await it.refused(approval_id, number=3)
        assert again.kind is ErrorKind.APPROVAL_REQUIRED
        assert "already been used" in again.message
        assert "approval_id" not in again.details, "there is nothing to wait for"
        assert it.adapter.done == [ANSWER]

    @pytest.mark.promise("approval.single-use")
    async def test_one_of_many_calls_that_bring_the_answer_goes_on(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id)
        answers = await asyncio.gather(*(it.call(approval_id, number=n) for n in range(2, 22)))
        assert [answer.ok for answer in answers].count(True) == 1
        assert it.adapter.done == [ANSWER]

    async def test_defaults_are_the_answer_where_they_suffice(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 7}}, "required": ["a"]}
        it = asking(a_question(schema=schema))
        approval_id = await it.asks()
        await it.answer(approval_id, None)
        await it.call(approval_id)
        assert it.adapter.done == [{"a": 7}]

    async def test_yes_is_the_whole_answer_where_nothing_else_is_asked(self) -> None:
        it = asking(a_question(schema=FREE))
        approval_id = await it.asks()
        await it.answer(approval_id, None)
        assert (await it.call(approval_id)).ok
        assert it.adapter.done == [{}]

    @pytest.mark.parametrize(
        ("answer", "path"), [(None, ""), ({}, ""), ({"colour": "blue"}, "/colour"), ({"colour": "red", "x": 1}, "")]
    )
    async def test_answer_that_does_not_fit_is_refused_by_its_place_and_decides_nothing(
        self, answer: Any, path: str
    ) -> None:
        it = asking()
        approval_id = await it.asks()
        with pytest.raises(ToolFailure) as refused:
            await it.answer(approval_id, answer)
        error = refused.value.error
        assert error.kind is ErrorKind.INPUT_SCHEMA_INVALID
        assert [violation.path for violation in error.violations] == [path]
        assert await it.harness.state(approval_id) is ApprovalState.PENDING

    @pytest.mark.promise("approval.not-by-the-requester")
    async def test_the_asker_cannot_answer(self) -> None:
        it = asking()
        approval_id = await it.asks()
        with pytest.raises(HubFailure) as refused:
            await it.answer(approval_id, by=LOCAL)
        assert refused.value.reason.name == "OWN_REQUEST"

    async def test_same_answer_again_changes_nothing_and_another_is_too_late(self) -> None:
        it = asking()
        approval_id = await it.asks()
        decided = await it.answer(approval_id)
        assert await it.answer(approval_id) == decided
        assert await it.answer(approval_id, None) == decided
        for by, answer in ((ANN, {"colour": "green"}), (EVE, RED)):
            with pytest.raises(HubFailure) as refused:
                await it.answer(approval_id, answer, by=by)
            assert refused.value.reason.name == "ALREADY_DECIDED"

    async def test_an_answer_belongs_to_an_approved_question(self) -> None:
        it = asking()
        question = await it.asks()
        with pytest.raises(HubFailure) as refused:
            await it.answer(question, decision=REJECTED)
        assert (refused.value.reason.code, refused.value.reason.name) == (
            Code.INVALID_ARGUMENT,
            "NOTHING_TO_ANSWER",
        )
        harness = an_approval_harness()
        with pytest.raises(HubFailure) as refused:
            await harness.decide(await harness.ask(), answer=RED)
        assert refused.value.reason.name == "NOTHING_TO_ANSWER"

    async def test_declined_question_ends_the_call_without_another_word_to_the_tool(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.harness.decide(approval_id, REJECTED, comment="not today")
        error = await it.refused(approval_id)
        assert error.kind is ErrorKind.APPROVAL_REJECTED
        assert "not today" in error.message
        assert it.runs == 1

    async def test_an_undecided_question_is_still_awaited(self) -> None:
        it = asking()
        approval_id = await it.asks()
        error = await it.refused(approval_id)
        assert (error.kind, error.details["approval_id"]) == (ErrorKind.APPROVAL_REQUIRED, approval_id)
        assert it.runs == 1

    @pytest.mark.promise("approval.expires")
    @pytest.mark.parametrize("answered", [False, True])
    async def test_question_lapses_decided_or_not(self, answered: bool) -> None:
        it = asking()
        approval_id = await it.asks()
        if answered:
            await it.answer(approval_id)
        it.harness.parts.clock.advance(3_600)
        assert (await it.refused(approval_id)).kind is ErrorKind.APPROVAL_REJECTED
        assert it.runs == 1

    async def test_dry_run_neither_brings_nor_uses_an_answer(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id)
        await it.harness.parts.plan(PAINT, {"wall": "north"})
        assert await it.harness.state(approval_id) is ApprovalState.APPROVED
        assert it.runs == 1

    async def test_tool_asks_again_and_again_but_not_for_ever(self) -> None:
        questions = [a_question(f"Question {n}?", FREE) for n in range(1, ROUNDS_MAX + 2)]
        it = asking(*questions)
        approval_id = await it.asks()
        for round in range(1, ROUNDS_MAX):
            assert (await it.answer(approval_id, None)).round == round
            approval_id = await it.asks(approval_id)
        await it.answer(approval_id, None)
        error = await it.refused(approval_id)
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert "more than 8" in error.message
        assert it.adapter.done == []


class TestExactMatch:
    @pytest.mark.promise("approval.exact-call")
    @pytest.mark.parametrize(
        ("fields", "differs"),
        [
            ({"args": {"wall": "south"}}, "arguments"),
            ({"agent_id": "other"}, "agent"),
            ({"user_id": "other"}, "user"),
        ],
    )
    async def test_answer_is_void_for_another_call(self, fields: dict[str, Any], differs: str) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id)
        error = await it.refused(approval_id, **fields)
        assert error.kind is ErrorKind.APPROVAL_REQUIRED
        assert differs in error.message
        assert "starts again" in error.message
        assert it.runs == 1

    async def test_answer_is_void_under_another_policy(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id)
        it.harness.parts.policy.replace(ANOTHER)
        assert "policy revision" in (await it.refused(approval_id)).message
        assert it.runs == 1

    async def test_policy_that_denies_by_then_has_the_last_word(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id)
        it.harness.parts.policy.replace("extends: none\n")
        assert (await it.refused(approval_id)).kind is ErrorKind.POLICY_DENIED
        assert it.runs == 1

    async def test_an_answer_to_another_principals_question_is_not_found(self) -> None:
        it = asking()
        approval_id = await it.asks(principal="other")
        await it.answer(approval_id)
        assert await it.asks(approval_id) != approval_id, "it begins by itself"
        assert it.adapter.calls[1].reply is None

    async def test_job_whose_answer_is_void_begins_anew(self) -> None:
        it = asking()
        approval_id = await it.asks(job_id="job-1")
        await it.answer(approval_id)
        it.harness.parts.policy.replace(ANOTHER)
        assert await it.asks(approval_id, job_id="job-1") != approval_id
        assert [call.reply for call in it.adapter.calls] == [None, None]

    async def test_job_may_bring_an_answer_that_a_call_has_asked_for(self) -> None:
        it = asking()
        approval_id = await it.asks()
        assert "A job waits only for its own approval" in (await it.refused(approval_id, job_id="job-1")).message
        await it.answer(approval_id)
        assert (await it.call(approval_id, job_id="job-1")).ok

    async def test_job_that_is_run_again_has_its_answer_again(self) -> None:
        it = asking()
        approval_id = await it.asks(job_id="job-1")
        await it.answer(approval_id)
        for _ in range(2):
            assert (await it.call(approval_id, job_id="job-1")).ok
        assert it.adapter.done == [ANSWER, ANSWER]
        assert "already been used" in (await it.refused(approval_id, number=2, job_id="job-1")).message


class TestQuestionAndRule:
    """A rule asks whether the call may run; its tool asks, too."""

    async def test_rule_asks_first_and_once(self) -> None:
        it = asking(policy=_ruled())
        rule = await it.asks()
        assert (await it.kept(rule)).question is None
        await it.harness.decide(rule)
        question = await it.asks(rule)
        kept = await it.kept(question)
        assert kept.question is not None
        assert (kept.covers_rule_id, kept.approvers) == ("writes-need-a-yes", ("ann", "team-*"))
        assert await it.harness.state(rule) is ApprovalState.USED
        await it.answer(question)
        assert (await it.call(question)).ok
        assert it.adapter.done == [ANSWER]

    async def test_every_further_question_is_covered_too(self) -> None:
        it = asking(a_question("One?", FREE), a_question("Two?", FREE), policy=_ruled())
        rule = await it.asks()
        await it.harness.decide(rule)
        one = await it.asks(rule)
        await it.answer(one, None)
        two = await it.asks(one)
        assert (await it.kept(two)).covers_rule_id == "writes-need-a-yes"
        await it.answer(two, None)
        assert (await it.call(two)).ok

    async def test_answer_covers_no_rule_that_had_not_asked(self) -> None:
        it = asking(policy=_ruled())
        kept = await it.harness.store.get(question := await _uncovered(it))
        assert kept is not None
        assert kept.covers_rule_id == ""
        error = await it.refused(question)
        assert error.kind is ErrorKind.APPROVAL_REQUIRED
        assert "rule writes-need-a-yes needs an approval of its own" in error.message
        rule = await it.kept(str(error.details["approval_id"]))
        assert (rule.question, rule.state) == (None, ApprovalState.PENDING)
        assert it.runs == 1

    async def test_call_without_the_answer_is_asked_for_by_the_rule_again(self) -> None:
        it = asking(policy=_ruled())
        rule = await it.asks()
        await it.harness.decide(rule)
        question = await it.asks(rule)
        await it.answer(question)
        assert await it.asks() not in (rule, question)
        assert it.runs == 1


class TestKeys:
    async def test_call_that_comes_again_with_its_key_and_answer_is_the_same_effect(self) -> None:
        it = asking()
        approval_id = await it.asks(idempotency_key="k")
        assert await it.asks(idempotency_key="k", number=2) == approval_id
        await it.answer(approval_id)
        done = await it.call(approval_id, idempotency_key="k", number=3)
        assert (done.ok, done.replayed) == (True, False)
        for named in (approval_id, ""):
            again = await it.call(named, idempotency_key="k", number=4)
            assert (again.ok, again.replayed, again.call_id) == (True, True, "call-3")
        assert it.adapter.done == [ANSWER]

    async def test_derived_key_stands_for_the_whole_conversation(self) -> None:
        spec = replace(PAINT, idempotency=IdempotencyMode.DERIVED)
        it = asking(spec=spec)
        approval_id = await it.asks()
        await it.answer(approval_id)
        assert (await it.call(approval_id, number=2)).ok
        assert (await it.call(number=3)).replayed
        first, second = (call.idempotency_key for call in it.adapter.calls)
        assert first == second != ""

    async def test_declined_question_leaves_the_key_free(self) -> None:
        it = asking()
        approval_id = await it.asks(idempotency_key="k")
        await it.harness.decide(approval_id, REJECTED)
        assert (await it.refused(approval_id, idempotency_key="k")).kind is ErrorKind.APPROVAL_REJECTED
        assert await it.asks(idempotency_key="k") != approval_id


class TestEvidence:
    @pytest.mark.promise("approval.four-events")
    async def test_asked_answered_used_and_returned_are_events(self) -> None:
        it = asking()
        approval_id = await it.asks()
        await it.answer(approval_id, {"colour": "red", "password": "hunter2"}, comment="as the others")
        await it.call(approval_id, number=2)
        asked, decided, used = it.harness.events_of_approvals
        assert [event.type for event in (asked, decided, used)] == [
            EventType.APPROVAL_ASKED,
            EventType.APPROVAL_DECIDED,
            EventType.APPROVAL_USED,
        ]
        assert (asked.attributes["question"], asked.attributes["round"]) == ("Which colour?", "1")
        assert json.loads(decided.attributes["answer_summary"]) == {"colour": "red", "password": "***"}
        digests = {event.attributes["question_digest"] for event in (asked, decided, used)}
        assert len(digests) == 1
        results = it.harness.events(EventType.TOOL_RESULT)
        assert [event.outcome for event in results] == ["APPROVAL_REQUIRED", "ok"]

    async def test_continuation_is_shown_nowhere(self) -> None:
        it = asking()
        error = await it.refused()
        approval_id = str(error.details["approval_id"])
        decided = await it.answer(approval_id, {"colour": "green", "password": "answer-canary"})
        wire: list[Any] = [from_approval(approval) for approval in (*it.harness.asked, decided)]
        await it.call(approval_id)
        assert it.adapter.done == [{"colour": "green", "password": "answer-canary"}]
        wire += [payload(approval) for approval in (*it.harness.asked, decided)]
        assert b"Which colour?" in wire[-1]
        seen = f"{error!r} {wire!r} {it.harness.parts.events!r} {it.harness.asked!r} {decided!r} {it.adapter.calls!r}"
        assert CANARY not in seen
        assert "answer-canary" not in seen

    @pytest.mark.parametrize("end", ["used", "declined", "lapsed"])
    async def test_answer_and_continuation_are_not_kept_after_the_run_that_needs_them(self, end: str) -> None:
        it = asking()
        approval_id = await it.asks()
        match end:
            case "used":
                await it.answer(approval_id)
                await it.call(approval_id)
            case "declined":
                await it.harness.decide(approval_id, REJECTED)
            case _:
                it.harness.parts.clock.advance(3_600)
                await it.harness.approvals.expire_due(it.harness.parts.clock.unix_ms())
        kept = await it.kept(approval_id)
        assert kept.question is not None
        assert (kept.question.message, kept.question.continuation, kept.answer) == ("Which colour?", "", None)

    async def test_approval_of_a_rule_named_where_nothing_asks_changes_nothing(self) -> None:
        it = asking(a_question(schema=FREE))
        assert await it.asks("apr_unknown") != "apr_unknown"
        assert it.adapter.calls[0].reply is None

    async def test_submission_and_execution_check_the_answer_alike(self) -> None:
        it = asking()
        approval_id = await it.asks()
        error = await it.refused(approval_id, mode=Mode.SUBMIT)
        assert (error.kind, error.details["approval_id"]) == (ErrorKind.APPROVAL_REQUIRED, approval_id)


def _ruled() -> str:
    return POLICY


async def _uncovered(it: QuestionHarness) -> str:
    """A question that was asked although the rule, of the same policy revision, had not."""
    rule = await it.asks()
    await it.harness.decide(rule)
    question = await it.asks(rule)
    await it.answer(question)
    kept = await it.kept(question)
    assert await it.harness.store.put(structs.replace(kept, covers_rule_id="", version=kept.version + 1))
    return question
