"""Opens a path beneath a directory descriptor, so that no link and no race leads out of it.

There are two ways with the same guarantee. `open_beneath` asks the kernel: openat2(2) with RESOLVE_BENEATH,
RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV (Linux 5.6) resolves the whole path in one call and follows links that stay
beneath. `open_by_step`, for kernels and seccomp filters without openat2, walks the components with O_NOFOLLOW and is
stricter: it follows no link. Resolving first and opening afterwards (realpath + prefix) loses the race:
CVE-2025-53109, CVE-2025-53110.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable
from typing import TypeAlias

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
