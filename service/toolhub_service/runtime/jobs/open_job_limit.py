"""A quota of open jobs in the whole store, of which one principal, or all of one tenant, can use at most half.

Counting costs a query, so a count may be a second old; jobs accepted by this process since then are added to it. Jobs
are counted per principal only while more than half of the quota is used, because below that nobody can have too many,
and per tenant where the tenant has a limit of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import JobFilter
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import FINAL_STATES, JobState
from toolhub_service.domain.storage import RESERVE_LIMIT

COUNT_TTL_S = 1.0
"""Longest age of a count of open jobs, in seconds."""
HUB_BOUND, TENANT_BOUND = "jobs.max_open", "tenants.max_open_jobs"
FULL_LIMITS = (HUB_BOUND, TENANT_BOUND, RESERVE_LIMIT)
"""Limits at which a refused submission is not stored as a failed job either."""
_OPEN = frozenset(JobState) - FINAL_STATES


class OpenJobLimit:
    """Counts the open jobs, and refuses one more where there are too many."""

    def __init__(self, store: JobStore, clock: Clock, max_open: int) -> None:
        """`max_open` limits the unfinished jobs in the whole store."""
        self._store = store
        self._clock = clock
        self._max_open = max_open
        self._half = max(1, max_open // 2)
        self._counting = asyncio.Lock()
        self._counted_at_s = float("-inf")
        self._open = 0
        # Open jobs of the principals or tenants (`Principal.share`) that were counted since the last total.
        self._open_by_share: dict[str, int] = {}
        # Accepted jobs that may not be in the store yet, by the same key.
        self._coming: Counter[str] = Counter()

    async def reserve(self, principal: Principal) -> None:
        """Count one more job; call `confirm` once it is in the store, or is certain not to be.

        Raises ToolFailure RATE_LIMITED when more jobs are open than the hub, the principal or its tenant may have.
        """
        tenancy, share = principal.tenancy, principal.share
        async with self._counting:
            await self._count()
            if self._open >= self._max_open:
                raise _full(f"{self._max_open} jobs are waiting or running, the limit of this hub.", self._max_open)
            whose, one = ("your", "caller") if tenancy is None else (f"tenant {tenancy.name}'s", "tenant")
            if self._open >= self._half and await self._count_of(principal) >= self._half:
                what = f"{self._half} of {whose} jobs are waiting or running, the limit for one {one}."
                raise _full(what, self._half)
            most = None if tenancy is None else tenancy.bounds.max_open_jobs
            if most is not None and await self._count_of(principal) >= most:
                what = f"{most} of {whose} jobs are waiting or running, the limit that the policy sets for it."
                raise _full(what, most, TENANT_BOUND)
            self._open += 1
            self._coming[share] += 1
            if share in self._open_by_share:
                self._open_by_share[share] += 1

    def confirm(self, principal: Principal) -> None:
        """Stop counting one accepted job here: from now on the store counts it."""
        share = principal.share
        self._coming[share] -= 1
        if not self._coming[share]:
            del self._coming[share]

    async def _count(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_at_s >= COUNT_TTL_S:
            coming = self._coming.total()
            self._open = coming + sum((await self._store.count_jobs()).by_state.values())
            self._open_by_share.clear()
            self._counted_at_s = now_s

    async def _count_of(self, principal: Principal) -> int:
        share = principal.share
        if share not in self._open_by_share:
            coming = self._coming[share]
            own = JobFilter(principal=principal.id, states=_OPEN)
            where = own if principal.tenancy is None else JobFilter(owners=principal.owners, states=_OPEN)
            _, stored = await self._store.page(where, after=None, limit=1)
            self._open_by_share[share] = coming + stored
        return self._open_by_share[share]


def _full(what: str, quota: int, limit: str = HUB_BOUND) -> ToolFailure:
    message = f"{what} Cancel one, or submit it again when one has ended."
    return refuse(ErrorKind.RATE_LIMITED, message, retry_after_s=5.0, limit=limit, quota=quota)
