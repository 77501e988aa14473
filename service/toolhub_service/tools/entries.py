"""A directory entry and all beneath it: counted, deleted, or reduced to one digest of its state.

All three descend descriptor by descriptor with O_NOFOLLOW and never through a link, as far as a bound.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.opening import O_LISTED, O_READ
from toolhub_service.tools.threads import raise_if_cancelled

# Counting stops at a bound: a plan must not cost what the deletion costs. Entries that vanish meanwhile are not
# counted.

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


# Deleting: unlink first and ask afterwards: unlink(2) itself says EISDIR. A folder is entered with O_NOFOLLOW relative
# to the one that holds it, so that swapping it with a link in between deletes the link and nothing behind it.


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
            raise_if_cancelled(self._stop)
            # Missing: someone else deleted it first, which is what was wanted.
            with suppress(FileNotFoundError):
                try:
                    self.remove_file(folder, name)
                except IsADirectoryError:
                    self.remove_folder(folder, name, depth_left)


# The state: a plan or an approval holds for what was shown and no more. Content counts where it is small; a larger file
# is represented by inode, size, mtime and ctime (every write moves ctime, and no call sets it back). Devices are left
# out: another mount of the same disk shows the same files.

ABSENT: Final = "absent"
"""The state of a path at which nothing stands."""
CONTENT_MAX_BYTES: Final = 1024 * 1024
"""Of all files beneath one entry together."""


def entry_state(folder: int, name: str, stop: threading.Event | None = None) -> str:
    """SHA-256 (hex) over `name` in the directory descriptor `folder` and all beneath it; ABSENT where nothing stands.

    Raises OSError for what cannot be looked at, ToolFailure CANCELLED soon after `stop` is set.
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return ABSENT
    digest = _Digest(stop)
    digest.entry(folder, name, status, "", DEPTH)
    return digest.sha256.hexdigest()


class _Digest:
    def __init__(self, stop: threading.Event | None) -> None:
        self.sha256 = hashlib.sha256()
        self._entries_left = ENTRIES_MAX
        self._content_left_bytes = CONTENT_MAX_BYTES
        self._stop = stop

    def entry(self, folder: int, name: str, status: os.stat_result, path: str, depth_left: int) -> None:
        """`path`: from the entry that is asked about, whose own name is no part of its state."""
        raise_if_cancelled(self._stop)
        self._entries_left -= 1
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            self._put("folder", path)
            self._beneath(folder, name, path, depth_left)
        elif stat.S_ISLNK(mode):
            self._put("link", path, os.readlink(name, dir_fd=folder))
        elif stat.S_ISREG(mode):
            self._file(folder, name, status, path)
        else:
            self._put("other", path, stat.S_IFMT(mode), status.st_ino)

    def _beneath(self, folder: int, name: str, path: str, depth_left: int) -> None:
        if depth_left == 0:
            self._put("cut", path)
            return
        inner = os.open(name, O_LISTED | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with os.scandir(inner) as entries:
                names = sorted(entry.name for entry in islice(entries, self._entries_left + 1))
            for each in names:
                if self._entries_left <= 0:
                    self._put("cut", path)
                    return
                try:
                    status = os.stat(each, dir_fd=inner, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                self.entry(inner, each, status, f"{path}/{each}", depth_left - 1)
        finally:
            os.close(inner)

    def _file(self, folder: int, name: str, status: os.stat_result, path: str) -> None:
        size_bytes = status.st_size
        if size_bytes <= self._content_left_bytes:
            self._content_left_bytes -= size_bytes
            try:
                self._put("file", path, _content(folder, name))
            except PermissionError:
                pass  # Of a file that the hub may delete and not read, what can be told without its content.
            else:
                return
        self._put("file", path, status.st_ino, size_bytes, status.st_mtime_ns, status.st_ctime_ns)

    def _put(self, *facts: str | int) -> None:
        self.sha256.update(f"{facts!r}\n".encode("utf-8", "surrogatepass"))


def _content(folder: int, name: str) -> str:
    """SHA-256 (hex) of a file of `CONTENT_MAX_BYTES` at most; of one that is larger by now, of its beginning."""
    descriptor = os.open(name, O_READ | os.O_NOFOLLOW, dir_fd=folder)
    sha256, left_bytes = hashlib.sha256(), CONTENT_MAX_BYTES + 1
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ABSENT
        while left_bytes > 0 and (data := os.read(descriptor, min(left_bytes, 128 * 1024))):
            sha256.update(data)
            left_bytes -= len(data)
    finally:
        os.close(descriptor)
    return sha256.hexdigest()
