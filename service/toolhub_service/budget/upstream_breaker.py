"""The breakers of one upstream: one shared by all principals, and one for each principal that has met failures.

A principal's own breaker opens because of its own calls only. The shared one opens only when the calls fail even
without those of any single principal. While it is half-open, each principal has one probe at a time; a failed probe
pauses that principal, and it takes the failed probes of two to open the breaker again. Decision 0029.
"""

from __future__ import annotations

from collections import OrderedDict

from toolhub_service.budget.breaker import Breaker, BreakerState, Health
from toolhub_service.budget.terms import BreakerTerms

Ticket = tuple[int, int]
"""Generations of the shared breaker and of the principal's own in which a call was admitted."""

SPENT: Ticket = (-1, -1)
"""A ticket of no generation: the call's outcome has been reported."""

PRINCIPALS_MAX = 64
"""Most breakers of principals, and principals whose failures are counted separately, for each upstream."""

# Principals whose probes must fail before the shared breaker opens again.
_AGREEING = 2

_NOTHING = (0, 0)

_GRAVEST_FIRST = (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED)

# The generation of a breaker that is created while calls are under way: they count in it.
_FIRST_GENERATION = 1


class UpstreamBreaker:
    __slots__ = ("_own", "_shared", "_terms")

    def __init__(self, terms: BreakerTerms) -> None:
        self._terms = terms
        self._shared = _SharedBreaker(terms)
        # Least recently failed first.
        self._own: OrderedDict[str, Breaker] = OrderedDict()

    def wait_s(self, principal: str, now_s: float) -> float:
        """Seconds until a call of this principal may pass; 0 when it may now."""
        own = self._own.get(principal) if self._own else None
        if self._shared.state is BreakerState.CLOSED:
            return own.wait_s(now_s) if own else 0.0
        return max(self._shared.wait_of(principal, now_s), own.wait_s(now_s) if own else 0.0)

    def admit(self, principal: str, now_s: float) -> Ticket:
        """Let a call pass, after `wait_s` returned 0, and return its ticket."""
        shared = self._shared
        own = self._own.get(principal) if self._own else None
        generation = own.admit(now_s) if own else _FIRST_GENERATION
        if shared.state is BreakerState.CLOSED:
            return shared.generation, generation
        return shared.admit_probe(principal, now_s), generation

    def settle(self, principal: str, ticket: Ticket, outcome: Health, now_s: float) -> None:
        """Count how an admitted call ended, once per ticket."""
        if ticket is SPENT:
            return
        shared = self._shared
        if outcome is Health.FAILING or (self._own and principal in self._own):
            is_probe = shared.state is BreakerState.HALF_OPEN and ticket[0] == shared.generation
            self._settle_own(principal, ticket[1], outcome, now_s, trips=is_probe)
        shared.settle_of(principal, ticket[0], outcome, now_s)

    def state_at(self, now_s: float) -> BreakerState:
        """Return the worst state that any principal's next call will meet."""
        states = {self._shared.state_at(now_s)}
        states.update(own.state_at(now_s) for own in self._own.values())
        return next(state for state in _GRAVEST_FIRST if state in states)

    def _settle_own(self, principal: str, ticket: int, outcome: Health, now_s: float, *, trips: bool) -> None:
        own = self._own.get(principal)
        if own is None:
            own = self._own[principal] = Breaker(self._terms)
            self._make_room()
        own.settle(ticket, outcome, now_s)
        if outcome is Health.FAILING:
            self._own.move_to_end(principal)
            if trips:
                own.trip(now_s)
        elif own.is_blank(now_s):
            del self._own[principal]

    def _make_room(self) -> None:
        """Drop a closed breaker, else the one that failed least recently: at worst its upstream is called again."""
        if len(self._own) > PRINCIPALS_MAX:
            closed = (name for name, own in self._own.items() if own.state is BreakerState.CLOSED)
            del self._own[next(closed, next(iter(self._own)))]


class _SharedBreaker(Breaker):
    """Opens when no single principal's calls explain the failures."""

    __slots__ = ("_past_tallies", "_probers", "_refuted", "_tallies")

    def __init__(self, terms: BreakerTerms) -> None:
        # Calls and failures of each principal since its first failure in the window.
        self._tallies: dict[str, tuple[int, int]] = {}
        self._past_tallies: dict[str, tuple[int, int]] = {}
        self._probers: set[str] = set()
        # Principals whose probes have failed since the breaker became half-open.
        self._refuted: set[str] = set()
        super().__init__(terms)

    def wait_of(self, principal: str, now_s: float) -> float:
        """Seconds until a call of this principal may pass; 0 when it may now."""
        is_probing = self.state is BreakerState.HALF_OPEN and principal in self._probers
        return self._terms.cooldown_s if is_probing else self.wait_s(now_s)

    def admit_probe(self, principal: str, now_s: float) -> int:
        if self.state is BreakerState.OPEN:
            self._refuted.clear()
            self._probers.clear()
        ticket = self.admit(now_s)
        self._probers.add(principal)
        return ticket

    def settle_of(self, principal: str, ticket: int, outcome: Health, now_s: float) -> None:
        if ticket != self.generation:
            return
        if self.state is BreakerState.HALF_OPEN:
            self._probers.discard(principal)
            if outcome is Health.FAILING:
                self._refuted.add(principal)
                if len(self._refuted) < _AGREEING:
                    outcome = Health.NO_EVIDENCE
            self._settle_probe(outcome, now_s)
        elif outcome is not Health.NO_EVIDENCE:
            if now_s - self._window_from_s >= self._terms.window_s:
                self._next_window(now_s)
            failed = outcome is Health.FAILING
            if failed or self._tallies:
                self._count_outcome(principal, failed)
            self._count(failed, now_s)

    def _count_outcome(self, principal: str, failed: bool) -> None:
        known = self._tallies.get(principal)
        if known is not None:
            self._tallies[principal] = (known[0] + 1, known[1] + failed)
        elif failed and len(self._tallies) < PRINCIPALS_MAX:  # beyond, the cause is not one principal
            self._tallies[principal] = (1, 1)

    def _is_failing(self, calls: int, failures: int) -> bool:
        """Return whether enough calls fail, even when the calls of any one principal are left out."""
        return super()._is_failing(calls, failures) and all(
            self._agree_without(principal, calls, failures)
            for principal in self._tallies.keys() | self._past_tallies.keys()
        )

    def _agree_without(self, principal: str, calls: int, failures: int) -> bool:
        for tallies in (self._tallies, self._past_tallies):
            own_calls, own_failures = tallies.get(principal, _NOTHING)
            calls -= own_calls
            failures -= own_failures
        return 2 * calls >= self._terms.min_calls and super()._is_failing(calls, failures)

    def _next_window(self, now_s: float) -> None:
        is_adjacent = now_s - self._window_from_s < 2 * self._terms.window_s
        self._past_tallies = self._tallies if is_adjacent else {}
        self._tallies = {}
        super()._next_window(now_s)

    def _close(self) -> None:
        super()._close()
        self._tallies, self._past_tallies = {}, {}
