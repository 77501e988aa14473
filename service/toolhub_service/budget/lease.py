"""A lease: what one call has taken of its budget, and the only way to return it.

lease = budgets.take(planned, verdict, upstream)
if lease.is_pending:
    await lease.wait_for_admission()
…run…
lease.release(error)          # or lease.refund() when nothing ran
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from toolhub_service.budget.breaker import Health, health
from toolhub_service.budget.concurrency import Slots
from toolhub_service.budget.limits import Counter
from toolhub_service.budget.quota import RequestCalls, RequestKey
from toolhub_service.budget.retry import max_attempts, pause_s
from toolhub_service.budget.shared import Due
from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.budget.upstream_breaker import SPENT, Ticket, UpstreamBreaker
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import KEY_SENT, ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.ports import Clock, Randomness

# A timeout that is shorter by up to a tenth was shortened on the way here, not by choice.
_ALMOST = 0.9


class Upstream:
    """What calls share: the slots, and the breaker where it is a remote system."""

    __slots__ = ("breaker", "key", "slots")

    def __init__(self, key: str, slots: Slots, breaker: UpstreamBreaker | None) -> None:
        self.key = key
        self.slots = slots
        self.breaker = breaker


class LeaseDeps(NamedTuple):
    """What all leases of a hub share."""

    clock: Clock
    randomness: Randomness
    terms: BudgetTerms
    requests: RequestCalls


def _tenant(planned: PlannedCall) -> str:
    """Return whose turn for a slot the call uses; empty where there are no tenants."""
    tenancy = planned.call.principal.tenancy
    return "" if tenancy is None else tenancy.name


class Lease(msgspec.Struct, eq=False):
    """Created by `Budgets.take` only. Return it exactly once; a second time does nothing."""

    _bank: LeaseDeps
    _upstream: Upstream
    _planned: PlannedCall
    _request: RequestKey | None
    _started_s: float
    deadline_s: float
    """Loop clock."""
    _reads_only: bool
    _due: Due | None
    _ticket: Ticket
    _held: list[Slots]
    _awaited: list[Slots] = []
    _spent: list[tuple[Counter, float]] = []
    _is_over: bool = False
    is_pending: bool = False
    """Whether the call must still wait for a slot or for the counters shared by all hubs."""

    def max_attempts(self, error: ToolError) -> int:
        """Return how often the adapter may be called, the first time included, after one attempt failed with this
        error."""
        is_safe = self._reads_only or self._planned.spec.annotations.safe_to_repeat
        return max_attempts(self._planned, self._bank.terms, is_safe or error.details.get(KEY_SENT) is True)

    @property
    def upstream(self) -> str:
        return self._upstream.key

    def spend(self, counters: tuple[Counter, ...], now_s: float) -> None:
        """Count the call against its limits; for Budgets."""
        for counter in counters:
            self._spent.append((counter, counter.take(now_s)))
            if counter.slots:
                self.occupy(counter.slots)

    def occupy(self, slots: Slots) -> None:
        """Take a slot, or queue for it and all after it: all calls use one order, so that there is no deadlock."""
        if not self._awaited and slots.try_take():
            self._held.append(slots)
        else:
            self._awaited.append(slots)
            self.is_pending = True

    async def wait_for_admission(self) -> None:
        """Take from the counters that hubs share, then wait for the missing slots: a call without quota occupies none.

        Raises:
            ToolFailure: RATE_LIMITED when a shared count is used up or no slot came free before the deadline,
                BUDGET_EXCEEDED, CIRCUIT_OPEN when the upstream failed meanwhile, TOOL_UNAVAILABLE when the shared
                counts cannot be read. Everything is returned then, and also when the wait is cancelled.
        """
        due, self._due = self._due, None
        try:
            if due is not None:
                await due.pay(self._time_left_s())
            await self._fetch_slots()
            self._readmit()
        except BaseException:
            self.refund()
            if due is not None:
                await due.give_back()
            raise
        finally:
            self.is_pending = bool(self._awaited)

    async def _fetch_slots(self) -> None:
        try:
            while self._awaited:
                await self._awaited[0].wait(self._time_left_s(), _tenant(self._planned))
                self._held.append(self._awaited.pop(0))
        except TimeoutError:
            wait_s = self._upstream.slots.expected_wait_s(_tenant(self._planned))
            raise refuse_too_many_calls(self._upstream.key, wait_s) from None

    def _time_left_s(self) -> float:
        return self.deadline_s - self._bank.clock.monotonic_s()

    def retry_pause_s(self, error: ToolError, attempt: int) -> float | None:
        """Return the seconds to wait before retrying after the `attempt`-th failure (from 1), or None: the failure is
        final.

        Reports the failure to the breaker and asks it to admit the next attempt.
        """
        now_s = self._bank.clock.monotonic_s()
        self._report(error, now_s)
        if attempt >= self.max_attempts(error):
            return None
        wait_s = pause_s(error, attempt, self.deadline_s - now_s, self._bank.terms, self._bank.randomness)
        if wait_s is None or self._rest_s(now_s) > 0:
            return None
        self._admit(now_s)
        return wait_s

    def release(self, outcome: ErrorKind | ToolError | None = None) -> None:
        """Return the slots of a call that is over, and report its outcome to the breaker. None is success."""
        if self._is_over:
            return
        self._is_over = True
        now_s = self._bank.clock.monotonic_s()
        if self._upstream.breaker is not None:
            self._report(outcome, now_s)
        for slots in self._held:
            slots.give_back(now_s - self._started_s)

    def refund(self) -> None:
        """Return everything, rate and quota too: the call never ran (a dry run, a refusal after this step).

        Counters shared by hubs are not touched: `wait_for_admission` returns what it took itself, and spends it only
        for calls that run.
        """
        if self._is_over:
            return
        self._is_over = True
        self._settle(Health.NO_EVIDENCE, self._started_s)
        for slots in self._held:
            slots.give_back()
        for counter, opened_at_s in self._spent:
            counter.give_back(opened_at_s)
        if self._request is not None:
            self._bank.requests.give_back(self._request)

    def blame(self) -> None:
        """Count a failure of the upstream, although the tool returns the failing answer as a success."""
        self._settle(Health.FAILING, self._bank.clock.monotonic_s())

    def _report(self, outcome: ErrorKind | ToolError | None, now_s: float) -> None:
        if self._upstream.breaker is not None:
            reported = Health.HEALTHY if outcome is None else health(outcome, self._had_fair_time())
            self._settle(reported, now_s)

    def _had_fair_time(self) -> bool:
        """Return whether the call had the time that tool and hub allow, not less by its caller's choice."""
        fair_s = min(self._planned.spec.limits.usual_s, self._bank.terms.max_timeout_s)
        return self.deadline_s - self._started_s >= _ALMOST * fair_s

    def _settle(self, reported: Health, now_s: float) -> None:
        if self._upstream.breaker is not None:
            self._upstream.breaker.settle(self._planned.call.principal.id, self._ticket, reported, now_s)
            self._ticket = SPENT

    def _admit(self, now_s: float) -> None:
        if self._upstream.breaker is not None:
            self._ticket = self._upstream.breaker.admit(self._planned.call.principal.id, now_s)

    def _rest_s(self, now_s: float) -> float:
        return (
            self._upstream.breaker.wait_s(self._planned.call.principal.id, now_s)
            if self._upstream.breaker is not None
            else 0.0
        )

    def _readmit(self) -> None:
        """Ask the breakers again after waiting: the upstream may have failed meanwhile."""
        now_s = self._bank.clock.monotonic_s()
        self._settle(Health.NO_EVIDENCE, now_s)
        if (wait_s := self._rest_s(now_s)) > 0:
            raise refuse_by_open_breaker(self._upstream.key, wait_s)
        self._admit(now_s)
        self._started_s = now_s


def refuse_too_many_calls(upstream: str, wait_s: float) -> ToolFailure:
    """The refusal of too many calls at once."""
    wait_s = max(wait_s, 0.1)
    return refuse(
        ErrorKind.RATE_LIMITED,
        f"Too many calls to {upstream} are running, and this one would not start in time. "
        f"Send fewer at once, or again in {wait_s:.3g} seconds.",
        retry_after_s=wait_s,
        waits_for=upstream,
    )


def refuse_by_open_breaker(upstream: str, wait_s: float) -> ToolFailure:
    """The refusal by an open breaker."""
    return refuse(
        ErrorKind.CIRCUIT_OPEN,
        f"{upstream} failed repeatedly, so calls to it are paused. "
        f"Use another tool, or try again in {wait_s:.3g} seconds.",
        retry_after_s=wait_s,
        waits_for=upstream,
    )
