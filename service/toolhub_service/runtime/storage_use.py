"""What a caller stores in all, for whoami, and what it may still remember."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.call import Owners, Principal
from toolhub_service.domain.memory import MemoryStore
from toolhub_service.domain.storage import (
    Bound,
    Room,
    StorageDirectory,
    StorageKind,
    StorageUse,
    refuse_over_bound,
    use_of,
)

_OF_TENANTS: Final = {
    StorageKind.WORKSPACES: "max_workspace_bytes",
    StorageKind.ARTIFACTS: "max_artifact_bytes",
    StorageKind.MEMORY: "max_memory_bytes",
}


class WorkspaceTotals(Protocol):
    """What workspaces use, as it was counted by their writers."""

    def bytes_of_principal(self, principal_id: str) -> int: ...

    def bytes_of_owners(self, owners: Owners) -> int: ...


class StorageReport:
    """Adds up what principals and tenants store."""

    def __init__(
        self, directory: StorageDirectory, workspaces: WorkspaceTotals, artifacts: ArtifactRecords, memory: MemoryStore
    ) -> None:
        self._directory = directory
        self._workspaces = workspaces
        self._artifacts = artifacts
        self._memory = memory

    async def of(self, principal: Principal) -> Sequence[StorageUse]:
        """Return the uses of the principal's own bounds, then those of its tenant. Raises ToolFailure TOOL_UNAVAILABLE
        when a store cannot be read."""
        terms = self._directory.storage_of(principal.id)
        own = {
            StorageKind.WORKSPACES: self._workspaces.bytes_of_principal(principal.id),
            StorageKind.ARTIFACTS: (await self._artifacts.usage(principal.id))[1],
            StorageKind.MEMORY: await self._memory.usage(principal.id),
        }
        uses = [use_of(kind, used_bytes, terms) for kind, used_bytes in own.items()]
        if principal.tenancy is not None:
            for kind, bound in _bounds_of(principal.tenancy.bounds):
                used_bytes = await self.total(kind, principal.tenancy.holds)
                soft_bytes = int(bound.max_bytes * terms.soft_ratio)
                uses.append(StorageUse(kind, used_bytes, bound, soft_bytes, principal.tenancy.name))
        return uses

    async def total(self, kind: StorageKind, owners: Owners) -> int:
        """Return the bytes of one kind that all those principals store together. Raises as `of`."""
        if kind is StorageKind.WORKSPACES:
            # A file an account: many of them must not hold the loop.
            return await asyncio.to_thread(self._workspaces.bytes_of_owners, owners)
        if kind is StorageKind.ARTIFACTS:
            return (await self._artifacts.usage_of(owners))[1]
        return await self._memory.usage_of(owners)


def _bounds_of(bounds: object) -> Iterator[tuple[StorageKind, Bound]]:
    for kind, name in _OF_TENANTS.items():
        most = getattr(bounds, name)
        if most is not None:
            yield kind, Bound(f"tenants.{name}", most)


class RememberedBytes:
    """Implements `tools.memory_tools.MemoryRoom`."""

    def __init__(self, directory: StorageDirectory, memory: MemoryStore, room: Room | None) -> None:
        """`room`: the disk that items lie on; None: they lie elsewhere."""
        self._directory = directory
        self._memory = memory
        self._room = room

    async def storage_bound(self, principal_id: str, size_bytes: int) -> Bound:
        if self._room is not None:
            self._room.check(size_bytes)
        tenancy = self._directory.tenancy_of(principal_id)
        most = None if tenancy is None else tenancy.bounds.max_memory_bytes
        if tenancy is not None and most is not None:
            used_bytes = await self._memory.usage_of(tenancy.holds)
            if used_bytes + size_bytes > most:
                bound = Bound(f"tenants.{_OF_TENANTS[StorageKind.MEMORY]}", most)
                raise refuse_over_bound(StorageKind.MEMORY, bound, used_bytes, size_bytes, tenancy.name)
        return self._directory.storage_of(principal_id).memory

    def soft_notice(self, principal_id: str, used_bytes: int) -> str:
        return use_of(StorageKind.MEMORY, used_bytes, self._directory.storage_of(principal_id)).notice
