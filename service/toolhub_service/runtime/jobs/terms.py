"""How long jobs may take and are remembered, and how the death of a process is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobTerms:
    default_timeout_s: float = 3_600.0
    """Of a job whose call names no timeout."""
    max_timeout_s: float = 86_400.0
    max_open: int = 50_000
    """Jobs that are not finished, in the whole store; beyond, new ones are shed."""
    keep_s: float = 604_800.0
    """How long a finished job is remembered."""
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    """Without a sign of life for so long, a process is dead and its jobs are taken."""

    @property
    def keep_ms(self) -> int:
        return round(self.keep_s * 1_000)

    @property
    def dead_after_ms(self) -> int:
        return round(self.dead_after_s * 1_000)
