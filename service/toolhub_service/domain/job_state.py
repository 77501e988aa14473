"""Where a job stands (AIP-216), and a job as results name it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class JobState(Enum):
    QUEUED = "QUEUED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"

    __hash__ = object.__hash__
    """By identity, for a member is a singleton."""

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self in FINAL_STATES


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.LOST})


@dataclass(frozen=True, slots=True)
class JobRef:
    job_id: str
    state: JobState
