"""The free space of one disk: a reserve that callers may not take, and the share that each of them may have.

One statvfs(2) a question, which costs a few microseconds and is never out of date. Below the reserve only the hub's own
records grow (audit log, ends of jobs), so that reads go on; as soon as space is free again, writes do, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolhub_service.domain.storage import disk_full, refuse_taken_share
from toolhub_service.tools.disk_space.ballast import Ballast

_LARGEST_SHARE: Final = 10
"""The reserve takes at most one part in ten of a disk, so that small disks stay usable."""


def reserve_of(total_bytes: int, wanted_bytes: int) -> int:
    """Return the reserve of a disk of that size."""
    return min(wanted_bytes, total_bytes // _LARGEST_SHARE)


class DiskRoom:
    """Implements `domain.storage.Room` for the disk of a folder, which need not exist yet."""

    def __init__(self, folder: str | Path, reserve_bytes: int, ballast: Ballast | None = None) -> None:
        """`reserve_bytes` 0: callers may fill the disk. `ballast`: the file that may hold a part of the reserve."""
        self.folder = Path(folder)
        self._reserve_bytes = reserve_bytes
        self._ballast = ballast

    def check(self, size_bytes: int = 0, own_bytes: int | None = None) -> None:
        """As `Room.check`. A disk that cannot be asked refuses nothing: the write itself will fail."""
        try:
            free_bytes, reserve_bytes = self.measure()
        except OSError:
            return
        left_bytes = free_bytes - reserve_bytes - size_bytes
        if left_bytes < 0:
            raise disk_full(free_bytes=free_bytes, reserve_bytes=reserve_bytes)
        if own_bytes is not None and own_bytes + size_bytes > left_bytes:
            raise refuse_taken_share(own_bytes=own_bytes, free_bytes=free_bytes - reserve_bytes)

    def measure(self) -> tuple[int, int]:
        """Return the free bytes of the disk, the ballast among them, and how many of them are the reserve. Raises
        OSError."""
        free_bytes, reserve_bytes = self._ask()
        return free_bytes + (0 if self._ballast is None else self._ballast.bytes_on_disk_of(self.folder)), reserve_bytes

    def adjust(self) -> None:
        """Take the ballast on this disk, or give it back to the hub's own records when they need it."""
        if self._ballast is not None and self._reserve_bytes:
            with suppress(OSError):  # the folder's disk is gone, which its own users report
                self._ballast.adjust(*self._ask())

    @property
    def is_short(self) -> bool:
        """Return whether less than the reserve is free."""
        try:
            free_bytes, reserve_bytes = self.measure()
        except OSError:
            return False
        return free_bytes < reserve_bytes

    def _ask(self) -> tuple[int, int]:
        """Return (free bytes, reserve)."""
        try:
            status = os.statvfs(self.folder)
        except FileNotFoundError:
            status = os.statvfs(next(folder for folder in self.folder.absolute().parents if folder.exists()))
        block_bytes = status.f_frsize or status.f_bsize
        return status.f_bavail * block_bytes, reserve_of(status.f_blocks * block_bytes, self._reserve_bytes)
