"""Follows what callers store and how much space is left: recounts, metrics, and log lines where a bound is met."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from toolhub_service.aio.threads import to_thread
from toolhub_service.app.wiring.telemetry import Observing
from toolhub_service.domain.storage import StorageDirectory, StorageKind, use_of
from toolhub_service.runtime.storage_use import StorageReport
from toolhub_service.telemetry import names
from toolhub_service.tools.disk_space.disk_room import DiskRoom
from toolhub_service.tools.disk_space.workspace_usage import Count, WorkspaceUsage

_EVERY_S: Final = 5.0
_ADJUST_S: Final = 0.5
_PAUSES: Final = 20.0
"""How many times the duration of one round passes until the next one."""
_TOTALS_EVERY_S: Final = 60.0


class StorageWatch:
    """One task of a hub; `start`, then `close`."""

    def __init__(
        self,
        observing: Observing,
        usage: WorkspaceUsage,
        report: StorageReport,
        directory: StorageDirectory,
        *,
        own: DiskRoom,
        rooms: Mapping[str, DiskRoom],
        recount_s: float,
    ) -> None:
        """`own`: the disk of the hub's own records. `rooms`: all disks, by the label of their metrics."""
        self._own = own
        self._observing = observing
        self._usage = usage
        self._report = report
        self._directory = directory
        self._rooms = rooms
        self._recount_s = recount_s
        self._short: set[str] = set()
        self._near: dict[str, str] = {}
        self._totals_at_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="storage")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._own.adjust()  # the audit log still has its last events to write

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self.round()
            except Exception as error:
                self._observing.log.warning(names.LOG_STORAGE_TROUBLE, exc_info=error)
            until_s = time.monotonic() + max(_EVERY_S, _PAUSES * (time.monotonic() - began_s))
            while time.monotonic() < until_s:
                await asyncio.sleep(_ADJUST_S)
                self._own.adjust()

    async def round(self) -> None:
        """Measure everything once, and report what has changed. Raises ToolFailure when a store cannot be read."""
        self._own.adjust()
        for name, room in self._rooms.items():
            self._measure(name, room)
        accounts = await to_thread(partial(self._usage.refresh, self._recount_s))
        self._compare(accounts)
        if time.monotonic() - self._totals_at_s >= _TOTALS_EVERY_S:
            self._totals_at_s = time.monotonic()
            family = self._observing.metrics.family(names.STORAGE_USED)
            for kind in (StorageKind.ARTIFACTS, StorageKind.MEMORY):
                family.labels(kind.value).set(await self._report.total(kind, _is_somebody))

    def _measure(self, name: str, room: DiskRoom) -> None:
        try:
            free_bytes, reserve_bytes = room.measure()
        except OSError:
            return  # the folder's disk is gone, which its own users report
        metrics, log = self._observing.metrics, self._observing.log
        metrics.family(names.DISK_FREE).labels(name).set(free_bytes)
        metrics.family(names.DISK_RESERVE).labels(name).set(reserve_bytes)
        figures = {"folder": name, "free_bytes": free_bytes, "reserve_bytes": reserve_bytes}
        if free_bytes < reserve_bytes and name not in self._short:
            self._short.add(name)
            log.error(names.LOG_DISK_SHORT, **figures)
        elif free_bytes >= reserve_bytes and name in self._short:
            self._short.remove(name)
            log.info(names.LOG_DISK_ROOM, **figures)

    def _compare(self, accounts: Mapping[str, Count]) -> None:
        """Count and log the accounts that have reached a bound; each once for each bound."""
        near: dict[str, str] = {}
        for name, count in accounts.items():
            use = use_of(StorageKind.WORKSPACES, count.used_bytes, self._directory.storage_of(count.principal))
            if use.used_bytes >= use.soft_bytes:
                near[name] = "hard" if use.used_bytes >= use.bound.max_bytes else "soft"
                if self._near.get(name) not in (near[name], "hard"):
                    self._observing.log.warning(
                        names.LOG_STORAGE_NEAR,
                        principal=count.principal or name,
                        bound=near[name],
                        used_bytes=use.used_bytes,
                        max_bytes=use.bound.max_bytes,
                        limit=use.bound.limit,
                    )
        self._near = near
        metrics = self._observing.metrics
        for bound in ("soft", "hard"):
            metrics.family(names.STORAGE_NEAR).labels(bound).set(sum(met == bound for met in near.values()))
        total_bytes = sum(count.used_bytes for count in accounts.values())
        metrics.family(names.STORAGE_USED).labels(StorageKind.WORKSPACES.value).set(total_bytes)


def _is_somebody(principal: str) -> bool:
    """Return False for bytes that wait for the sweeper, which are nobody's."""
    return bool(principal)
