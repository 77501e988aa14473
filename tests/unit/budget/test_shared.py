"""Two hubs that count together: one quota, one rate, one budget of a request, and slots of each one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.fakes.planned_calls import TIME_NOW, a_call
from tests.fakes.shared_counts import FakeSharedCounts
from toolhub_service.budget.lease import Lease
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BreakerTerms, BudgetTerms
from toolhub_service.domain.call import BudgetRequest, Mode, PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.verdict import Effect, Limit, Refused, Taken, Verdict

CALL = a_call(TIME_NOW, request_id="r-1")
TWICE = a_call(TIME_NOW, request_id="r-1", budget=BudgetRequest(max_tool_calls=2))
FAILED = ToolError(ErrorKind.UPSTREAM_ERROR, "")
TERMS = BudgetTerms(breaker=BreakerTerms(min_calls=2, cooldown_s=5.0, probes=1), upstream_concurrency=1)


class TwoHubs:
    """Two hubs over one keeper of counts."""

    def __init__(self, *limits: Limit) -> None:
        self.clock = ManualClock()
        self.counts = FakeSharedCounts(self.clock)
        self.limits = limits
        self.here, self.there = (Budgets(self.clock, FixedRandomness(), TERMS, shared=self.counts) for _ in range(2))

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot of the first hub."""
        known = self.here._upstreams.get("up")
        return known.slots.waiting if known else 0

    def take(self, call: PlannedCall = CALL, at: Budgets | None = None, upstream: str = "up") -> Lease:
        verdict = Verdict(Effect.ALLOW, "rev", "grant:local", "ok", limits=self.limits)
        return (at or self.here).take(call, verdict, upstream)

    async def run(self, call: PlannedCall = CALL, at: Budgets | None = None) -> None:
        lease = self.take(call, at)
        if lease.is_pending:
            await lease.wait_for_admission()
        lease.release()

    async def refused(self, call: PlannedCall = CALL, at: Budgets | None = None) -> ToolError:
        with pytest.raises(ToolFailure) as caught:
            await self.run(call, at)
        return caught.value.error


def with_mode(call: PlannedCall, mode: Mode) -> PlannedCall:
    return call._replace(call=call.call._replace(mode=mode))


async def test_quota_is_one_for_both() -> None:
    hubs = TwoHubs(Limit("l", quota=2, quota_window_s=60.0))
    await hubs.run(at=hubs.here)
    await hubs.run(at=hubs.there)
    for at in (hubs.here, hubs.there):
        error = await hubs.refused(at=at)
        assert (error.kind, error.retry_after_s) == (ErrorKind.RATE_LIMITED, 60.0)
        assert error.details == {"limit": "l", "quota": 2}
    hubs.clock.advance(60.0)
    await hubs.run()


async def test_rate_is_one_for_both_and_refused_as_ever() -> None:
    hubs = TwoHubs(Limit("l", rate_per_s=2.0))
    await hubs.run(at=hubs.there)
    error = await hubs.refused(at=hubs.here)
    assert (error.kind, error.retry_after_s) == (ErrorKind.RATE_LIMITED, 0.5)
    assert error.details == {"limit": "l", "rate_per_s": 2.0}


async def test_calls_of_a_request_are_counted_at_both() -> None:
    hubs = TwoHubs()
    await hubs.run(TWICE, hubs.here)
    await hubs.run(TWICE, hubs.there)
    for at in (hubs.here, hubs.there):
        error = await hubs.refused(TWICE, at)
        assert error.kind is ErrorKind.BUDGET_EXCEEDED
        assert error.details == {"max_tool_calls": 2, "used_tool_calls": 2}
    await hubs.run(a_call(TIME_NOW, request_id="r-2", budget=BudgetRequest(max_tool_calls=1)))
    await hubs.run(a_call(TIME_NOW, principal="ann", request_id="r-1", budget=BudgetRequest(max_tool_calls=1)))


async def test_request_whose_limit_refuses_keeps_its_call() -> None:
    hubs = TwoHubs(Limit("l", rate_per_s=1.0))
    await hubs.run(TWICE, hubs.here)
    assert (await hubs.refused(TWICE, hubs.there)).kind is ErrorKind.RATE_LIMITED
    hubs.clock.advance(1.0)
    await hubs.run(TWICE, hubs.there)


async def test_calls_that_share_no_limit_ask_nobody() -> None:
    hubs = TwoHubs(Limit("l", concurrency=2))
    assert not hubs.take().is_pending
    assert not hubs.take(at=hubs.there).is_pending
    assert hubs.counts.asked == 0


