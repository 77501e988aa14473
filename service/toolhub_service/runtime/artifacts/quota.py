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
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.storage import Bound, Room, StorageDirectory, StorageKind, refuse_over_bound

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

    tenant: str
    """Empty: it is the principal's own."""
    taking: _UploadUsage
    usage: Callable[[], Awaitable[tuple[int, int]]]
    """Number of recorded artifacts, and their bytes."""
    bound: Bound | None
    quota: int | None = None
    """Most artifacts."""
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
        if self.bound is not None and self.used_bytes + self.taking.bytes > self.bound.max_bytes:
            raise refuse_over_bound(
                StorageKind.ARTIFACTS, self.bound, self.used_bytes, self.taking.bytes, tenant=self.tenant
            )
        if self.quota is not None and self.used + self.taking.running > self.quota:
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                f"The artifacts of tenant {self.tenant} would be more than {self.quota}, which is its quota. Delete "
                "some, or wait until older ones expire.",
                limit="tenants.max_artifacts",
                quota=self.quota,
                used=self.used,
            )


class Quota:
    """Counts uploads against quotas: `async with quota.claim(principal) as claim`, `grow` with every chunk, `check`
    before recording."""

    def __init__(self, records: ArtifactRecords, directory: StorageDirectory, room: Room | None = None) -> None:
        """`directory` gives the bounds of principals and tenants. `room`: the disk that the bytes lie on; None: they
        lie elsewhere."""
        self._records = records
        self._directory = directory
        self._room = room
        self._taking: dict[str, _UploadUsage] = {}

    @asynccontextmanager
    async def claim(self, principal_id: str) -> AsyncIterator[Claim]:
        """Hold the claimed bytes until the body ends: by then they are recorded or deleted. Raises as `Claim.grow`
        does."""
        accounts = self._accounts(principal_id)
        claim = Claim(list(accounts.values()), self._room)
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
        bound = self._directory.storage_of(principal_id).artifact
        accounts = {principal_id: _Account("", self._upload_usage(principal_id), own, bound)}
        tenancy = self._directory.tenancy_of(principal_id)
        if tenancy is not None:
            most_bytes, most = tenancy.bounds.max_artifact_bytes, tenancy.bounds.max_artifacts
            if most_bytes is not None or most is not None:
                key = f"tenant {tenancy.name}"  # no id contains a space
                accounts[key] = _Account(
                    tenancy.name,
                    self._upload_usage(key),
                    partial(self._records.usage_of, tenancy.holds),
                    None if most_bytes is None else Bound("tenants.max_artifact_bytes", most_bytes),
                    most,
                )
        return accounts

    def _upload_usage(self, key: str) -> _UploadUsage:
        return self._taking.setdefault(key, _UploadUsage())


class Claim:
    """Bytes received for one artifact."""

    def __init__(self, accounts: Sequence[_Account], room: Room | None) -> None:
        """`accounts`: the principal's own first."""
        self._accounts = accounts
        self._room = room
        self.bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Add bytes. Raises ToolFailure BUDGET_EXCEEDED beyond a quota, a share of the disk or its reserve."""
        if self._room is not None:
            own = self._accounts[0]
            self._room.check(size_bytes, own.used_bytes + own.taking.bytes)
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
