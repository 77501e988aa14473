"""Long work: its states (AIP-216)."""

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


@dataclass(frozen=True, slots=True)
class JobRef:
    job_id: str
    state: JobState
