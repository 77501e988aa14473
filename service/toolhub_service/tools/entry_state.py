"""The state of a directory entry as one digest, so that a plan or an approval holds for what was shown and no more.

Walks as counting.py does: descriptor by descriptor, through no link, as far as its bound. Content counts where it is
small; a larger file is told by inode, size, mtime and ctime (every write moves ctime, and no call sets it back).
Devices are left out: another mount of the same disk shows the same files.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from itertools import islice
from typing import Final

from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.counting import ENTRIES_MAX
from toolhub_service.tools.off_loop import heed
from toolhub_service.tools.opening import O_LISTED, O_READ

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
    look = _Look(stop)
    look.entry(folder, name, status, "", DEPTH)
    return look.sha256.hexdigest()


class _Look:
    def __init__(self, stop: threading.Event | None) -> None:
        self.sha256 = hashlib.sha256()
        self._entries_left = ENTRIES_MAX
        self._content_left_bytes = CONTENT_MAX_BYTES
        self._stop = stop

    def entry(self, folder: int, name: str, status: os.stat_result, path: str, depth_left: int) -> None:
        """`path`: from the entry that is asked about, whose own name is no part of its state."""
        heed(self._stop)
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
