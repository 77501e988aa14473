"""Room for one more job: a bound on the open jobs of the whole store, of which one principal can fill but a half.

Counting costs a question to the store, so that a count may be a second old; what this process has let in since is added
to it. Whose jobs they are is asked only while more than half of the room is taken: before, nobody can have too many.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import JobFilter
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.job_state import FINAL_STATES, JobState
from toolhub_service.domain.ports import Clock

SEEN_FOR_S = 1.0
"""How old a count of open jobs may be."""
_OPEN = frozenset(JobState) - FINAL_STATES


class Room:
    def __init__(self, store: JobStore, clock: Clock, max_open: int) -> None:
        """`max_open`: jobs that are not finished, in the whole store."""
        self._store = store
        self._clock = clock
        self._max_open = max_open
        self._share = max(1, max_open // 2)
        self._counting = asyncio.Lock()
        self._counted_at_s = float("-inf")
        self._open = 0
        self._of: dict[str, int] = {}
        """Open jobs of those principals that were looked at since the last count."""
        self._coming: Counter[str] = Counter()
        """Let in, and perhaps not in the store yet; by principal."""

    async def take(self, principal_id: str) -> None:
        """Room for a job that `came` is told of once it is in the store, or will not be.

        Raises ToolFailure RATE_LIMITED when more jobs are open than the hub, or the principal, may have.
        """
        async with self._counting:
            await self._count()
            if self._open >= self._max_open:
                raise _full(f"{self._max_open} jobs are waiting or running, which is all this hub takes.")
            if self._open >= self._share and await self._count_of(principal_id) >= self._share:
                raise _full(f"{self._share} of your jobs are waiting or running, which is your share of this hub.")
            self._open += 1
            self._coming[principal_id] += 1
            if principal_id in self._of:
                self._of[principal_id] += 1

    def came(self, principal_id: str) -> None:
        """One job that was let in counts in the store from now on."""
        self._coming[principal_id] -= 1
        if not self._coming[principal_id]:
            del self._coming[principal_id]

    async def _count(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_at_s >= SEEN_FOR_S:
            coming = self._coming.total()
            self._open = coming + sum((await self._store.tally()).by_state.values())
            self._of.clear()
            self._counted_at_s = now_s

    async def _count_of(self, principal_id: str) -> int:
        if principal_id not in self._of:
            coming = self._coming[principal_id]
            where = JobFilter(principal=principal_id, states=_OPEN)
            _, stored = await self._store.page(where, after=None, limit=1)
            self._of[principal_id] = coming + stored
        return self._of[principal_id]


def _full(what: str) -> ToolFailure:
    return refuse(ErrorKind.RATE_LIMITED, f"{what} Submit it again later.", retry_after_s=5.0, limit="jobs.max_open")
