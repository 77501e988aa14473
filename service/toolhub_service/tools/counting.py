"""What a deletion would take, counted and not touched: files, folders and bytes beneath a directory entry.

Walks as removal.py does, descriptor by descriptor and through no link, and stops at a bound: a plan must not cost what
the deletion costs. Entries that vanish meanwhile are not counted.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.opening import O_LISTED

ENTRIES_MAX: Final = 10_000


@dataclass(slots=True)
class Counted:
    """What stands there. Links and special files count as files."""

    files: int = 0
    folders: int = 0
    size_bytes: int = 0
    is_cut: bool = False
    """There is more: the bound was reached."""

    def __str__(self) -> str:
        """Such as `3 files and 1 folder, 4,096 bytes`."""
        parts = [_plural(self.files, "file")] if self.files or not self.folders else []
        parts += [_plural(self.folders, "folder")] if self.folders else []
        return f"{'at least ' if self.is_cut else ''}{' and '.join(parts)}, {_plural(self.size_bytes, 'byte')}"


def count_entry(folder: int, name: str, *, entries_max: int = ENTRIES_MAX) -> Counted:
    """Count `name` in the directory descriptor `folder` and all beneath it. Raises OSError when it is not there."""
    counted = Counted()
    _count(folder, name, counted, entries_max, DEPTH)
    return counted


def _count(folder: int, name: str, counted: Counted, entries_max: int, depth_left: int) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        counted.files += 1
        counted.size_bytes += status.st_size
        return
    counted.folders += 1
    if depth_left == 0:
        counted.is_cut = True
        return
    inner = os.open(name, O_LISTED | os.O_NOFOLLOW, dir_fd=folder)
    try:
        with os.scandir(inner) as entries:
            for entry in entries:
                if counted.files + counted.folders >= entries_max:
                    counted.is_cut = True
                    return
                with suppress(FileNotFoundError):
                    _count(inner, entry.name, counted, entries_max, depth_left - 1)
    finally:
        os.close(inner)


def _plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
