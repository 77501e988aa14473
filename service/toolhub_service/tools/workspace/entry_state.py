"""The state of a directory entry: a digest that shows whether the entry, or anything beneath it, has changed.

A plan or an approval applies only to what was shown. The content of small files counts; a larger file is represented
by inode, size, mtime and ctime (every write changes ctime, and no call sets it back). Devices are left out: another
mount of the same disk shows the same files. Descends as `entries.py` does, never through a link.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from itertools import islice
from typing import Final

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.workspace.entries import ENTRIES_MAX
from toolhub_service.tools.workspace.opening import O_LISTED, O_READ

ABSENT: Final = "absent"
"""The state of a path without an entry."""
CONTENT_MAX_BYTES: Final = 1024 * 1024
"""Limit of all files beneath one entry together."""


def entry_state(folder: int, name: str, stop: threading.Event | None = None) -> str:
    """Return the SHA-256 (hex) over `name` in the directory descriptor `folder` and all beneath it; ABSENT without an
    entry.

    Raises OSError for what cannot be read, ToolFailure CANCELLED soon after `stop` is set.
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
        """`path`: relative to the requested entry, whose own name is not part of its state."""
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
                # Sorted, because a folder has no stable order; one more than the limit shows that there are more.
                names = sorted(entry.name for entry in islice(entries, self._entries_left + 1))
            for each in names:
                if self._entries_left <= 0:
                    self._put("cut", path)
                    return
                try:
                    status = os.stat(each, dir_fd=inner, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed since the folder was listed
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
                pass  # for a file that the hub may delete but not read, the properties without its content
            else:
                return
        self._put("file", path, status.st_ino, size_bytes, status.st_mtime_ns, status.st_ctime_ns)

    def _put(self, *facts: str | int) -> None:
        # repr quotes, so that no names make two trees have the same text.
        self.sha256.update(f"{facts!r}\n".encode("utf-8", "surrogatepass"))


def _content(folder: int, name: str) -> str:
    """Return the SHA-256 (hex) of a file of at most `CONTENT_MAX_BYTES`; if it is larger by now, of its beginning."""
    descriptor = os.open(name, O_READ | os.O_NOFOLLOW, dir_fd=folder)
    sha256 = hashlib.sha256()
    left_bytes = CONTENT_MAX_BYTES + 1
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ABSENT
        while left_bytes > 0 and (data := os.read(descriptor, min(left_bytes, 128 * 1024))):
            sha256.update(data)
            left_bytes -= len(data)
    finally:
        os.close(descriptor)
    return sha256.hexdigest()
