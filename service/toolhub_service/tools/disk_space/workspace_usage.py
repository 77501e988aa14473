"""How many bytes the workspaces of each caller have, kept up to date by whoever writes, without reading any folder.

Each account is a small file (count, time of the last recount, principal) in a folder that all processes share, changed
under its lock (flock(2)): a write costs a handful of system calls, a read none. The count is in whole blocks of 4 KiB,
at least one for every file and folder, so that empty ones are not free.

Programs write past these counts, and processes die between write and count. A recount therefore walks an account's
folders: at the start, after a program has run, and at intervals. It ends early at a number of entries. What is written
while it walks may be counted twice until the next one, never left out.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.domain.call import Owners, Tenancy
from toolhub_service.domain.storage import (
    Bound,
    StorageDirectory,
    StorageKind,
    StorageTerms,
    StorageUse,
    refuse_over_bound,
    use_of,
)
from toolhub_service.guards.paths import LONG_NAME, workspace_folder_name
from toolhub_service.tools.disk_space.disk_room import DiskRoom

BLOCK_BYTES: Final = 4_096
ENTRIES_MAX: Final = 2_000_000
"""Files and folders after which a recount stops: an account of more is at its bound anyway."""
TENANT_LIMIT: Final = "tenants.max_workspace_bytes"
SHARED: Final = "%shared"
"""The account of a workspace that all callers share; no principal's folder has this name."""
_HEAD: Final = struct.Struct("<qq")
_FOR_FOLDER: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def charge_of(size_bytes: int) -> int:
    """Return what a file of that size counts as: whole blocks, at least one."""
    return max(1, -(-size_bytes // BLOCK_BYTES)) * BLOCK_BYTES


# The files of the accounts.


class Count(NamedTuple):
    """One account as it is stored."""

    used_bytes: int = 0
    recounted_at_s: int = 0
    """Seconds since 1970; 0: never."""
    principal: str = ""


class UsageCounters:
    """Counts by account. Where the folder cannot be used, as on a full disk, this process counts in its memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: dict[str, Count] = {}
        self._lock = threading.Lock()

    def change(self, name: str, principal: str, change: Callable[[Count], Count]) -> Count:
        """Replace a count by `change` of it, alone; return the new one. Raises what `change` raises, and then changes
        nothing."""
        with self._lock_account(name) as descriptor:
            if descriptor < 0:
                after = change(self._unwritten.get(name, Count()))._replace(principal=principal)
                self._unwritten[name] = after
                return after
            before = _read_count(descriptor)
            after = change(before)
            after = after._replace(principal=principal or before.principal)
            os.pwrite(descriptor, _HEAD.pack(after.used_bytes, after.recounted_at_s) + after.principal.encode(), 0)
            return after

    def get(self, name: str) -> Count:
        with suppress(OSError):
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return _read_count(descriptor)
            finally:
                os.close(descriptor)
        return self._unwritten.get(name, Count())

    def all(self) -> dict[str, Count]:
        """Return every account by name."""
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(self._folder)  # noqa: PTH208 - names alone
        return {name: self.get(name) for name in dict.fromkeys((*names, *self._unwritten))}

    def forget(self, name: str) -> None:
        with suppress(OSError):
            (self._folder / name).unlink()
        self._unwritten.pop(name, None)

    @contextmanager
    def _lock_account(self, name: str) -> Iterator[int]:
        """Yield the descriptor of the account's file, or -1 where it cannot be made."""
        descriptor = self._open(name)
        if descriptor < 0:
            with self._lock:
                yield -1
            return
        try:
            # Each opens the file anew, so that threads of one process exclude one another, too.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        try:
            try:
                return os.open(self._folder / name, _FOR_FOLDER, 0o600)
            except FileNotFoundError:
                self._folder.mkdir(0o700, parents=True, exist_ok=True)
                return os.open(self._folder / name, _FOR_FOLDER, 0o600)
        except OSError:
            return -1


def _read_count(descriptor: int) -> Count:
    data = os.pread(descriptor, 4_096, 0)
    if len(data) < _HEAD.size:
        return Count()
    used_bytes, recounted_at_s = _HEAD.unpack_from(data)
    return Count(used_bytes, recounted_at_s, data[_HEAD.size :].decode("utf-8", "replace"))


# One account, as those who write into a workspace see it.


class WorkspaceAccount:
    """What one principal's workspaces use. Every method may be called in any thread."""

    def __init__(self, usage: WorkspaceUsage, name: str, principal: str) -> None:
        self._usage = usage
        self.name = name
        self.principal = principal
        self.has_grown = False

    def grow(self, size_bytes: int) -> None:
        """Count bytes before they are written. Raises ToolFailure BUDGET_EXCEEDED beyond a bound, the share or the
        reserve."""
        self._usage.grow(self, size_bytes)
        self.has_grown = True

    def shrink(self, size_bytes: int) -> None:
        """Count bytes that were removed."""
        if size_bytes:
            self._usage.counters.change(self.name, self.principal, partial(_add_bytes, -size_bytes))

    @property
    def used_bytes(self) -> int:
        return self._usage.counters.get(self.name).used_bytes

    @property
    def use(self) -> StorageUse:
        return self._usage.use_of(self)

    @property
    def notice(self) -> str:
        """A sentence for a caller that has stored something and is near its bound; else empty."""
        return self.use.notice if self.has_grown else ""

    def recount_soon(self) -> None:
        """Walk the account's folders within seconds, because a program may have written there."""
        self._usage.recount_soon(self.name)

    def recount_bytes(self, stop: threading.Event | None = None) -> int:
        """Walk the account's folders now, in the calling thread; store and return what they use."""
        return self._usage.recount(self.name, stop).used_bytes

    @property
    def room(self) -> DiskRoom:
        return self._usage.room


def _add_bytes(size_bytes: int, count: Count) -> Count:
    return count._replace(used_bytes=max(0, count.used_bytes + size_bytes))


@dataclass(slots=True)
class _TenantTotal:
    """What all accounts of a tenant use: when they were last added up, and what this process has added since."""

    tenancy: Tenancy
    used_bytes: int


class WorkspaceUsage:
    """The accounts beneath one root of workspaces."""

    def __init__(
        self, root: str, counters: Path, room: DiskRoom, directory: StorageDirectory, *, is_shared: bool
    ) -> None:
        """`is_shared`: all callers have one folder, the root, and therefore one account."""
        self._root = root
        self.counters = UsageCounters(counters)
        self.room = room
        self._directory = directory
        self._is_shared = is_shared
        self._due: set[str] = set()
        self._tenants: dict[str, _TenantTotal] = {}

    def account(self, principal: str, folder_name: str) -> WorkspaceAccount:
        """`folder_name`: of the principal's folder beneath the root."""
        return WorkspaceAccount(self, SHARED, "") if self._is_shared else WorkspaceAccount(self, folder_name, principal)

    def grow(self, account: WorkspaceAccount, size_bytes: int) -> None:
        terms = self._terms(account)
        tenancy = self._directory.tenancy_of(account.principal) if account.principal else None
        total = self._check_tenant(tenancy, size_bytes)

        def add(count: Count) -> Count:
            # One account of all cannot take too large a share from itself.
            self.room.check(size_bytes, None if self._is_shared else count.used_bytes)
            if count.used_bytes + size_bytes > terms.workspace.max_bytes:
                raise refuse_over_bound(StorageKind.WORKSPACES, terms.workspace, count.used_bytes, size_bytes)
            return _add_bytes(size_bytes, count)

        self.counters.change(account.name, account.principal, add)
        if total is not None:
            total.used_bytes += size_bytes

    def use_of(self, account: WorkspaceAccount) -> StorageUse:
        return use_of(StorageKind.WORKSPACES, account.used_bytes, self._terms(account))

    def bytes_of_principal(self, principal: str) -> int:
        """Return what the principal uses; where all share one workspace, what all use."""
        return self.account(principal, workspace_folder_name(principal)).used_bytes

    def bytes_of_owners(self, owners: Owners) -> int:
        """Return what all those principals together use."""
        return sum(count.used_bytes for count in self.counters.all().values() if owners(count.principal))

    def _terms(self, account: WorkspaceAccount) -> StorageTerms:
        return self._directory.storage_of(account.principal)

    def _check_tenant(self, tenancy: Tenancy | None, size_bytes: int) -> _TenantTotal | None:
        most = None if tenancy is None else tenancy.bounds.max_workspace_bytes
        if tenancy is None or most is None:
            return None
        total = self._tenants.get(tenancy.name)
        if total is None or total.tenancy != tenancy:  # or its policy names other principals by now
            total = self._tenants[tenancy.name] = _TenantTotal(tenancy, self.bytes_of_owners(tenancy.holds))
        if total.used_bytes + size_bytes > most:
            bound = Bound(TENANT_LIMIT, most)
            raise refuse_over_bound(StorageKind.WORKSPACES, bound, total.used_bytes, size_bytes, tenancy.name)
        return total

    # Recounting

    def recount_soon(self, name: str) -> None:
        self._due.add(name)

    def refresh(self, recount_s: float, stop: threading.Event | None = None) -> dict[str, Count]:
        """Recount what is due, and all whose last recount is older than `recount_s`; return every account. Runs in a
        thread, every few seconds."""
        due = self._due
        self._due = set()
        known = self.counters.all()
        before_s = time.time() - recount_s
        folders = {SHARED} if self._is_shared else _folders_beneath(self._root)
        for name in {*folders, *known}:
            raise_if_cancelled(stop)
            if name in due or known.get(name, Count()).recounted_at_s < before_s:
                known[name] = self.recount(name, stop)
                if not known[name].used_bytes and name not in folders:
                    self.counters.forget(name)
                    del known[name]
        for total in [*self._tenants.values()]:
            # With what other processes have written, and without what was removed.
            holds = total.tenancy.holds
            total.used_bytes = sum(count.used_bytes for count in known.values() if holds(count.principal))
        return known

    def recount(self, name: str, stop: threading.Event | None = None) -> Count:
        began = self.counters.get(name)
        walked_bytes = measure_folder(self._root if name == SHARED else os.path.join(self._root, name), stop)  # noqa: PTH118

        def settle(count: Count) -> Count:
            meanwhile_bytes = max(0, count.used_bytes - began.used_bytes)
            return count._replace(used_bytes=walked_bytes + meanwhile_bytes, recounted_at_s=int(time.time()))

        return self.counters.change(name, began.principal or _principal_of(name), settle)


def measure_folder(folder: str, stop: threading.Event | None = None, entries_max: int = ENTRIES_MAX) -> int:
    """Return what all beneath the folder, and the folder itself, count as; links are not followed."""
    total_bytes = 0
    folders = [folder]
    entries_left = entries_max
    while folders and entries_left > 0:
        raise_if_cancelled(stop)
        # Folders and files may vanish while they are walked, or be closed by the program that made them.
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            total_bytes += BLOCK_BYTES
            for entry in entries:
                entries_left -= 1
                if entries_left < 0:
                    break
                raise_if_cancelled(stop)
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(entry.path)
                    else:
                        total_bytes += charge_of(status.st_size)
    return total_bytes


def _principal_of(name: str) -> str:
    """Return the principal of a folder whose account is not known yet; empty where the name does not tell."""
    return "" if LONG_NAME in name or name == SHARED else unquote(name)


def _folders_beneath(root: str) -> set[str]:
    with suppress(OSError), os.scandir(root) as entries:
        return {entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)}
    return set()
