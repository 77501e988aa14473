"""One key, one effect: who runs, who waits, who is answered from store, and which outcome stays unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.overtaken import overdue
from tests.unit.runtime.keyed_harness import IDEMPOTENT, TTL_S, a_keyed_harness, ask, call, cancelled, gated
from tests.unit.runtime.pipeline_harness import HANG, POLICY, READ, WRITE, a_tool
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.event import EventType
from toolhub_service.domain.key import EffectKey
from toolhub_service.domain.result import Outcome, ToolResult
from toolhub_service.domain.tool import ToolLimits, ToolSpec
from toolhub_service.runtime.idempotency import MAX_KEPT_BYTES


class TestReplay:
    @pytest.mark.promise("idempotency.runs-once")
    async def test_second_call_is_answered_with_the_first_ones_result(self) -> None:
        harness = a_keyed_harness(Outcome(value={"text": "first"}), Outcome(value={"text": "second"}))
        first, second = await ask(harness, 1), await ask(harness, 2)
        assert len(harness.adapter.calls) == 1
        assert (first.replayed, second.replayed) == (False, True)
        assert second._replace(replayed=False, evidence=first.evidence) == first
        assert (second.call_id, second.attempts) == ("call-1", 1)

    async def test_replay_proves_which_call_it_answered(self) -> None:
        harness = a_keyed_harness()
        first, second = await ask(harness, 1), await ask(harness, 2)
        *stored, own = second.evidence
        assert tuple(stored) == first.evidence
        assert own.ref == "call-2"
        assert "call-1" in own.summary

    async def test_replay_of_a_replay_has_one_proof_of_its_own(self) -> None:
        harness = a_keyed_harness()
        first = await ask(harness, 1)
        await ask(harness, 2)
        third = await ask(harness, 3)
        assert len(third.evidence) == len(first.evidence) + 1

    async def test_answer_is_looked_up_by_its_key_and_the_look_leaves_the_key_free(self) -> None:
        harness = a_keyed_harness()
        keys, key = harness.pipeline.keys, EffectKey(call(1).principal.id, WRITE.name, "k-1")
        assert await keys.stored_answer(key) is None
        first = await ask(harness, 1)
        found = await keys.stored_answer(key)
        assert (first.ok, first.replayed, found and found.value) == (True, False, first.value)

    async def test_calls_without_a_key_each_run(self) -> None:
        harness = a_keyed_harness()
        for number in range(3):
            assert not (await ask(harness, number, idempotency_key="")).replayed
        assert len(harness.adapter.calls) == 3

    async def test_reads_are_deduplicated_too(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1, READ)
        assert (await ask(harness, 2, READ)).replayed
        assert len(harness.adapter.calls) == 1

    async def test_defaults_spelt_out_are_the_same_arguments(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1, WRITE, {"text": "a"})
        assert (await ask(harness, 2, WRITE, {"times": 1, "text": "a"})).replayed

    async def test_another_request_of_the_same_principal_is_answered_too(self) -> None:
        """The key names the effect; a client that lost its answer may come back under another request."""
        harness = a_keyed_harness()
        first = call(1)
        await harness.pipeline.invoke(first)
        later = call(2)._replace(context=first.context._replace(request_id="request-2"))
        answer = await harness.pipeline.invoke(later)
        assert isinstance(answer, ToolResult)
        assert answer.replayed

    async def test_key_is_forgotten_after_its_time(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        harness.clock.advance(TTL_S - 1)
        assert (await ask(harness, 2)).replayed
        harness.clock.advance(1)
        assert not (await ask(harness, 3)).replayed
        assert len(harness.adapter.calls) == 2

    async def test_two_principals_with_one_key_do_not_meet(self) -> None:
        harness = a_keyed_harness(Outcome(value={"text": "a's"}), Outcome(value={"text": "b's"}))
        assert (await ask(harness, 1, principal="a")).value == {"text": "a's"}
        theirs = await ask(harness, 2, WRITE, {"text": "other"}, principal="b")
        assert (theirs.value, theirs.replayed) == ({"text": "b's"}, False)

    async def test_two_tools_with_one_key_do_not_meet(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1, WRITE)
        assert not (await ask(harness, 2, IDEMPOTENT)).replayed

    async def test_replay_costs_no_budget(self) -> None:
        harness = a_keyed_harness(policy=POLICY + "limits: [{id: slow, rate_per_s: 0.001, burst: 1}]\n")
        await ask(harness, 1, budget=BudgetRequest(max_tool_calls=1))
        assert (await ask(harness, 2, budget=BudgetRequest(max_tool_calls=1))).replayed
        assert (await ask(harness, 3, idempotency_key="k-2")).error is not None

    async def test_policy_checks_a_replay_anew(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        harness.policy.replace("extends: none\n")
        refused = await ask(harness, 2)
        assert refused.error is not None
        assert refused.error.kind is ErrorKind.POLICY_DENIED
        assert refused.value is None

    async def test_dry_run_neither_claims_nor_reads_a_key(self) -> None:
        harness = a_keyed_harness()
        await harness.plan(WRITE, idempotency_key="k-1")
        assert not (await ask(harness, 1)).replayed
        plan = await harness.plan(WRITE, {"text": "other"}, idempotency_key="k-1")
        assert plan.plan_digest, "no conflict with the call that ran"

    async def test_key_reaches_the_adapter(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        assert harness.adapter.calls[0].idempotency_key == "k-1"

    async def test_long_answer_is_kept_cut(self) -> None:
        wide = a_tool("test/text.wide", capability="write:fs", limits=ToolLimits(max_result_bytes=4 * MAX_KEPT_BYTES))
        harness = a_keyed_harness(Outcome(value={"text": "x" * 2 * MAX_KEPT_BYTES}), tools=(wide,))
        first, second = await ask(harness, 1, wide), await ask(harness, 2, wide)
        assert (first.truncated, second.truncated) == (False, True)
        assert isinstance(second.value, dict)
        assert len(str(second.value["text"])) <= MAX_KEPT_BYTES
        assert any("cut" in proof.summary for proof in second.evidence)

    async def test_upstreams_own_answer_is_not_kept(self) -> None:
        harness = a_keyed_harness(Outcome(value={"text": "a"}, raw={"large": True}))
        harness.pipeline = replace(harness.pipeline, show_raw=True)
        assert (await ask(harness, 1)).raw == {"large": True}
        assert (await ask(harness, 2)).raw is None


class TestRecord:
    async def test_replay_is_recorded_under_its_own_call_id(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        await ask(harness, 2)
        asked, settled = harness.events[-2:]
        assert (asked.type, asked.call_id) == (EventType.TOOL_CALLED, "call-2")
        assert (settled.type, settled.call_id, settled.outcome) == (EventType.TOOL_RESULT, "call-2", "ok")
        assert settled.attributes == {"attempts": "0", "replayed": "true", "first_call_id": "call-1"}

    async def test_first_call_is_not_marked(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        assert "replayed" not in harness.events[-1].attributes

    async def test_replayed_refusal_of_the_tool_is_a_result_and_no_denial(self) -> None:
        harness = a_keyed_harness(ToolError(ErrorKind.HTTP_DISALLOWED_HOST, "The answer led to another host."))
        await ask(harness, 1)
        await ask(harness, 2)
        assert harness.events[-1].type is EventType.TOOL_RESULT
        assert harness.events[-1].attributes["replayed"] == "true"

    async def test_an_observer_is_notified_of_the_replay(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        await ask(harness, 2)
        assert [settled.result.replayed for settled in harness.observer.settled_calls] == [False, True]


class TestConflict:
    @pytest.mark.promise("idempotency.conflict")
    async def test_other_arguments_are_a_conflict_that_names_the_difference_and_no_value(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1, WRITE, {"text": "the first text"})
        error = (await ask(harness, 2, WRITE, {"text": "another text"})).error
        assert error is not None
        assert error.kind is ErrorKind.IDEMPOTENCY_CONFLICT
        assert error.details == {"differs": "args", "first_call_id": "call-1"}
        assert "new key" in error.message
        assert "the first text" not in str(error)
        assert "another text" not in str(error)
        assert len(harness.adapter.calls) == 1

    async def test_conflict_is_found_while_the_first_call_runs(self) -> None:
        harness = a_keyed_harness()
        adapter = gated(harness)
        running = asyncio.create_task(ask(harness, 1))
        await adapter.started.wait()
        error = (await ask(harness, 2, WRITE, {"text": "other"})).error
        assert error is not None
        assert error.kind is ErrorKind.IDEMPOTENCY_CONFLICT
        adapter.gate.set()
        assert (await running).ok

    async def test_conflict_leaves_the_first_answer_as_it_is(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        await ask(harness, 2, WRITE, {"text": "other"})
        assert (await ask(harness, 3)).replayed

    async def test_changed_definition_is_a_conflict(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1)
        changed = a_tool(WRITE.name, capability="write:fs", description="Say it twice.")
        harness.catalog.register(changed, replace=True)
        error = (await ask(harness, 2)).error
        assert error is not None
        assert error.kind is ErrorKind.IDEMPOTENCY_CONFLICT
        assert error.details["differs"] == "tool_digest"
        assert "definition changed" in error.message


class TestConcurrentCalls:
    @pytest.mark.promise("idempotency.runs-once")
    async def test_fifty_calls_with_one_key_run_the_adapter_once(self) -> None:
        harness = a_keyed_harness()
        adapter = gated(harness)
        asked = [asyncio.create_task(ask(harness, number)) for number in range(50)]
        await adapter.started.wait()
        adapter.gate.set()
        answers = await asyncio.gather(*asked)
        assert len(adapter.calls) == 1
        assert [answer.value for answer in answers] == [{"text": "done 1"}] * 50
        assert [answer.replayed for answer in answers].count(False) == 1

    async def test_waiter_gives_up_at_its_own_deadline_and_may_come_back(self) -> None:
        harness = a_keyed_harness()
        adapter = gated(harness)
        running = asyncio.create_task(ask(harness, 1))
        await adapter.started.wait()
        error = (await overdue(ask(harness, 2, budget=BudgetRequest(timeout_s=5.0)), 6.0)).error
        assert error is not None
        assert error.kind is ErrorKind.TIMEOUT
        assert error.is_retryable
        assert error.details == {"first_call_id": "call-1"}
        adapter.gate.set()
        assert (await running).ok
        assert (await ask(harness, 3)).replayed

    async def test_cancelled_waiter_leaves_the_runner_alone(self) -> None:
        harness = a_keyed_harness()
        adapter = gated(harness)
        running = asyncio.create_task(ask(harness, 1))
        await adapter.started.wait()
        waiting = asyncio.create_task(ask(harness, 2))
        await asyncio.sleep(0)
        await cancelled(waiting)
        adapter.gate.set()
        assert (await running).ok
        assert (await ask(harness, 3)).replayed

    async def test_cancelled_runner_of_a_side_effect_leaves_its_outcome_unknown(self) -> None:
        harness = a_keyed_harness(HANG)
        running = asyncio.create_task(ask(harness, 1))
        await harness.adapter.started.wait()
        waiting = asyncio.create_task(ask(harness, 2))
        await asyncio.sleep(0)
        await cancelled(running)
        for answer in (await waiting, await ask(harness, 3)):
            assert answer.error is not None
            assert answer.error.kind is ErrorKind.OUTCOME_UNKNOWN
            assert not answer.error.is_retryable
            assert answer.error.details == {"cause": "CANCELLED", "first_call_id": "call-1"}
            assert answer.replayed
        assert len(harness.adapter.calls) == 1

    @pytest.mark.parametrize("spec", [READ, IDEMPOTENT])
    async def test_cancelled_runner_that_is_safe_to_repeat_lets_a_waiter_run(self, spec: ToolSpec) -> None:
        harness = a_keyed_harness(HANG, Outcome(value={"text": "second"}))
        running = asyncio.create_task(ask(harness, 1, spec))
        await harness.adapter.started.wait()
        waiting = [asyncio.create_task(ask(harness, number, spec)) for number in range(2, 5)]
        await asyncio.sleep(0)
        await cancelled(running)
        answers = await asyncio.gather(*waiting)
        assert [answer.value for answer in answers] == [{"text": "second"}] * 3
        assert [answer.replayed for answer in answers].count(False) == 1
        assert len(harness.adapter.calls) == 2

    async def test_call_that_only_reads_by_a_tool_that_can_write_may_run_again(self) -> None:
        harness = a_keyed_harness(HANG, Outcome(value={"text": "second"}))
        harness.adapter.reads_only = True
        running = asyncio.create_task(ask(harness, 1))
        await harness.adapter.started.wait()
        await cancelled(running)
        assert (await ask(harness, 2)).value == {"text": "second"}

    async def test_runner_cancelled_before_its_effect_frees_the_key(self) -> None:
        harness = a_keyed_harness()
        harness.audit.gate = asyncio.Event()
        running = asyncio.create_task(ask(harness, 1))
        await harness.audit.waiting.wait()
        await cancelled(running)
        harness.audit.gate = None
        assert not (await ask(harness, 2)).replayed
        assert len(harness.adapter.calls) == 1
