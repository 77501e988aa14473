"""Deleting a directory entry and what is beneath it, descriptor by descriptor, so that no link is ever walked through.

Unlink first and ask afterwards: unlink(2) itself says EISDIR. A folder is entered with O_NOFOLLOW relative to the one
that holds it, so that swapping it with a link in between deletes the link and nothing behind it.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from dataclasses import dataclass

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.off_loop import heed
from toolhub_service.tools.opening import O_LISTED


@dataclass(slots=True)
class Removed:
    """What went."""

    files: int = 0
    """Links and special files count as files."""
    folders: int = 0
    size_bytes: int = 0


def remove_entry(folder: int, name: str, *, recursive: bool, stop: threading.Event | None = None) -> Removed:
    """Delete `name` in the directory descriptor `folder`. Raises OSError; ToolFailure CANCELLED, INVALID_INPUT."""
    removal = _Removal(stop, os.fstat(folder).st_dev)
    try:
        removal.remove_file(folder, name)
    except IsADirectoryError:
        if recursive:
            removal.remove_folder(folder, name, DEPTH)
        else:
            os.rmdir(name, dir_fd=folder)
            removal.removed.folders += 1
    return removal.removed


class _Removal:
    def __init__(self, stop: threading.Event | None, device: int) -> None:
        self.removed = Removed()
        self._stop = stop
        self._device = device

    def remove_file(self, folder: int, name: str) -> None:
        size_bytes = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        os.unlink(name, dir_fd=folder)
        self.removed.files += 1
        self.removed.size_bytes += size_bytes

    def remove_folder(self, folder: int, name: str, depth_left: int) -> None:
        if depth_left == 0:
            raise refuse(ErrorKind.INVALID_INPUT, "The folder is nested too deeply. Delete its inner folders first.")
        inner = os.open(name, O_LISTED | os.O_NOFOLLOW, dir_fd=folder)
        try:
            self._empty(inner, depth_left - 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
        self.removed.folders += 1

    def _empty(self, folder: int, depth_left: int) -> None:
        if os.fstat(folder).st_dev != self._device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        for name in os.listdir(folder):
            heed(self._stop)
            # Missing: someone else deleted it first, which is what was wanted.
            with suppress(FileNotFoundError):
                try:
                    self.remove_file(folder, name)
                except IsADirectoryError:
                    self.remove_folder(folder, name, depth_left)
