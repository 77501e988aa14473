"""How much each principal, and each tenant with bounds, may own in artifacts; running uploads are counted in.

Recorded artifacts are read from the records, which all hubs share; uploads of this process are counted here, so that
concurrent uploads cannot exceed the quota together. Several hubs can exceed it by what they receive at the same moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.call import TenantDirectory
from toolhub_service.domain.errors import ErrorKind, refuse

# Bytes that an artifact counts for besides its content, so that empty ones are not free.
_RECORD_BYTES = 1_024


@dataclass(slots=True)
class _UploadUsage:
    """What this process is receiving for one principal or one tenant."""

    bytes: int = 0
    running: int = 0
    ended: int = 0


@dataclass(slots=True)
class _Account:
    """What one claim counts against: a principal's quota or its tenant's bounds."""

    whose: str
    taking: _UploadUsage
    usage: Callable[[], Awaitable[tuple[int, int]]]
    """Number of recorded artifacts, and their bytes."""
    quota_bytes: int | None
    quota: int | None = None
    """Most artifacts."""
    limits: tuple[str, str] = ("artifacts.quota_bytes", "")
    """Settings that define the two limits."""
    used_bytes: int = 0
    used: int = 0

    async def refresh_usage(self) -> None:
        """Read the recorded usage; read again when an upload ended meanwhile, which neither side would count."""
        while True:
            ended = self.taking.ended
            count, size_bytes = await self.usage()
            if self.taking.ended == ended:
                self.used, self.used_bytes = count, size_bytes + count * _RECORD_BYTES
                return

    def check_quota(self) -> None:
        """Raises ToolFailure BUDGET_EXCEEDED."""
        advice = "Delete some, or wait until older ones expire."
        if self.quota_bytes is not None and self.used_bytes + self.taking.bytes > self.quota_bytes:
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                f"The artifacts of {self.whose} would exceed the quota of {self.quota_bytes} bytes. {advice}",
                limit=self.limits[0],
                quota_bytes=self.quota_bytes,
                used_bytes=self.used_bytes,
            )
        if self.quota is not None and self.used + self.taking.running > self.quota:
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                f"The artifacts of {self.whose} would be more than {self.quota}, which is its quota. {advice}",
                limit=self.limits[1],
                quota=self.quota,
                used=self.used,
            )


class Quota:
    """Counts uploads against quotas: `async with quota.claim(principal) as claim`, `grow` with every chunk, `check`
    before recording."""

    def __init__(self, records: ArtifactRecords, quota_bytes: int, tenants: TenantDirectory | None = None) -> None:
        """`tenants` gives the bounds that apply besides; None when there are none."""
        self._records = records
        self._quota_bytes = quota_bytes
        self._tenants = tenants
        self._taking: dict[str, _UploadUsage] = {}

    @asynccontextmanager
    async def claim(self, principal_id: str) -> AsyncIterator[Claim]:
        """Hold the claimed bytes until the body ends: by then they are recorded or deleted. Raises as `Claim.grow`
        does."""
        accounts = self._accounts(principal_id)
        claim = Claim(list(accounts.values()))
        for account in accounts.values():
            account.taking.running += 1
        try:
            await claim.refresh_usage()
            claim.grow(_RECORD_BYTES)
            yield claim
            # The body ends when its artifact is recorded.
        finally:
            for key, account in accounts.items():
                account.taking.bytes -= claim.bytes
                account.taking.running -= 1
                account.taking.ended += 1
                if not account.taking.running:
                    self._taking.pop(key, None)

    def _accounts(self, principal_id: str) -> dict[str, _Account]:
        own = partial(self._records.usage, principal_id)
        accounts = {principal_id: _Account("this caller", self._taken(principal_id), own, self._quota_bytes)}
        tenancy = self._tenants.tenancy_of(principal_id) if self._tenants is not None else None
        if tenancy is not None:
            bounds = tenancy.bounds
            if bounds.max_artifact_bytes is not None or bounds.max_artifacts is not None:
                whose = f"tenant {tenancy.name}"  # no id contains a space
                accounts[whose] = _Account(
                    whose,
                    self._taken(whose),
                    partial(self._records.usage_of, tenancy.holds),
                    bounds.max_artifact_bytes,
                    bounds.max_artifacts,
                    ("tenants.max_artifact_bytes", "tenants.max_artifacts"),
                )
        return accounts

    def _taken(self, key: str) -> _UploadUsage:
        return self._taking.setdefault(key, _UploadUsage())


class Claim:
    """Bytes received for one artifact."""

    def __init__(self, accounts: Sequence[_Account]) -> None:
        self._accounts = accounts
        self.bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Add bytes. Raises ToolFailure BUDGET_EXCEEDED beyond a quota."""
        self.bytes += size_bytes
        for account in self._accounts:
            account.taking.bytes += size_bytes
        for account in self._accounts:
            account.check_quota()

    async def refresh_usage(self) -> None:
        for account in self._accounts:
            await account.refresh_usage()

    async def check(self) -> None:
        """Check again once all bytes are in, because others may have been recorded meanwhile. Raises as `grow` does."""
        await self.refresh_usage()
        self.grow(0)
