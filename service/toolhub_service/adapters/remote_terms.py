"""How patient the hub is with a remote side that does not answer clearly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteTerms:
    look_up_within_s: float = 60.0
    """How long a start of unknown outcome is looked up before it is given up as unknown."""
    looks_min: int = 3
    """How often it is looked up at least, however long an answer takes to fail."""
    absent_for_s: float = 2.0
    """How long a remote side must go on saying that it has no such job before the start is sent again: a request can
    still be under way when its sender is dead. 0 where the remote side itself refuses a key that it has seen."""
    starts_max: int = 3
    """How often a start is sent that was certainly not taken."""
    stop_within_s: float = 5.0
    """For the one request to stop what has run past its deadline."""
    pause_first_s: float = 0.25
    pause_max_s: float = 10.0
    """Between two attempts at the same thing; doubled from the first one, with jitter."""
