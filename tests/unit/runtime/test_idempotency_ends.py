"""How a keyed call ends, and its key with it: failure, death, derived keys, a store that breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.clock import ManualClock
from tests.overtaken import overdue
from tests.unit.runtime.keyed_harness import (
    BROKEN,
    DERIVED,
    IDEMPOTENT,
    MINUTE,
    MISSING,
    ONCE,
    TTL_S,
    a_keyed_harness,
    ask,
    call,
    gated,
    with_store,
)
from tests.unit.runtime.pipeline_harness import HANG, POLICY, READ, WRITE, PipelineHarness
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.result import Outcome, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.stores.memory.keys import MemoryKeys


class TestEnd:
    async def test_refusal_by_budget_frees_the_key(self) -> None:
        harness = a_keyed_harness(policy=POLICY + "limits: [{id: slow, rate_per_s: 1, burst: 1}]\n")
        await ask(harness, 1, idempotency_key="other")
        refused = await ask(harness, 2)
        assert refused.error is not None
        assert refused.error.kind is ErrorKind.RATE_LIMITED
        harness.clock.advance(1)
        assert (await ask(harness, 3)).ok

    async def test_deadline_that_has_passed_claims_nothing(self) -> None:
        harness = a_keyed_harness()
        late = await ask(harness, 1, deadline_s=harness.clock.monotonic_s() - 1)
        assert late.error is not None
        assert late.error.kind is ErrorKind.TIMEOUT
        assert (await ask(harness, 2)).ok

    async def test_broken_audit_log_frees_the_key(self) -> None:
        harness = a_keyed_harness()

        async def fail(event: object) -> None:
            raise refuse(ErrorKind.IO_ERROR, "The disk is full.")

        healthy, harness.audit.append_durably = harness.audit.append_durably, fail  # type: ignore[method-assign]
        assert not (await ask(harness, 1)).ok
        harness.audit.append_durably = healthy  # type: ignore[method-assign]
        assert (await ask(harness, 2)).ok

    @pytest.mark.parametrize("spec", [READ, WRITE])
    async def test_failure_of_the_tool_is_stored(self, spec: ToolSpec) -> None:
        harness = a_keyed_harness(MISSING, Outcome(value={"text": "now"}))
        first, second = await ask(harness, 1, spec), await ask(harness, 2, spec)
        assert second.replayed
        assert second.error == first.error
        assert len(harness.adapter.calls) == 1

    async def test_failure_that_may_pass_is_tried_again_where_a_repeat_is_safe(self) -> None:
        harness = a_keyed_harness(BROKEN, Outcome(value={"text": "now"}))
        assert not (await ask(harness, 1, IDEMPOTENT, budget=ONCE)).ok
        assert (await ask(harness, 2, IDEMPOTENT, budget=ONCE)).value == {"text": "now"}

    async def test_failure_that_may_pass_is_stored_as_final_where_a_repeat_is_not_safe(self) -> None:
        harness = a_keyed_harness(BROKEN, Outcome(value={"text": "now"}))
        first, second = await ask(harness, 1), await ask(harness, 2)
        assert first.error is not None
        assert second.error is not None
        assert first.error.is_retryable
        assert (second.error.is_retryable, second.error.retry_after_s) == (False, None)
        assert "new key" in second.error.message
        assert len(harness.adapter.calls) == 1

    async def test_a_timeout_of_a_side_effect_is_stored_as_unknown(self) -> None:
        harness = a_keyed_harness(HANG, Outcome(value={"text": "now"}))
        kinds = [(await overdue(ask(harness, 1, budget=MINUTE), 61.0)).error, (await ask(harness, 2)).error]
        assert [error and error.kind for error in kinds] == [ErrorKind.OUTCOME_UNKNOWN] * 2
        assert len(harness.adapter.calls) == 1

    async def test_crash_of_a_side_effect_leaves_its_outcome_unknown(self) -> None:
        harness = a_keyed_harness(ValueError("a defect"))
        first, second = await ask(harness, 1), await ask(harness, 2)
        assert first.error is not None
        assert second.error is not None
        for error in (first.error, second.error):
            assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "INTERNAL")
        assert len(harness.adapter.calls) == 1

    async def test_crash_of_a_read_is_tried_again(self) -> None:
        harness = a_keyed_harness(ValueError("a defect"), Outcome(value={"text": "now"}))
        assert not (await ask(harness, 1, READ)).ok
        assert (await ask(harness, 2, READ)).value == {"text": "now"}


class TestDeadRunner:
    """A hub that was killed leaves a claim behind that nobody ends: here, one written by run."""

    async def claimed(self, harness: PipelineHarness, store: MemoryKeys, spec: ToolSpec, lease_s: float) -> None:
        """By a call that would have run with no arguments."""
        await ask(harness, 0, spec, idempotency_key="probe")
        planned = harness.adapter.calls.pop().planned
        lease_until_unix_ms = harness.clock.unix_ms() + round(lease_s * 1_000)
        record = KeyRecord(
            *("dead", "call-dead", planned.args_digest, spec.digest),
            *(lease_until_unix_ms, lease_until_unix_ms + 1_000_000),
        )
        assert await store.claim(EffectKey("local", spec.name, "k-1"), record) is None

    def harness(self) -> tuple[PipelineHarness, MemoryKeys]:
        harness = a_keyed_harness()
        store = MemoryKeys(harness.clock)
        return with_store(harness, store), store

    @pytest.mark.promise("idempotency.never-a-silent-second-run")
    async def test_side_effect_of_a_dead_runner_is_unknown_and_not_run_again(self) -> None:
        harness, store = self.harness()
        await self.claimed(harness, store, WRITE, lease_s=0)
        error = (await ask(harness, 1)).error
        assert error is not None
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert error.details == {"cause": "LOST", "first_call_id": "call-dead"}
        assert not harness.adapter.calls

    @pytest.mark.parametrize("spec", [READ, IDEMPOTENT])
    async def test_dead_runner_is_replaced_once_where_a_repeat_is_safe(self, spec: ToolSpec) -> None:
        harness, store = self.harness()
        await self.claimed(harness, store, spec, lease_s=0)
        answers = await asyncio.gather(*(ask(harness, number, spec) for number in range(1, 11)))
        assert all(answer.ok for answer in answers)
        assert [answer.replayed for answer in answers].count(False) == 1
        assert len(harness.adapter.calls) == 1

    async def test_runner_within_its_lease_is_waited_for(self) -> None:
        harness, store = self.harness()
        await self.claimed(harness, store, WRITE, lease_s=60)
        error = (await overdue(ask(harness, 1, budget=MINUTE), 61.0)).error
        assert error is not None
        assert error.kind is ErrorKind.TIMEOUT

    async def test_running_call_holds_its_lease_until_after_its_deadline(self) -> None:
        harness, _ = self.harness()
        adapter = gated(harness)
        running = asyncio.create_task(ask(harness, 1))
        await adapter.started.wait()
        harness.clock.advance(WRITE.limits.timeout_s)
        waiting = asyncio.create_task(ask(harness, 2))
        await asyncio.sleep(0)
        adapter.gate.set()
        assert (await running).ok
        assert (await waiting).replayed


class TestDerivedKey:
    async def derived(self, harness: PipelineHarness, number: int, text: str = "a", **fields: Any) -> ToolResult:
        return await ask(harness, number, DERIVED, {"text": text}, idempotency_key="", **fields)

    async def test_same_call_of_the_same_request_is_answered_from_store(self) -> None:
        harness = a_keyed_harness()
        assert not (await self.derived(harness, 1)).replayed
        assert (await self.derived(harness, 2)).replayed

    async def test_other_arguments_tasks_and_principals_are_other_effects(self) -> None:
        harness = a_keyed_harness()
        await self.derived(harness, 1)
        assert not (await self.derived(harness, 2, "b")).replayed
        assert not (await self.derived(harness, 3, task_id="task-2")).replayed
        assert not (await self.derived(harness, 4, principal="other")).replayed
        keys = [granted.idempotency_key for granted in harness.adapter.calls]
        assert len(set(keys)) == 4, "an upstream that all principals share must tell them apart"
        assert {len(key) for key in keys} == {64}

    async def test_key_of_the_caller_comes_first(self) -> None:
        harness = a_keyed_harness()
        await ask(harness, 1, DERIVED, {"text": "a"})
        assert harness.adapter.calls[0].idempotency_key == "k-1"
        assert not (await self.derived(harness, 2)).replayed

    async def test_nothing_is_derived_for_a_request_without_a_name(self) -> None:
        harness = a_keyed_harness()
        for number in (1, 2):
            unnamed = call(number, DERIVED, idempotency_key="")
            unnamed = unnamed._replace(context=unnamed.context._replace(request_id=""))
            answer = await harness.pipeline.invoke(unnamed)
            assert isinstance(answer, ToolResult)
            assert not answer.replayed

    @pytest.mark.promise("idempotency.writes-are-not-deduplicated-unasked")
    async def test_writes_of_other_tools_are_never_deduplicated_unasked(self) -> None:
        """Write A, write B, write A must end with A."""
        harness = a_keyed_harness()
        for number, text in enumerate("aba"):
            await ask(harness, number, WRITE, {"text": text}, idempotency_key="")
        assert [granted.args["text"] for granted in harness.adapter.calls] == ["a", "b", "a"]


class StoreThatBreaks(MemoryKeys):
    """Loses its connection when the answer is to be stored."""

    async def settle(self, *_: Any) -> bool:
        raise refuse(ErrorKind.IO_ERROR, "The store cannot be reached.", retryable=True)


class StoreOutOfReach(MemoryKeys):
    """Never answers."""

    async def claim(self, *_: Any, **__: Any) -> KeyRecord | None:
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The store cannot be reached.", retryable=True)


class TestStoreThatFails:
    async def test_side_effect_is_refused_when_its_key_cannot_be_kept(self) -> None:
        harness = a_keyed_harness(store=StoreOutOfReach(ManualClock()))
        error = (await ask(harness, 1)).error
        assert error is not None
        assert error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert not harness.adapter.calls

    @pytest.mark.parametrize("spec", [READ, IDEMPOTENT])
    async def test_a_call_that_is_safe_to_repeat_runs_without_its_key(self, spec: ToolSpec) -> None:
        harness = a_keyed_harness(store=StoreOutOfReach(ManualClock()))
        assert [(await ask(harness, number, spec)).replayed for number in (1, 2)] == [False, False]

    async def test_full_store_refuses_the_side_effect_with_advice(self) -> None:
        harness = a_keyed_harness()
        with_store(harness, MemoryKeys(harness.clock, max_keys=1))
        await ask(harness, 1)
        error = (await ask(harness, 2, idempotency_key="k-2")).error
        assert error is not None
        assert error.kind is ErrorKind.RATE_LIMITED
        assert error.retry_after_s == TTL_S
        assert (await ask(harness, 3)).replayed, "the key that is kept still works"
        assert (await ask(harness, 4, READ, idempotency_key="k-2")).ok

    async def test_answer_that_cannot_be_stored_still_reaches_the_caller(self) -> None:
        harness = a_keyed_harness()
        with_store(harness, StoreThatBreaks(harness.clock))
        assert (await ask(harness, 1)).ok
        assert harness.visited[-1] == "unkept IO_ERROR"
        assert not harness.observer.crashes
        harness.clock.advance(WRITE.limits.timeout_s + 60)
        error = (await ask(harness, 2)).error
        assert error is not None
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert len(harness.adapter.calls) == 1
