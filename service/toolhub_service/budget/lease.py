"""A lease: what one call has taken of its budget, and the only way to return it.

lease = budgets.take(planned, verdict, upstream)
if lease.is_pending:
    await lease.admitted()
…run…
lease.release(error)          # or lease.refund() when nothing ran
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from toolhub_service.budget.breaker import SPENT, Health, Ticket, UpstreamBreaker, health
from toolhub_service.budget.concurrency import Slots
from toolhub_service.budget.limits import Counter, Due, RequestCalls, RequestKey
from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.domain.call import Call, Mode, PlannedCall
from toolhub_service.domain.errors.failure import KEY_SENT, ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.ports import Clock, Randomness

# Until when a call may run.
#
# The caller's deadline is the outer limit, and its budget narrows it; without either, the tool's own timeout applies.
# The operator's limit for calls of a source, and the hub's maximum, bound all of them. A job already has a deadline.


def within_budget(call: Call, now_s: float) -> Call:
    """Return the call with its budget's time as its deadline, from `now_s` on: what waits before step 5 (large
    arguments, a key that another call holds) counts, too. A job's budget is the job's, counted from its submission."""
    allowed_s = call.context.budget.timeout_s
    if allowed_s is None or not allowed_s > 0 or call.mode is Mode.SUBMIT or call.job_id:
        return call
    deadline_s = now_s + allowed_s
    return call._replace(deadline_s=deadline_s if call.deadline_s is None else min(deadline_s, call.deadline_s))


def too_late(now_s: float, deadline_s: float) -> ToolFailure:
    """Return the refusal of a call whose time is over before its tool was started."""
    return refuse(
        ErrorKind.TIMEOUT,
        "The deadline passed before the tool was started, so nothing happened: call again with more time.",
        late_by_s=round(now_s - deadline_s, 3),
    )


def effective_deadline_s(planned: PlannedCall, now_s: float, max_timeout_s: float) -> float:
    """Return the deadline on the loop clock. Raises ToolFailure TIMEOUT or BUDGET_EXCEEDED when there is no time left
    to begin."""
    outer_s = planned.call.deadline_s
    allowed_s = planned.call.context.budget.timeout_s
    if planned.call.job_id and outer_s is not None:
        max_timeout_s = max(max_timeout_s, outer_s - now_s)  # a job's deadline comes from the limit for jobs
    limits = planned.spec.limits
    # Most tools have neither limit, and every call comes by here.
    is_limited = limits.call_max_s or limits.call_max_in_job_s
    most_s = limits.most_s(in_job=bool(planned.call.job_id)) if is_limited else 0.0
    if most_s and not (planned.call.job_id and planned.spec.cost.is_async):
        max_timeout_s = min(max_timeout_s, most_s)
    if outer_s is None and allowed_s is None:
        return now_s + min(limits.timeout_s, max_timeout_s)
    deadline_s = now_s + max_timeout_s
    if allowed_s is not None:
        if not allowed_s > 0:  # also NaN
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                "budget.timeout leaves the call no time: send a larger budget.timeout, or none.",
                timeout_s=0,
            )
        deadline_s = min(deadline_s, now_s + allowed_s)
    if outer_s is not None:
        if outer_s <= now_s:
            raise too_late(now_s, outer_s)
        deadline_s = min(deadline_s, outer_s)
    return deadline_s


# Whether and when a call is retried.
#
# Only what is retryable *and* safe: a read, or an idempotent tool. A key makes a call safe only where it was sent to
# the upstream, and the policy says that this upstream honours keys. The pause is exponential with full jitter (Brooker,
# "Exponential Backoff And Jitter", AWS Architecture Blog), after whatever the upstream requested, and never beyond the
# deadline.

_NEVER = frozenset({ErrorKind.OUTCOME_UNKNOWN, ErrorKind.CANCELLED})


def max_attempts(planned: PlannedCall, terms: BudgetTerms, is_safe: bool) -> int:
    """Return how often the adapter may be called: as the caller wants or else as the tool says, within the hub's limit;
    at least 1."""
    if not is_safe:
        return 1
    wished = planned.call.context.budget.max_retries
    retries = planned.spec.limits.max_retries if wished is None else wished
    return 1 + max(0, min(retries, terms.max_retries))


def pause_s(
    error: ToolError, attempt: int, time_left_s: float, terms: BudgetTerms, randomness: Randomness
) -> float | None:
    """Return the seconds to wait after the `attempt`-th failure (from 1), or None when a retry cannot succeed in
    time."""
    if not error.is_retryable or error.kind in _NEVER:
        return None
    ceiling_s = min(terms.retry_cap_s, terms.retry_initial_s * 2.0 ** min(attempt - 1, 32))
    wait_s = (error.retry_after_s or 0.0) + randomness.uniform(0.0, ceiling_s)
    return wait_s if wait_s < time_left_s else None


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

    async def admitted(self) -> None:
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
            raise too_many_calls(self._upstream.key, wait_s) from None

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

        Counters shared by hubs are not touched: `admitted` returns what it took itself, and spends it only for calls
        that run.
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
            raise breaker_open(self._upstream.key, wait_s)
        self._admit(now_s)
        self._started_s = now_s


def too_many_calls(upstream: str, wait_s: float) -> ToolFailure:
    """The refusal of too many calls at once."""
    wait_s = max(wait_s, 0.1)
    return refuse(
        ErrorKind.RATE_LIMITED,
        f"Too many calls to {upstream} are running, and this one would not start in time. "
        f"Send fewer at once, or again in {wait_s:.3g} seconds.",
        retry_after_s=wait_s,
        waits_for=upstream,
    )


def breaker_open(upstream: str, wait_s: float) -> ToolFailure:
    """The refusal by an open breaker."""
    return refuse(
        ErrorKind.CIRCUIT_OPEN,
        f"{upstream} failed repeatedly, so calls to it are paused. "
        f"Use another tool, or try again in {wait_s:.3g} seconds.",
        retry_after_s=wait_s,
        waits_for=upstream,
    )
