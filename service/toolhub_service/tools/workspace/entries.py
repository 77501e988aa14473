"""Counts or deletes a directory entry with all beneath it.

Both descend descriptor by descriptor with O_NOFOLLOW and never through a link, up to a limit.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.disk_space.workspace_usage import BLOCK_BYTES, charge_of
from toolhub_service.tools.workspace.opening import O_LISTED

ENTRIES_MAX: Final = 10_000


@dataclass(slots=True)
class Counted:
    """An entry and all beneath it, existing or deleted. Links and special files count as files."""

    files: int = 0
    folders: int = 0
    size_bytes: int = 0
    charged_bytes: int = 0
    """What they count as in the usage of a caller; known of deleted ones."""
    is_cut: bool = False
    """Whether there is more: the limit was reached."""

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
                # Another process may delete it between the listing and this.
                with suppress(FileNotFoundError):
                    _count(inner, entry.name, counted, entries_max, depth_left - 1)
    finally:
        os.close(inner)


def _plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# Deleting: unlink first and check afterwards, because unlink(2) itself reports EISDIR. A folder is entered with
# O_NOFOLLOW relative to its parent, so that swapping it with a link in between deletes the link and nothing behind it.


def remove_entry(folder: int, name: str, *, recursive: bool, stop: threading.Event | None = None) -> Counted:
    """Delete `name` in the directory descriptor `folder`. Raises OSError; ToolFailure CANCELLED, INVALID_INPUT."""
    removal = _Removal(stop, os.fstat(folder).st_dev)
    try:
        removal.remove_file(folder, name)
    except IsADirectoryError:
        if recursive:
            removal.remove_folder(folder, name, DEPTH)
        else:
            os.rmdir(name, dir_fd=folder)
            removal.count_folder()
    return removal.removed


class _Removal:
    def __init__(self, stop: threading.Event | None, device: int) -> None:
        self.removed = Counted()
        self._stop = stop
        self._device = device

    def remove_file(self, folder: int, name: str) -> None:
        # Read before the deletion: a file that is swapped in between is counted with its predecessor's size.
        size_bytes = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        os.unlink(name, dir_fd=folder)
        self.removed.files += 1
        self.removed.size_bytes += size_bytes
        self.removed.charged_bytes += charge_of(size_bytes)

    def count_folder(self) -> None:
        self.removed.folders += 1
        self.removed.charged_bytes += BLOCK_BYTES

    def remove_folder(self, folder: int, name: str, depth_left: int) -> None:
        if depth_left == 0:
            raise refuse(ErrorKind.INVALID_INPUT, "The folder is nested too deeply. Delete its inner folders first.")
        inner = os.open(name, O_LISTED | os.O_NOFOLLOW, dir_fd=folder)
        try:
            self._empty(inner, depth_left - 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
        self.count_folder()

    def _empty(self, folder: int, depth_left: int) -> None:
        if os.fstat(folder).st_dev != self._device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        for name in os.listdir(folder):
            raise_if_cancelled(self._stop)
            # Missing: another process deleted it first, which is the intended result.
            with suppress(FileNotFoundError):
                try:
                    self.remove_file(folder, name)
                except IsADirectoryError:
                    self.remove_folder(folder, name, depth_left)
