"""Wires what callers may store: the rooms of the disks, the accounts of workspaces, and what is reported of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.storage_watch import StorageWatch
from toolhub_service.app.wiring.stores import Stores
from toolhub_service.domain.storage import Bound, StorageDirectory, StorageTerms
from toolhub_service.runtime.storage_use import RememberedBytes, StorageReport
from toolhub_service.settings.document import Settings
from toolhub_service.tools.disk_space.ballast import Ballast
from toolhub_service.tools.disk_space.disk_room import DiskRoom
from toolhub_service.tools.disk_space.workspace_usage import WorkspaceUsage

_COUNTERS = ".usage"
"""Beneath the root, where every hub that shares it finds it; no folder of a principal begins with a dot."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """The disks on which callers store; two may be the same."""

    data: DiskRoom
    workspaces: DiskRoom
    artifacts: DiskRoom | None
    """None: they lie in a bucket."""
    jobs: DiskRoom | None
    """None: another server has them."""
    items: DiskRoom | None
    """The same for what agents remember."""

    def by_folder(self) -> dict[str, DiskRoom]:
        """Return each by the label of its metrics."""
        rooms = {"data": self.data, "workspaces": self.workspaces, "artifacts": self.artifacts}
        return {name: room for name, room in rooms.items() if room is not None}


@dataclass(frozen=True, slots=True)
class Storage:
    """Made by `make_storage`; `watch.start`, then `watch.close`."""

    rooms: Rooms
    usage: WorkspaceUsage
    report: StorageReport
    remembered: RememberedBytes
    watch: StorageWatch


def _rooms(settings: Settings) -> Rooms:
    paths, stores, reserve_bytes = Paths(settings), settings.stores, settings.storage.reserve_bytes
    # An audit log in PostgreSQL needs no space here.
    ballast = None if stores.postgres_url else Ballast(paths.data_dir, reserve_bytes)
    data = DiskRoom(paths.data_dir, reserve_bytes, ballast)
    return Rooms(
        data,
        workspaces=DiskRoom(paths.workspaces, reserve_bytes, ballast),
        artifacts=None if settings.artifacts.bucket_url else DiskRoom(paths.artifacts, reserve_bytes, ballast),
        jobs=None if stores.redis_url or stores.postgres_url or stores.kind != "sqlite" else data,
        items=data if stores.kind == "sqlite" else None,
    )


def storage_terms(settings: Settings) -> StorageTerms:
    """Return what a principal may store where the policy does not say."""
    return StorageTerms(
        Bound("workspace.quota_bytes", settings.workspace.quota_bytes),
        Bound("artifacts.quota_bytes", settings.artifacts.quota_bytes),
        Bound("memory.max_bytes", settings.memory.max_bytes),
        settings.storage.soft_ratio,
    )


def make_storage(deps: Deps, stores: Stores, directory: StorageDirectory) -> Storage:
    settings, root, rooms = deps.settings, deps.paths.workspaces, _rooms(deps.settings)
    is_shared = settings.workspace.per == "shared"
    # Callers see all of a shared root, and would see the counters there.
    counters = deps.paths.data_dir / "usage" if is_shared else Path(root) / _COUNTERS
    usage = WorkspaceUsage(str(root), counters, rooms.workspaces, directory, is_shared=is_shared)
    report = StorageReport(directory, usage, stores.artifacts, stores.memory)
    remembered = RememberedBytes(directory, stores.memory, rooms.items)
    watch = StorageWatch(
        deps.observing,
        usage,
        report,
        directory,
        own=rooms.data,
        rooms=rooms.by_folder(),
        recount_s=settings.storage.recount_s,
    )
    return Storage(rooms, usage, report, remembered, watch)
