"""What a hub is ready to spend on calls, where neither caller, tool nor policy says less."""

from __future__ import annotations

import msgspec


class BreakerTerms(msgspec.Struct, frozen=True):
    """When a failing upstream is given a rest."""

    window_s: float = 30.0
    """Failures are counted over the present window and the one before it."""
    min_calls: int = 10
    """Below this many calls in the windows no breaker opens; half as many must be others' than any one principal's."""
    failure_ratio: float = 0.5
    """It opens when this share of them failed; 0 to 1."""
    cooldown_s: float = 5.0
    """The first rest; each failed probe doubles it."""
    max_cooldown_s: float = 60.0
    probes: int = 2
    """Calls at once when half-open, and successes that close it."""


class BudgetTerms(msgspec.Struct, frozen=True):
    """Bounds of one hub process."""

    max_timeout_s: float = 600.0
    """No call runs longer, whatever its caller allows."""
    max_retries: int = 5
    """No call is tried more often than this again."""
    retry_initial_s: float = 0.1
    retry_cap_s: float = 10.0
    """Longest pause that backoff alone makes; an upstream's own retry-after may be longer."""
    upstream_concurrency: int = 64
    """Calls in flight to one upstream, where the tool states no bound of its own."""
    max_waiting: int = 256
    """Calls that may wait for a slot of one limit or upstream; further ones are shed."""
    max_limits: int = 65_536
    max_requests: int = 65_536
    max_upstreams: int = 4_096
    """How many limits, request ids and upstreams are remembered."""
    breaker: BreakerTerms = msgspec.field(default_factory=BreakerTerms)
