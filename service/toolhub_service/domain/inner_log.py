"""The log of a job's inner calls: what it called and the answers, in the order of the calls.

A job that is run again makes the same calls, and those with an answer in the log are not made a second time.
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
    """Index of the call within the job, from 0."""
    tool: str
    args_digest: str
    """sha256 (hex) over the canonical arguments as the job passed them."""
    state: KeptState
    expires_at_unix_ms: int
    """When the sweep checks whether the job still needs it."""
    approval_id: str = ""
    """The latest approval that was requested."""
    inner_job_id: str = ""
    """The job that the call has become."""
    answer: ToolResult | None = None
    """Set exactly in state ANSWERED; without the upstream's own answer."""
    version: int = 1
    """Incremented by every change; compare-and-set compares it."""


class InnerLogStore(Protocol):
    """Inner calls in a store that others may share; when a method has returned, its change is durable.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def put(self, kept: KeptCall) -> bool:
        """Replace the record whose version is one less; version 1 requires that there is none. Return False when
        another change came first."""

    async def get(self, job_id: str, index: int) -> KeptCall | None: ...

    async def of_job(self, job_id: str) -> Sequence[KeptCall]:
        """Return all calls of the job, by index. Raises ToolFailure OUTCOME_UNKNOWN when one cannot be read: it may
        have had an effect."""

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[KeptCall]:
        """Return the calls that are due for a check, the oldest first."""

    async def forget_job(self, job_id: str) -> int:
        """Delete all calls of the job, and return how many there were."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...
