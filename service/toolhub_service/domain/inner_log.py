"""The log of a job's inner calls: what it asked for and was answered, in the order in which it asked.

A job that is run again makes the same calls, and those that the log has answers to are not made a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import IdentityEnum


class KeptState(IdentityEnum):
    BEGUN = "BEGUN"
    """It may have had its effect, or has become a job; written before either."""
    ASKED = "ASKED"
    """A person is asked; nothing has happened."""
    ANSWERED = "ANSWERED"


class KeptCall(Struct, frozen=True, gc=False):
    """One inner call of a job. Every change is a new record with the next version."""

    job_id: str
    index: int
    """Which call of the job it is, from 0."""
    tool: str
    args_digest: str
    """sha256 (hex) over the canonical arguments as the job gave them."""
    state: KeptState
    expires_at_unix_ms: int
    """When somebody looks whether the job still needs it."""
    approval_id: str = ""
    """What a person was asked last."""
    inner_job_id: str = ""
    """The job that the call has become."""
    answer: ToolResult | None = None
    """Set exactly when it is ANSWERED; without the upstream's own answer."""
    version: int = 1
    """Rises by 1 with every change. What compare-and-set compares."""


class InnerLogStore(Protocol):
    """Kept calls, whoever else shares the store; what a method has returned from is durable.

    Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached.
    """

    async def put(self, kept: KeptCall) -> bool:
        """Replace the record whose version is one less; version 1 takes a place that is free. False when another change
        came first."""

    async def get(self, job_id: str, index: int) -> KeptCall | None: ...

    async def of_job(self, job_id: str) -> Sequence[KeptCall]:
        """All, by index. Raises ToolFailure OUTCOME_UNKNOWN when one cannot be read: it may have had an effect."""

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[KeptCall]:
        """Those to be looked at, the oldest first."""

    async def forget_job(self, job_id: str) -> int:
        """Remove all of the job; how many there were."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...
