"""A circuit breaker for one upstream (Nygard, Release It!; Fowler, CircuitBreaker).

    CLOSED     every call passes; outcomes are counted over the present window and the one before
    OPEN       nothing passes until the rest is over; each failed probe doubles the rest, up to a maximum
    HALF_OPEN  a few probes pass; as many successes close it, one failure opens it again

Each change of state begins a new generation, and an outcome counts only in the generation in which its call was
admitted: a late answer from before the outage neither opens nor closes anything.
"""

from __future__ import annotations

from enum import Enum

from toolhub_service.budget.terms import BreakerTerms
from toolhub_service.domain.errors import ErrorKind, ToolError

_FAILURES = frozenset(
    {
        ErrorKind.UPSTREAM_ERROR,
        ErrorKind.TIMEOUT,
        ErrorKind.HTTP_TIMEOUT,
        ErrorKind.NETWORK_ERROR,
        ErrorKind.TOOL_UNAVAILABLE,
        ErrorKind.OUTCOME_UNKNOWN,
    }
)
_TIMEOUTS = frozenset({ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT, ErrorKind.OUTCOME_UNKNOWN})
_SAY_NOTHING = frozenset(
    {
        ErrorKind.CANCELLED,
        ErrorKind.BUDGET_EXCEEDED,
        ErrorKind.RATE_LIMITED,
        ErrorKind.CIRCUIT_OPEN,
        ErrorKind.INTERNAL,
        ErrorKind.POLICY_DENIED,
        ErrorKind.HTTP_DISALLOWED_HOST,
        ErrorKind.PATH_OUTSIDE_SANDBOX,
    }
)
_DEFECT = ErrorKind.INTERNAL.value
"""The cause of an unknown outcome that a defect left behind."""


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Health(Enum):
    """What an outcome says about the upstream."""

    WELL = "well"
    ILL = "ill"
    SILENT = "silent"
    """Nothing: the call was cancelled, or refused on this side."""


def health(outcome: ErrorKind | ToolError | None, had_fair_time: bool = True) -> Health:
    """What the outcome of a call says about its upstream; None is success.

    An upstream that answers 4xx is well (the request was wrong), except 408; a timeout says nothing when the
    caller gave it no fair time, and a defect on this side, however it is told, nothing at all.
    """
    if outcome is None:
        return Health.WELL
    kind = outcome.kind if isinstance(outcome, ToolError) else outcome
    if kind in _SAY_NOTHING or (isinstance(outcome, ToolError) and outcome.details.get("cause") == _DEFECT):
        return Health.SILENT
    if kind not in _FAILURES:
        return Health.WELL
    if kind in _TIMEOUTS and not had_fair_time:
        return Health.SILENT
    if isinstance(outcome, ToolError) and outcome.upstream is not None:
        status = outcome.upstream.status
        return Health.WELL if 400 <= status < 500 and status != 408 else Health.ILL
    return Health.ILL


class Breaker:
    __slots__ = (
        "_calls",
        "_cooldown_s",
        "_failures",
        "_generation",
        "_past_calls",
        "_past_failures",
        "_probing",
        "_rests_until_s",
        "_state",
        "_successes",
        "_terms",
        "_window_from_s",
    )

    def __init__(self, terms: BreakerTerms) -> None:
        self._terms = terms
        self._generation = 0
        self._cooldown_s = terms.cooldown_s
        self._rests_until_s = self._window_from_s = 0.0
        self._calls = self._failures = self._past_calls = self._past_failures = 0
        self._close()

    @property
    def state(self) -> BreakerState:
        """As of the last call: an OPEN one becomes HALF_OPEN when the next call asks."""
        return self._state

    def state_at(self, now_s: float) -> BreakerState:
        """What the next call will meet: one whose rest is over is HALF_OPEN, though nobody has called since."""
        is_rested = self._state is BreakerState.OPEN and now_s >= self._rests_until_s
        return BreakerState.HALF_OPEN if is_rested else self._state

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may pass; 0 when it may now."""
        if self._state is BreakerState.CLOSED:
            return 0.0
        if self._state is BreakerState.OPEN:
            return max(0.0, self._rests_until_s - now_s)
        return 0.0 if self._probing < self._terms.probes else self._terms.cooldown_s

    def admit(self, now_s: float) -> int:
        """Let a call pass, after `wait_s` said 0. Returns its ticket."""
        if self._state is BreakerState.OPEN:
            self._enter(BreakerState.HALF_OPEN)
            self._probing = self._successes = 0
        if self._state is BreakerState.HALF_OPEN:
            self._probing += 1
        return self._generation

    def settle(self, ticket: int, outcome: Health, now_s: float) -> None:
        """Hear how an admitted call ended; once a ticket."""
        if ticket != self._generation:
            return
        if self._state is BreakerState.HALF_OPEN:
            self._settle_probe(outcome, now_s)
        elif outcome is not Health.SILENT:
            self._count(outcome is Health.ILL, now_s)

    def _settle_probe(self, outcome: Health, now_s: float) -> None:
        self._probing -= 1
        if outcome is Health.ILL:
            self._cooldown_s = min(self._cooldown_s * 2, self._terms.max_cooldown_s)
            self._open(now_s)
        elif outcome is Health.WELL:
            self._successes += 1
            if self._successes >= self._terms.probes:
                self._cooldown_s = self._terms.cooldown_s
                self._close()

    def _count(self, failed: bool, now_s: float) -> None:
        age_s = now_s - self._window_from_s
        if age_s >= self._terms.window_s:
            is_adjacent = age_s < 2 * self._terms.window_s
            self._past_calls = self._calls if is_adjacent else 0
            self._past_failures = self._failures if is_adjacent else 0
            self._calls = self._failures = 0
            self._window_from_s = now_s
        self._calls += 1
        if failed:
            self._failures += 1
            calls = self._calls + self._past_calls
            failures = self._failures + self._past_failures
            if calls >= self._terms.min_calls and failures >= calls * self._terms.failure_ratio:
                self._open(now_s)

    def _open(self, now_s: float) -> None:
        self._enter(BreakerState.OPEN)
        self._rests_until_s = now_s + self._cooldown_s

    def _close(self) -> None:
        self._enter(BreakerState.CLOSED)
        self._calls = self._failures = self._past_calls = self._past_failures = 0
        self._probing = self._successes = 0
        self._rests_until_s = 0.0
        self._window_from_s = float("-inf")

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
