"""How much callers may store: the bounds of a principal, what it uses, the free space they share, and the refusals.

Three kinds of bytes belong to a caller: files of its workspaces, artifacts, and remembered items. Each has a hard
bound, beyond which writing is refused, and a soft one, from which on results and whoami say so. Beside these bounds the
hub keeps a reserve free on each disk: below it no caller may store anything, while reads and the hub's own records go
on.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from toolhub_service.domain.call import TenantDirectory
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue

RESERVE_LIMIT: Final = "storage.reserve_bytes"
"""How a refusal names the reserve."""
SHARE_LIMIT: Final = "storage.share"
"""How a refusal names the share of a disk: nobody may store more there than is left for all others."""

STORAGE_LIMITS: Final = frozenset(
    {
        RESERVE_LIMIT,
        SHARE_LIMIT,
        *("workspace.quota_bytes", "artifacts.quota_bytes", "memory.max_bytes"),
        *("storage.workspace_bytes", "storage.artifact_bytes", "storage.memory_bytes"),
        *("tenants.max_workspace_bytes", "tenants.max_artifact_bytes", "tenants.max_artifacts"),
        "tenants.max_memory_bytes",
    }
)
"""Every limit that a refusal to store names in its details."""


class StorageKind(Enum):
    WORKSPACES = "workspaces"
    ARTIFACTS = "artifacts"
    MEMORY = "memory"


_FREEING: Final = {
    StorageKind.WORKSPACES: "Delete files that are no longer needed (core/fs.deletePath), also of earlier requests",
    StorageKind.ARTIFACTS: "Delete artifacts (`toolhub artifacts delete`), or wait until older ones expire",
    StorageKind.MEMORY: "Forget what is no longer needed (core/memory.forget)",
}


class Bound(NamedTuple):
    """A hard bound, and the setting or key of the policy that defines it."""

    limit: str
    max_bytes: int


class StorageTerms(NamedTuple):
    """The bounds of one principal."""

    workspace: Bound
    artifact: Bound
    memory: Bound
    soft_ratio: float
    """The share of a hard bound from which on its use is reported."""

    def of(self, kind: StorageKind) -> Bound:
        return {
            StorageKind.WORKSPACES: self.workspace,
            StorageKind.ARTIFACTS: self.artifact,
            StorageKind.MEMORY: self.memory,
        }[kind]


class StorageUse(NamedTuple):
    """What a principal, or its tenant, uses of one bound."""

    kind: StorageKind
    used_bytes: int
    bound: Bound
    soft_bytes: int
    tenant: str = ""
    """The tenant whose principals together have this bound; empty: the principal's own."""

    @property
    def notice(self) -> str:
        """A sentence for the caller from the soft bound on; empty below it."""
        if self.used_bytes < self.soft_bytes:
            return ""
        whose = f"tenant {self.tenant}" if self.tenant else "this caller"
        return (
            f"The {self.kind.value} of {whose} use {self.used_bytes:,} of at most {self.bound.max_bytes:,} bytes. "
            f"{_FREEING[self.kind]}: beyond the bound nothing more is stored."
        )


def use_of(kind: StorageKind, used_bytes: int, terms: StorageTerms) -> StorageUse:
    """Return what a principal with these terms uses."""
    bound = terms.of(kind)
    return StorageUse(kind, used_bytes, bound, int(bound.max_bytes * terms.soft_ratio))


class StorageDirectory(TenantDirectory, Protocol):
    """The bounds of principals, under the policy in force."""

    def storage_of(self, principal_id: str) -> StorageTerms:
        """Return the bounds of the principal itself; those of its tenant are in `tenancy_of`."""


class Room(Protocol):
    """The free space of a disk that callers share."""

    def check(self, size_bytes: int = 0, own_bytes: int | None = None) -> None:
        """Raise ToolFailure BUDGET_EXCEEDED when the bytes would take the reserve, or more than the share of a caller
        who stores `own_bytes` there already."""


def disk_full(*, free_bytes: int | None = None, reserve_bytes: int | None = None, **details: str) -> ToolFailure:
    """Return the refusal of whatever would store something, when the disk or its reserve is reached."""
    message = (
        "The hub's disk is full, so nothing can be stored; reading and deleting still work. Continue without storing, "
        "or delete what you no longer need. An operator must make room; do not repeat the call until then."
    )
    figures = {"free_bytes": free_bytes, "reserve_bytes": reserve_bytes}
    facts: dict[str, JsonValue] = {name: figure for name, figure in figures.items() if figure is not None}
    facts |= {"limit": RESERVE_LIMIT, "cause": "DISK_FULL", **details}
    return ToolFailure(ToolError(ErrorKind.BUDGET_EXCEEDED, message, details=facts))


def refuse_taken_share(*, own_bytes: int, free_bytes: int) -> ToolFailure:
    """Return the refusal for one who stores as much on a disk as is left there for all others."""
    message = (
        f"The hub's disk has {free_bytes:,} bytes left for all callers, and you store {own_bytes:,} there: nobody may "
        "store more than is left for the others. Delete what you no longer need, then call again."
    )
    return refuse(
        ErrorKind.BUDGET_EXCEEDED,
        message,
        limit=SHARE_LIMIT,
        cause="DISK_SHARE",
        used_bytes=own_bytes,
        free_bytes=free_bytes,
    )


def refuse_over_bound(
    kind: StorageKind, bound: Bound, used_bytes: int, size_bytes: int, tenant: str = ""
) -> ToolFailure:
    """Return the refusal of `size_bytes` more. `tenant`: whose bound it is; empty: the caller's own."""
    whose = f"tenant {tenant}" if tenant else "this caller"
    message = (
        f"The {kind.value} of {whose} use {used_bytes:,} of at most {bound.max_bytes:,} bytes, and this needs "
        f"{size_bytes:,} more. {_FREEING[kind]}, then call again. An operator can raise {bound.limit}."
    )
    return refuse(
        ErrorKind.BUDGET_EXCEEDED,
        message,
        limit=bound.limit,
        quota_bytes=bound.max_bytes,
        used_bytes=used_bytes,
    )
