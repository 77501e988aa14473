"""A circuit breaker over the calls of one upstream (Nygard, Release It!; Fowler, CircuitBreaker).

    CLOSED     every call passes; outcomes are counted over the present window and the one before
    OPEN       nothing passes until the pause is over; each failed probe doubles the pause, up to a maximum
    HALF_OPEN  a few probes pass; as many successes close it, one failure opens it again

Each change of state begins a new generation, and an outcome counts only in the generation in which its call was
admitted: a late answer from before the outage neither opens nor closes anything.
"""

from __future__ import annotations

from enum import Enum

from toolhub_service.budget.terms import BreakerTerms
from toolhub_service.domain.errors.failure import ErrorKind, ToolError

_FAILURES = frozenset(
    {
        *(ErrorKind.UPSTREAM_ERROR, ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT, ErrorKind.NETWORK_ERROR),
        *(ErrorKind.TOOL_UNAVAILABLE, ErrorKind.OUTCOME_UNKNOWN),
    }
)
_TIMEOUTS = frozenset({ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT, ErrorKind.OUTCOME_UNKNOWN})
# The hub's own refusals and defects: the upstream was not called, or is not to blame.
_OF_THIS_SIDE = frozenset(
    {
        *(ErrorKind.CANCELLED, ErrorKind.BUDGET_EXCEEDED, ErrorKind.RATE_LIMITED, ErrorKind.CIRCUIT_OPEN),
        *(ErrorKind.INTERNAL, ErrorKind.POLICY_DENIED),
        *(ErrorKind.HTTP_DISALLOWED_HOST, ErrorKind.PATH_OUTSIDE_SANDBOX),
    }
)
# The cause of an unknown outcome that a defect has caused.
_DEFECT = ErrorKind.INTERNAL.value


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Health(Enum):
    """What an outcome says about the upstream."""

    HEALTHY = "healthy"
    FAILING = "failing"
    NO_EVIDENCE = "no evidence"
    """Nothing: the call was cancelled, or refused by this hub."""


def health(outcome: ErrorKind | ToolError | None, had_fair_time: bool = True) -> Health:
    """Return what the outcome of a call says about its upstream; None is success.

    An upstream that answers is healthy (the request was wrong), except with HTTP 5xx and 408. JSON-RPC's internal error
    is an answer, too: servers send it for whatever a tool of theirs raises. A timeout says nothing when the caller did
    not allow enough time, which the error itself may know better than `had_fair_time`. A defect of this hub, however it
    is reported, says nothing.
    """
    if outcome is None:
        return Health.HEALTHY
    kind = outcome.kind if isinstance(outcome, ToolError) else outcome
    error = outcome if isinstance(outcome, ToolError) else None
    if kind in _OF_THIS_SIDE or (error and error.details.get("cause") == _DEFECT):
        return Health.NO_EVIDENCE
    if kind not in _FAILURES:
        return Health.HEALTHY
    blames = error.blames_upstream if error else None
    if blames is False or (kind in _TIMEOUTS and not (had_fair_time or blames)):
        return Health.NO_EVIDENCE
    if error and error.upstream is not None:
        return Health.FAILING if is_failing_status(error.upstream.status) else Health.HEALTHY
    return Health.FAILING


def is_failing_status(status: int) -> bool:
    """Return whether a status shows that the upstream itself fails: HTTP 5xx and 408."""
    return status >= 500 or status == 408


class Breaker:
    __slots__ = (
        "_calls",
        "_cooldown_s",
        "_failures",
        "_open_until_s",
        "_past_calls",
        "_past_failures",
        "_probing",
        "_successes",
        "_terms",
        "_window_from_s",
        "generation",
        "state",
    )

    def __init__(self, terms: BreakerTerms) -> None:
        self._terms = terms
        self.generation = 0
        """The latest ticket of `admit`; an outcome counts only with this generation."""
        self._cooldown_s = terms.cooldown_s
        self._open_until_s = self._window_from_s = 0.0
        self._calls = self._failures = self._past_calls = self._past_failures = 0
        self.state = BreakerState.CLOSED
        """State as of the last call: OPEN becomes HALF_OPEN when the next call asks."""
        self._close()

    def state_at(self, now_s: float) -> BreakerState:
        """Return the state that the next call will meet: after its pause an OPEN breaker is HALF_OPEN, even before that
        call."""
        is_cool = self.state is BreakerState.OPEN and now_s >= self._open_until_s
        return BreakerState.HALF_OPEN if is_cool else self.state

    def is_blank(self, now_s: float) -> bool:
        """Return whether it behaves like a new one."""
        is_past = now_s - self._window_from_s >= 2 * self._terms.window_s
        return self.state is BreakerState.CLOSED and (is_past or not self._failures + self._past_failures)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may pass; 0 when it may now."""
        if self.state is BreakerState.CLOSED:
            return 0.0
        if self.state is BreakerState.OPEN:
            return max(0.0, self._open_until_s - now_s)
        return 0.0 if self._probing < self._terms.probes else self._terms.cooldown_s

    def admit(self, now_s: float) -> int:
        """Let a call pass, after `wait_s` returned 0, and return its ticket."""
        if self.state is BreakerState.OPEN:
            self._enter(BreakerState.HALF_OPEN)
            self._probing = self._successes = 0
        if self.state is BreakerState.HALF_OPEN:
            self._probing += 1
        return self.generation

    def settle(self, ticket: int, outcome: Health, now_s: float) -> None:
        """Count how an admitted call ended, once per ticket."""
        if ticket != self.generation:
            return
        if self.state is BreakerState.HALF_OPEN:
            self._settle_probe(outcome, now_s)
        elif outcome is not Health.NO_EVIDENCE:
            self._count(outcome is Health.FAILING, now_s)

    def trip(self, now_s: float) -> None:
        """Open the breaker regardless of the counts."""
        if self.state is not BreakerState.OPEN:
            self._open(now_s)

    def _settle_probe(self, outcome: Health, now_s: float) -> None:
        self._probing -= 1
        if outcome is Health.FAILING:
            self._cooldown_s = min(self._cooldown_s * 2, self._terms.max_cooldown_s)
            self._open(now_s)
        elif outcome is Health.HEALTHY:
            self._successes += 1
            if self._successes >= self._terms.probes:
                self._cooldown_s = self._terms.cooldown_s
                self._close()

    def _count(self, failed: bool, now_s: float) -> None:
        if now_s - self._window_from_s >= self._terms.window_s:
            self._next_window(now_s)
        self._calls += 1
        if failed:
            self._failures += 1
            calls = self._calls + self._past_calls
            if calls >= self._terms.min_calls and self._is_failing(calls, self._failures + self._past_failures):
                self._open(now_s)

    def _is_failing(self, calls: int, failures: int) -> bool:
        return failures >= calls * self._terms.failure_ratio

    def _next_window(self, now_s: float) -> None:
        """Begin the next window."""
        is_adjacent = now_s - self._window_from_s < 2 * self._terms.window_s
        self._past_calls = self._calls if is_adjacent else 0
        self._past_failures = self._failures if is_adjacent else 0
        self._calls = self._failures = 0
        self._window_from_s = now_s

    def _open(self, now_s: float) -> None:
        self._enter(BreakerState.OPEN)
        self._open_until_s = now_s + self._cooldown_s

    def _close(self) -> None:
        self._enter(BreakerState.CLOSED)
        self._calls = self._failures = self._past_calls = self._past_failures = 0
        self._probing = self._successes = 0
        self._open_until_s = 0.0
        self._window_from_s = float("-inf")

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self.generation += 1
