"""How a keyed call ends, and what becomes of its key: failure, death, derived keys, a store that breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.clock import ManualClock
from tests.overtaken import overdue
from tests.unit.runtime.door import HANG, POLICY, READ, WRITE, Door
from tests.unit.runtime.keyed_door import (
    BROKEN,
    DERIVED,
    IDEMPOTENT,
    MINUTE,
    MISSING,
    ONCE,
    TTL_S,
    a_keyed_door,
    ask,
    call,
    gated,
    with_store,
)
from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.result import Outcome, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.stores.memory import MemoryKeys


class TestEnd:
    async def test_refusal_by_budget_frees_the_key(self) -> None:
        door = a_keyed_door(policy=POLICY + "limits: [{id: slow, rate_per_s: 1, burst: 1}]\n")
        await ask(door, 1, idempotency_key="other")
        refused = await ask(door, 2)
        assert refused.error is not None
        assert refused.error.kind is ErrorKind.RATE_LIMITED
        door.clock.advance(1)
        assert (await ask(door, 3)).ok

    async def test_deadline_that_has_passed_claims_nothing(self) -> None:
        door = a_keyed_door()
        late = await ask(door, 1, deadline_s=door.clock.monotonic_s() - 1)
        assert late.error is not None
        assert late.error.kind is ErrorKind.TIMEOUT
        assert (await ask(door, 2)).ok

    async def test_broken_audit_log_frees_the_key(self) -> None:
        door = a_keyed_door()

        async def fail(event: object) -> None:
            raise refuse(ErrorKind.IO_ERROR, "The disk is full.")

        healthy, door.audit.append_durably = door.audit.append_durably, fail  # type: ignore[method-assign]
        assert not (await ask(door, 1)).ok
        door.audit.append_durably = healthy  # type: ignore[method-assign]
        assert (await ask(door, 2)).ok

    @pytest.mark.parametrize("spec", [READ, WRITE])
    async def test_failure_of_the_tool_is_stored(self, spec: ToolSpec) -> None:
        door = a_keyed_door(MISSING, Outcome(value={"text": "now"}))
        first, second = await ask(door, 1, spec), await ask(door, 2, spec)
        assert second.replayed
        assert second.error == first.error
        assert len(door.adapter.calls) == 1

    async def test_failure_that_may_pass_is_tried_again_where_a_repeat_is_safe(self) -> None:
        door = a_keyed_door(BROKEN, Outcome(value={"text": "now"}))
        assert not (await ask(door, 1, IDEMPOTENT, budget=ONCE)).ok
        assert (await ask(door, 2, IDEMPOTENT, budget=ONCE)).value == {"text": "now"}

    async def test_failure_that_may_pass_is_stored_as_final_where_a_repeat_is_not_safe(self) -> None:
        door = a_keyed_door(BROKEN, Outcome(value={"text": "now"}))
        first, second = await ask(door, 1), await ask(door, 2)
        assert first.error is not None
        assert second.error is not None
        assert first.error.is_retryable
        assert (second.error.is_retryable, second.error.retry_after_s) == (False, None)
        assert "new key" in second.error.message
        assert len(door.adapter.calls) == 1

    async def test_timeout_of_a_side_effect_is_stored_as_unknown(self) -> None:
        door = a_keyed_door(HANG, Outcome(value={"text": "now"}))
        kinds = [(await overdue(ask(door, 1, budget=MINUTE), 61.0)).error, (await ask(door, 2)).error]
        assert [error and error.kind for error in kinds] == [ErrorKind.OUTCOME_UNKNOWN] * 2
        assert len(door.adapter.calls) == 1

    async def test_crash_of_a_side_effect_leaves_its_outcome_unknown(self) -> None:
        door = a_keyed_door(ValueError("a defect"))
        first, second = await ask(door, 1), await ask(door, 2)
        assert first.error is not None
        assert second.error is not None
        for error in (first.error, second.error):
            assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "INTERNAL")
        assert len(door.adapter.calls) == 1

    async def test_crash_of_a_read_is_tried_again(self) -> None:
        door = a_keyed_door(ValueError("a defect"), Outcome(value={"text": "now"}))
        assert not (await ask(door, 1, READ)).ok
        assert (await ask(door, 2, READ)).value == {"text": "now"}


class TestDeadRunner:
    """A hub that was killed leaves a claim behind that nobody ends: here, one written by hand."""

    async def claimed(self, door: Door, store: MemoryKeys, spec: ToolSpec, lease_s: float) -> None:
        """By a call that would have run with no arguments."""
        await ask(door, 0, spec, idempotency_key="probe")
        planned = door.adapter.calls.pop().planned
        lease_until_unix_ms = door.clock.unix_ms() + round(lease_s * 1_000)
        record = KeyRecord(
            *("dead", "call-dead", planned.args_digest, spec.digest),
            *(lease_until_unix_ms, lease_until_unix_ms + 1_000_000),
        )
        assert await store.claim(EffectKey("local", spec.name, "k-1"), record) is None

    def door(self) -> tuple[Door, MemoryKeys]:
        door = a_keyed_door()
        store = MemoryKeys(door.clock)
        return with_store(door, store), store

    @pytest.mark.promise("idempotency.never-a-silent-second-run")
    async def test_side_effect_of_a_dead_runner_is_unknown_and_not_run_again(self) -> None:
        door, store = self.door()
        await self.claimed(door, store, WRITE, lease_s=0)
        error = (await ask(door, 1)).error
        assert error is not None
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert error.details == {"cause": "LOST", "first_call_id": "call-dead"}
        assert not door.adapter.calls

    @pytest.mark.parametrize("spec", [READ, IDEMPOTENT])
    async def test_dead_runner_is_replaced_once_where_a_repeat_is_safe(self, spec: ToolSpec) -> None:
        door, store = self.door()
        await self.claimed(door, store, spec, lease_s=0)
        answers = await asyncio.gather(*(ask(door, number, spec) for number in range(1, 11)))
        assert all(answer.ok for answer in answers)
        assert [answer.replayed for answer in answers].count(False) == 1
        assert len(door.adapter.calls) == 1

    async def test_runner_within_its_lease_is_waited_for(self) -> None:
        door, store = self.door()
        await self.claimed(door, store, WRITE, lease_s=60)
        error = (await overdue(ask(door, 1, budget=MINUTE), 61.0)).error
        assert error is not None
        assert error.kind is ErrorKind.TIMEOUT

    async def test_running_call_holds_its_lease_until_after_its_deadline(self) -> None:
        door, _ = self.door()
        adapter = gated(door)
        running = asyncio.create_task(ask(door, 1))
        await adapter.started.wait()
        door.clock.advance(WRITE.limits.timeout_s)
        waiting = asyncio.create_task(ask(door, 2))
        await asyncio.sleep(0)
        adapter.gate.set()
        assert (await running).ok
        assert (await waiting).replayed


class TestDerivedKey:
    async def derived(self, door: Door, number: int, text: str = "a", **fields: Any) -> ToolResult:
        return await ask(door, number, DERIVED, {"text": text}, idempotency_key="", **fields)

    async def test_same_call_of_the_same_request_is_answered_from_store(self) -> None:
        door = a_keyed_door()
        assert not (await self.derived(door, 1)).replayed
        assert (await self.derived(door, 2)).replayed

    async def test_other_arguments_tasks_and_principals_are_other_effects(self) -> None:
        door = a_keyed_door()
        await self.derived(door, 1)
        assert not (await self.derived(door, 2, "b")).replayed
        assert not (await self.derived(door, 3, task_id="task-2")).replayed
        assert not (await self.derived(door, 4, principal="other")).replayed
        keys = [granted.idempotency_key for granted in door.adapter.calls]
        assert len(set(keys)) == 4, "an upstream that all principals share must tell them apart"
        assert {len(key) for key in keys} == {64}

    async def test_key_of_the_caller_comes_first(self) -> None:
        door = a_keyed_door()
        await ask(door, 1, DERIVED, {"text": "a"})
        assert door.adapter.calls[0].idempotency_key == "k-1"
        assert not (await self.derived(door, 2)).replayed

    async def test_nothing_is_derived_for_a_request_without_a_name(self) -> None:
        door = a_keyed_door()
        for number in (1, 2):
            unnamed = call(number, DERIVED, idempotency_key="")
            unnamed = unnamed._replace(context=unnamed.context._replace(request_id=""))
            answer = await door.pipeline.invoke(unnamed)
            assert isinstance(answer, ToolResult)
            assert not answer.replayed

    @pytest.mark.promise("idempotency.writes-are-not-deduplicated-unasked")
    async def test_writes_of_other_tools_are_never_deduplicated_unasked(self) -> None:
        """Write A, write B, write A must end with A."""
        door = a_keyed_door()
        for number, text in enumerate("aba"):
            await ask(door, number, WRITE, {"text": text}, idempotency_key="")
        assert [granted.args["text"] for granted in door.adapter.calls] == ["a", "b", "a"]


class StoreThatBreaks(MemoryKeys):
    """Loses its connection when the answer is to be stored."""

    async def settle(self, *_: Any) -> bool:
        raise refuse(ErrorKind.IO_ERROR, "The store cannot be reached.", retryable=True)


class StoreOutOfReach(MemoryKeys):
    """Answers nobody."""

    async def claim(self, *_: Any, **__: Any) -> KeyRecord | None:
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The store cannot be reached.", retryable=True)


class TestStoreThatFails:
    async def test_side_effect_is_refused_when_its_key_cannot_be_kept(self) -> None:
        door = a_keyed_door(store=StoreOutOfReach(ManualClock()))
        error = (await ask(door, 1)).error
        assert error is not None
        assert error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert not door.adapter.calls

    @pytest.mark.parametrize("spec", [READ, IDEMPOTENT])
    async def test_what_is_safe_to_repeat_runs_without_its_key(self, spec: ToolSpec) -> None:
        door = a_keyed_door(store=StoreOutOfReach(ManualClock()))
        assert [(await ask(door, number, spec)).replayed for number in (1, 2)] == [False, False]

    async def test_full_store_refuses_the_side_effect_with_advice(self) -> None:
        door = a_keyed_door()
        with_store(door, MemoryKeys(door.clock, max_keys=1))
        await ask(door, 1)
        error = (await ask(door, 2, idempotency_key="k-2")).error
        assert error is not None
        assert error.kind is ErrorKind.RATE_LIMITED
        assert error.retry_after_s == TTL_S
        assert (await ask(door, 3)).replayed, "the key that is kept still works"
        assert (await ask(door, 4, READ, idempotency_key="k-2")).ok

    async def test_answer_that_cannot_be_stored_still_reaches_the_caller(self) -> None:
        door = a_keyed_door()
        with_store(door, StoreThatBreaks(door.clock))
        assert (await ask(door, 1)).ok
        assert door.said[-1] == "unkept IO_ERROR"
        assert not door.observer.crashes
        door.clock.advance(WRITE.limits.timeout_s + 60)
        error = (await ask(door, 2)).error
        assert error is not None
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert len(door.adapter.calls) == 1