@pytest.mark.parametrize("mode", [Mode.DRY_RUN, Mode.SUBMIT])
async def test_call_that_does_not_run_now_checks_the_quota_and_spends_nothing(mode: Mode) -> None:
    hubs = TwoHubs(Limit("l", quota=1))
    shown = with_mode(TWICE, mode)
    for _ in range(3):
        lease = hubs.take(shown)
        await lease.wait_for_admission()
        lease.refund()
    await hubs.run(TWICE)
    assert (await hubs.refused(shown)).kind is ErrorKind.RATE_LIMITED


async def test_counts_that_are_away_refuse_limited_calls_and_no_others() -> None:
    hubs = TwoHubs(Limit("l", quota=9))
    hubs.counts.away = refuse(ErrorKind.TOOL_UNAVAILABLE, "away")
    assert (await hubs.refused()).kind is ErrorKind.TOOL_UNAVAILABLE
    assert hubs.here.in_flight("up") == 0
    hubs.limits = ()
    await hubs.run()


async def test_a_caller_without_quota_delays_nobody() -> None:
    hubs = TwoHubs(Limit("l", quota=0))
    held, waiting = hubs.take(), hubs.take()
    assert (await failure_of(waiting)).kind is ErrorKind.RATE_LIMITED
    assert hubs.waiting == 0
    held.refund()
    assert hubs.here.in_flight("up") == 0


async def test_call_that_gets_no_slot_gives_back_what_all_share() -> None:
    hubs = TwoHubs(Limit("l", quota=2))
    held = hubs.take()
    await held.wait_for_admission()
    late = a_call(TIME_NOW, request_id="r-1", deadline_s=hubs.clock.monotonic_s() + 0.001)
    assert (await failure_of(hubs.take(late))).details["waits_for"] == "up"
    held.release()
    await hubs.run(at=hubs.there)
    assert (await hubs.refused()).kind is ErrorKind.RATE_LIMITED


async def test_cancelled_wait_gives_back_what_all_share() -> None:
    hubs = TwoHubs(Limit("l", quota=2))
    held = hubs.take()
    await held.wait_for_admission()
    waiting = asyncio.create_task(hubs.take().wait_for_admission())
    await queued(hubs)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await hubs.run(at=hubs.there)
    assert (await hubs.refused(at=hubs.there)).kind is ErrorKind.RATE_LIMITED
    held.release()
    assert hubs.here.in_flight("up") == 0


async def test_upstream_that_failed_meanwhile_is_left_alone_and_the_quota_given_back() -> None:
    hubs = TwoHubs(Limit("l", quota=3))
    first = hubs.take()
    await first.wait_for_admission()
    first.release(FAILED)
    held = hubs.take()
    await held.wait_for_admission()
    waiting = asyncio.create_task(failure_of(hubs.take()))
    await queued(hubs)
    held.release(FAILED)
    assert (await waiting).kind is ErrorKind.CIRCUIT_OPEN
    await hubs.run(at=hubs.there)
    assert (await hubs.refused(at=hubs.there)).kind is ErrorKind.RATE_LIMITED


async def test_counts_that_do_not_answer_in_time_refuse_and_nothing_has_happened() -> None:
    hubs = TwoHubs(Limit("l", quota=1))
    silent = Budgets(hubs.clock, FixedRandomness(), TERMS, shared=SilentCounts())
    hasty = a_call(TIME_NOW, deadline_s=hubs.clock.monotonic_s() + 0.001)
    error = await failure_of(hubs.take(hasty, silent))
    assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)
    assert silent.in_flight("up") == 0


async def test_counts_lost_while_giving_back_hide_nothing_of_the_refusal() -> None:
    hubs = TwoHubs(Limit("l", quota=2))
    held = hubs.take()
    await held.wait_for_admission()
    waiting = asyncio.create_task(failure_of(hubs.take(replace_deadline(CALL, hubs.clock.monotonic_s() + 0.01))))
    await queued(hubs)
    hubs.counts.away = refuse(ErrorKind.TOOL_UNAVAILABLE, "away")
    assert (await waiting).kind is ErrorKind.RATE_LIMITED
    held.release()


async def queued(hubs: TwoHubs) -> None:
    """Enough turns of the loop for a call that pays at once to wait for its slot."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert hubs.waiting == 1


class SilentCounts:
    """Never answers."""

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        await asyncio.Event().wait()
        raise AssertionError

    async def give_back(self, taken: Taken) -> None:
        raise AssertionError("nothing was taken")


def replace_deadline(call: PlannedCall, deadline_s: float) -> PlannedCall:
    return call._replace(call=call.call._replace(deadline_s=deadline_s))


async def failure_of(lease: Lease) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        await lease.wait_for_admission()
    return caught.value.error
