"""A file that keeps a part of the reserve from everybody, programs included, until the hub's own records need it.

A program fills a small disk faster than it can be ended, and then even the audit log has no space, so that every call
stops, also the deletions that would make room. The space of this file is given back at that moment, and taken again
when the disk has recovered. It is made only where little space is left: on a large, empty disk nobody can be so fast.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "reserve"
_NEAR: Final = 16
"""It is made while less than so many times the configured reserve is free."""


class Ballast:
    """The file beside the audit log. Several processes may use the same one."""

    def __init__(self, folder: Path, wanted_bytes: int) -> None:
        """`wanted_bytes`: the configured reserve."""
        self._file = folder / NAME
        self._wanted_bytes = wanted_bytes

    @property
    def size_bytes(self) -> int:
        """Return what it holds now; 0: it has been given back, or was not needed yet."""
        try:
            return self._file.stat().st_size
        except OSError:
            return 0

    def bytes_on_disk_of(self, folder: Path) -> int:
        """Return what it holds of the disk of that folder."""
        size_bytes = self.size_bytes
        try:
            return size_bytes if size_bytes and folder.stat().st_dev == self._file.stat().st_dev else 0
        except OSError:
            return 0

    def adjust(self, free_bytes: int, reserve_bytes: int) -> None:
        """Take or give back, as the free space, without this file's, and the reserve of the disk say."""
        size_bytes = self.size_bytes
        if size_bytes and free_bytes < reserve_bytes // 4:
            self.release()
        elif not size_bytes and reserve_bytes < free_bytes < _NEAR * self._wanted_bytes:
            self._take(reserve_bytes // 2)

    def release(self) -> None:
        with suppress(OSError):
            self._file.unlink()

    def _take(self, size_bytes: int) -> None:
        # Without space, or on a file system without preallocation, there is none.
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, max(1, size_bytes))
            except OSError:
                self.release()
            finally:
                os.close(descriptor)
