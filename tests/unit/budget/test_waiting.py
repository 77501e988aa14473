"""Leases that wait for their turn: as long as there is time, in a queue that is bounded, leaving no other behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from tests.fakes.planned_calls import TIME_NOW, a_call, a_tool
from tests.unit.budget.test_ledger import BREAKER, FAILED, TERMS, LedgerHarness
from toolhub_service.budget.breaker import BreakerState
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.tool import ToolLimits
from toolhub_service.domain.verdict import Limit


class TestWaiting:
    async def test_a_call_waits_for_its_slot_and_gets_it(self) -> None:
        harness = LedgerHarness()
        held = [harness.take(), harness.take()]
        waiting = harness.take()
        assert waiting.is_pending
        admitted = asyncio.create_task(waiting.wait_for_admission())
        await queued(harness, 1)
        held[0].release()
        await admitted
        assert (waiting.is_pending, harness.budgets.in_flight("up")) == (False, 2)
        waiting.release()
        held[1].release()
        assert harness.budgets.in_flight("up") == 0

    @pytest.mark.promise("breaker.per-upstream")
    async def test_a_slow_upstream_never_delays_another(self) -> None:
        harness = LedgerHarness()
        held = [harness.take(upstream="slow"), harness.take(upstream="slow")]
        assert harness.take(upstream="slow").is_pending
        assert not harness.take(upstream="fast").is_pending
        assert len(held) == 2

    def test_work_that_is_only_followed_holds_no_slot_of_its_upstream(self) -> None:
        harness = LedgerHarness()
        followed = [harness.take(is_followed=True) for _ in range(5)]
        assert not any(lease.is_pending for lease in followed)
        assert harness.budgets.in_flight("up") == 0
        for lease in followed:
            lease.release(FAILED)
        assert (harness.budgets.in_flight("up"), harness.state()) == (0, BreakerState.OPEN)

    def test_how_many_may_run_at_once_holds_for_followed_work_where_the_tool_states_it(self) -> None:
        harness = LedgerHarness()
        spec = replace(TIME_NOW, limits=structs.replace(TIME_NOW.limits, max_concurrency=1))
        held = harness.take(a_call(spec), is_followed=True)
        assert harness.take(a_call(spec), is_followed=True).is_pending
        assert not held.is_pending

    async def test_a_wait_beyond_the_deadline_is_refused_and_spends_nothing(self) -> None:
        harness = LedgerHarness(Limit("l", quota=3))
        held = [harness.take(), harness.take()]
        late = harness.take(a_call(TIME_NOW, deadline_s=harness.clock.monotonic_s() + 0.001))
        with pytest.raises(ToolFailure) as caught:
            await late.wait_for_admission()
        assert caught.value.error.kind is ErrorKind.RATE_LIMITED
        assert caught.value.error.retry_after_s is not None
        for lease in held:
            lease.release()
        assert harness.budgets.in_flight("up") == 0
        harness.take().release()
        assert harness.refused().details["limit"] == "l"

    async def test_a_cancelled_wait_gives_everything_back(self) -> None:
        harness = LedgerHarness(Limit("l", quota=3))
        held = [harness.take(), harness.take()]
        waiting = asyncio.create_task(harness.take().wait_for_admission())
        await queued(harness, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for lease in held:
            lease.release()
        harness.take().release()
        assert harness.budgets.in_flight("up") == 0

    async def test_a_full_queue_sheds_at_once(self) -> None:
        harness = LedgerHarness()
        held = [harness.take(), harness.take()]
        waiting = [asyncio.create_task(harness.take().wait_for_admission()) for _ in range(3)]
        await queued(harness, 3)
        assert harness.refused().kind is ErrorKind.RATE_LIMITED
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(held) == 2

    async def test_full_queue_of_a_limit_sheds_at_once(self) -> None:
        harness = LedgerHarness(Limit("l", concurrency=1))
        held = harness.take()
        waiting = [asyncio.create_task(harness.take().wait_for_admission()) for _ in range(3)]
        await asyncio.sleep(0)
        error = harness.refused()
        assert (error.kind, error.details["waits_for"]) == (ErrorKind.RATE_LIMITED, "l")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        held.release()

    def test_a_call_that_cannot_get_its_turn_in_time_is_shed_at_once(self) -> None:
        harness = LedgerHarness()
        slow = harness.take()
        harness.clock.advance(20.0)
        slow.release()
        held = [harness.take(), harness.take()]
        hasty = a_call(TIME_NOW, budget=BudgetRequest(timeout_s=5.0))
        error = harness.refused(hasty)
        assert (error.kind, error.retry_after_s) == (ErrorKind.RATE_LIMITED, 10.0)
        assert harness.take(a_call(TIME_NOW)).is_pending
        assert len(held) == 2

    @pytest.mark.parametrize("cooldown_s", [5.0, 0.5])
    async def test_an_upstream_that_failed_meanwhile_is_left_alone(self, cooldown_s: float) -> None:
        harness = LedgerHarness(
            Limit("l", quota=3), terms=structs.replace(TERMS, breaker=structs.replace(BREAKER, cooldown_s=cooldown_s))
        )
        held = [harness.take(), harness.take()]
        waiting = asyncio.create_task(harness.take().wait_for_admission())
        await queued(harness, 1)
        for lease in held:
            lease.release(FAILED)
        with pytest.raises(ToolFailure) as caught:
            await waiting
        assert caught.value.error.kind is ErrorKind.CIRCUIT_OPEN
        assert harness.budgets.in_flight("up") == 0

    async def test_slots_of_limits_are_waited_for_before_those_of_the_upstream(self) -> None:
        harness = LedgerHarness(Limit("l", concurrency=1))
        held = harness.take()
        waiting = harness.take()
        assert waiting.is_pending
        assert harness.budgets.in_flight("up") == 1
        admitted = asyncio.create_task(waiting.wait_for_admission())
        await asyncio.sleep(0)
        held.release()
        await admitted
        assert harness.budgets.in_flight("up") == 1
        waiting.release()
        assert harness.budgets.in_flight("up") == 0

    def test_tools_that_share_an_upstream_share_its_smallest_bound(self) -> None:
        harness = LedgerHarness()
        narrow = a_tool("a/narrow", limits=ToolLimits(max_concurrency=1))
        assert not harness.take().is_pending
        assert harness.take(a_call(narrow)).is_pending


async def queued(harness: LedgerHarness, count: int) -> None:
    """A turn of the loop for each call that is to wait for the upstream."""
    known = harness.budgets._upstreams.get("up")
    assert known is not None
    for _ in range(count + 1):
        await asyncio.sleep(0)
    assert known.slots.waiting == count
