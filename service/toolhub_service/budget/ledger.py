"""Step 5: everything a call needs before it may run, taken completely or not at all.

`take` checks first and spends afterwards, without awaiting in between, so that a refused call costs nothing. The lease
is pending only when a slot must be awaited or the counters shared by hubs must be asked. All other counters are this
process's own; their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolhub_service.budget.breaker import BreakerState
from toolhub_service.budget.concurrency import Slots
from toolhub_service.budget.deadline import effective_deadline_s
from toolhub_service.budget.lease import Lease, LeaseDeps, Upstream, refuse_by_open_breaker, refuse_too_many_calls
from toolhub_service.budget.limits import Counter, Counters
from toolhub_service.budget.quota import RequestCalls, RequestKey, refuse_used_up_request
from toolhub_service.budget.recent import Recent
from toolhub_service.budget.shared import due_of
from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.budget.upstream_breaker import SPENT, UpstreamBreaker
from toolhub_service.domain.call import PlannedCall, Tenancy
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.shares import may_take
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Limit, SharedCounts, Verdict


class Budgets:
    def __init__(
        self,
        clock: Clock,
        randomness: Randomness,
        terms: BudgetTerms | None = None,
        shared: SharedCounts | None = None,
    ) -> None:
        """`shared` is where all hubs count rate, quota and the calls of requests together; None: this hub counts by
        itself."""
        self._clock = clock
        self._shared = shared
        self._terms = terms or BudgetTerms()
        self._counters = Counters(self._terms.max_limits, only_slots=shared is not None)
        self._requests = RequestCalls(self._terms.max_requests)
        self._bank = LeaseDeps(clock, randomness, self._terms, self._requests)
        self._upstreams: Recent[Upstream] = Recent(self._terms.max_upstreams, lambda known, _: known.slots.is_idle)

    def take(
        self,
        planned: PlannedCall,
        verdict: Verdict,
        upstream: str,
        *,
        reads_only: bool = False,
        is_followed: bool = False,
    ) -> Lease:
        """Take everything the call needs. Raises ToolFailure TIMEOUT, BUDGET_EXCEEDED, RATE_LIMITED or CIRCUIT_OPEN,
        and has spent nothing then.

        `upstream` is the adapter's key of breaker and concurrency; a tool's name has no breaker. `reads_only`: this
        call changes nothing, which makes it safe to retry. `is_followed`: the work waits in the upstream's own queue,
        and takes a slot only if its tool limits them.
        """
        now_s = self._clock.monotonic_s()
        deadline_s = effective_deadline_s(planned, now_s, self._terms.max_timeout_s)
        key, own_limit = upstream or planned.spec.upstream_key, planned.spec.limits.max_concurrency
        remote = self._upstreams.get(key)
        if remote is None or (own_limit and own_limit < remote.slots.limit):
            remote = self._upstream(key, planned.spec, now_s)
        self._upstreams.move_to_end(key)
        breaker, context = remote.breaker, planned.call.context
        if breaker is not None and (wait_s := breaker.wait_s(planned.call.principal.id, now_s)) > 0:
            raise refuse_by_open_breaker(remote.key, wait_s)
        request_id = context.request_id  # an id made by the hub belongs to this call only
        request = (planned.call.principal.id, request_id) if request_id not in ("", planned.call.call_id) else None
        if request and context.budget.max_tool_calls is not None:
            self._check_request(request, context.budget.max_tool_calls)
        counters = self._counters.of(verdict.limits, now_s) if verdict.limits else ()
        slots = None if is_followed and not planned.spec.limits.max_concurrency else remote.slots
        if counters:
            self._check_counters(counters, now_s, deadline_s, planned.call.principal.tenancy)
        has_slot = slots is not None and not counters and slots.try_take()
        if slots and not has_slot and not slots.has_room():
            self._check_queue(slots, remote.key, deadline_s - now_s, planned.call.principal.tenancy)
        due = due_of(self._shared, planned.call, request, verdict.limits) if self._shared else None
        ticket = breaker.admit(planned.call.principal.id, now_s) if breaker else SPENT
        lease = Lease(
            _bank=self._bank,
            _upstream=remote,
            _planned=planned,
            _request=request,
            _started_s=now_s,
            deadline_s=deadline_s,
            _reads_only=reads_only,
            _due=due,
            _ticket=ticket,
            _held=[slots] if slots and has_slot else [],
        )
        lease.is_pending = due is not None
        if request:
            self._requests.take(request)
        if counters:
            lease.spend(counters, now_s)
        if slots and not has_slot:
            lease.occupy(slots)
        return lease

    def check_rate(self, limits: tuple[Limit, ...]) -> None:
        """Raises ToolFailure RATE_LIMITED where a call could not pass these limits now. Spends nothing."""
        now_s = self._clock.monotonic_s()
        for counter in self._counters.of(limits, now_s):
            counter.check(now_s)

    def breaker_states(self) -> Iterator[tuple[str, BreakerState]]:
        """Return every remembered upstream with the worst state that a principal's next call will meet; for metrics."""
        now_s = self._clock.monotonic_s()
        known = ((upstream.key, upstream.breaker) for upstream in self._upstreams.values())
        return ((key, breaker.state_at(now_s)) for key, breaker in known if breaker is not None)

    def forget(self, upstream: str) -> None:
        """Forget an upstream that was replaced: the new one has its own breaker and limits; calls under way end with
        the old ones."""
        self._upstreams.pop(upstream, None)

    def in_flight(self, upstream: str) -> int:
        """Return the number of calls that hold a slot of the upstream."""
        known = self._upstreams.get(upstream)
        return known.slots.in_use if known else 0

    def _upstream(self, key: str, spec: ToolSpec, now_s: float) -> Upstream:
        known = self._upstreams.get(key)
        own_limit = spec.limits.max_concurrency
        if known is None:
            slots = Slots(own_limit or self._terms.upstream_concurrency)
            known = Upstream(key, slots, UpstreamBreaker(self._terms.breaker) if key != spec.name else None)
            if not self._upstreams.add(key, known, now_s):
                raise refuse_too_many_calls(key, 1.0)
        elif own_limit and own_limit < known.slots.limit:
            known.slots.limit = own_limit  # tools that share an upstream share its smallest limit
        return known

    def _check_request(self, request: RequestKey, max_tool_calls: int) -> None:
        used = self._requests.count(request)
        if used >= max_tool_calls:
            raise refuse_used_up_request(max_tool_calls, used)

    def _check_counters(
        self, counters: tuple[Counter, ...], now_s: float, deadline_s: float, tenancy: Tenancy | None
    ) -> None:
        for counter in counters:
            counter.check(now_s)
            if counter.slots and not counter.slots.has_room():
                self._check_queue(counter.slots, counter.limit.id, deadline_s - now_s, tenancy)

    def _check_queue(self, slots: Slots, name: str, time_left_s: float, tenancy: Tenancy | None) -> None:
        """Check whether one more call may wait for a slot, as none is free. A tenant has a share of the waiting
        places."""
        tenant, waiting, most = "" if tenancy is None else tenancy.name, slots.waiting, self._terms.max_waiting
        wait_s = slots.expected_wait_s(tenant)
        is_full = waiting >= most if tenancy is None else not may_take(slots.waiting_of(tenant), waiting, most)
        if is_full or wait_s > time_left_s:
            raise refuse_too_many_calls(name, wait_s)
