"""A directory entry beneath a folder: opened; and, with all beneath it, counted, deleted or digested.

The last three descend descriptor by descriptor with O_NOFOLLOW and never through a link, up to a limit.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.guards.paths import DEPTH
from toolhub_service.tools.storage.workspace_usage import BLOCK_BYTES, charge_of

# Opening a path beneath a directory descriptor, so that no link and no race leads out of it.
#
# There are two ways with the same guarantee. `open_beneath` asks the kernel: openat2(2) with RESOLVE_BENEATH,
# RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV (Linux 5.6) resolves the whole path in one call and follows links that stay
# beneath. `open_by_step`, for kernels and seccomp filters without openat2, walks the components with O_NOFOLLOW and is
# stricter: it follows no link. Resolving first and opening afterwards (realpath + prefix) loses the race:
# CVE-2025-53109, CVE-2025-53110.

O_PATH_ONLY = os.O_PATH | os.O_CLOEXEC
O_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
O_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
O_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Never waits for a FIFO's writer and never acquires a controlling terminal."""

_SYS_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _BENEATH = 0x01, 0x02, 0x08
_RACE_ATTEMPTS = 64
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)


Opening: TypeAlias = Callable[[int, str, int], int]
"""`(root, path, flags)` returns a descriptor of the existing `path` (relative, no `..`) beneath the descriptor `root`.

Raises OSError: EXDEV or ELOOP when the path leads out.
"""


class _OpenHow(ctypes.Structure):
    """struct open_how of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.lru_cache(maxsize=16)
def _how(flags: int) -> _OpenHow:
    return _OpenHow(flags, 0, _BENEATH | _NO_MAGICLINKS | _NO_XDEV)


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open by openat2(2), as `Opening` does."""
    how = _how(flags)
    encoded = os.fsencode(path)
    code = errno.EAGAIN
    # EAGAIN: the kernel saw a rename while it resolved `..` of a link and could not determine whether it stayed
    # beneath.
    for _ in range(_RACE_ATTEMPTS):
        descriptor: int = _syscall(_SYS_OPENAT2, root, encoded, ctypes.byref(how), ctypes.sizeof(how))
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


def open_by_step(root: int, path: str, flags: int) -> int:
    """Open as `Opening` does, by one openat(2) per component, each relative to the one before."""
    *folders, last = path.split("/")
    if path.startswith("/") or ".." in (*folders, last):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    device = os.fstat(root).st_dev
    folder = root
    try:
        for name in folders:
            inner = _step(folder, name, O_FOLDER, device)
            if folder != root:
                os.close(folder)
            folder = inner
        return _step(folder, last, flags, device)
    finally:
        if folder != root:
            os.close(folder)


def _step(folder: int, name: str, flags: int, device: int) -> int:
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:
        if _is_link(folder, name):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    status = os.fstat(descriptor)
    # A mount. Only folders are checked: overlayfs reports a device of its own for some files.
    if stat.S_ISDIR(status.st_mode) and status.st_dev != device:
        os.close(descriptor)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return descriptor


def _is_link(folder: int, name: str) -> bool:
    """Only selects between two refusals: O_DIRECTORY with O_NOFOLLOW reports a link as ENOTDIR."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


@functools.cache
def best_opening() -> Opening:
    """Return openat2 where kernel and seccomp filter allow it, tested once by opening `/` beneath itself."""
    root = os.open("/", O_FOLDER)
    try:
        os.close(open_beneath(root, ".", O_FOLDER))
    except OSError:
        return open_by_step
    finally:
        os.close(root)
    return open_beneath


# Counting stops at a limit: a plan must not cost as much as the deletion. Entries that vanish meanwhile are not
# counted.

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


# The state: a plan or an approval applies only to what was shown. The content of small files counts; a larger file is
# represented by inode, size, mtime and ctime (every write changes ctime, and no call sets it back). Devices are left
# out: another mount of the same disk shows the same files.

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
