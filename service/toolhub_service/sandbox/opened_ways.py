"""Ways for an unprivileged user to folders that lie below closed ones, in a mount namespace of its own process.

A Python below /root, whose mode is 0700, is out of reach of the user that scripts run as. Where Landlock is the only
confinement and the hub is a root that may make mounts, an empty folder covers the closed one, and in it only what the
program is to be shown appears again, at the same place (mount_namespaces(7)). Modes of what is shown stay as they are.
It is imported at every start under Landlock, and so imports almost nothing.
"""

from __future__ import annotations

import ctypes
import os
import stat

TYPE_CHECKING = False  # of `typing`, which landlock_start.py has no time for
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CLONE_NEWNS = 0x00020000
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_COVER = b"mode=0755,size=1m"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def closed_folders(user: int, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the outermost folders above the paths, which have no links, that a user without a group cannot enter."""
    closed: dict[str, None] = {}
    for path in paths:
        for above in _folders_above(path):
            if not may(user, above, stat.S_IXOTH):
                closed[above] = None
                break
    return tuple(closed)


def may(user: int, path: str, bit: int) -> bool:
    """Return whether the mode of the path gives the user, who has no group, what `bit` gives to others."""
    status = os.stat(path)  # noqa: PTH116 - one call, as the kernel checks it
    place = 6 if status.st_uid == user else 3 if status.st_gid == user else 0
    return bool(status.st_mode >> place & bit)


def open_ways(closed: Sequence[str], shown: Sequence[str]) -> None:
    """Cover the closed folders for this process and its child processes, and show these paths in them.

    No path lies in another. Raises OSError when this process may not make mounts.
    """
    _raise_if_negative(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE, None)
    # Only now: a folder that was opened outside of the namespace cannot be mounted in it.
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in shown]
    mask = os.umask(0o022)
    try:
        for folder in closed:
            _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, _COVER)
        for path, descriptor in held:
            _make_place(path, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            _mount(f"/proc/self/fd/{descriptor}", path, None, _MS_BIND | _MS_REC, None)
    finally:
        os.umask(mask)
        for _, descriptor in held:
            os.close(descriptor)


def _make_place(path: str, *, is_folder: bool) -> None:
    """Make an empty folder or file to mount on."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - see the module
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))


def _folders_above(path: str) -> list[str]:
    """Return the folders above it, the outermost first."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[:count]) for count in range(len(names) + 1)]


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: bytes | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _raise_if_negative(_libc.mount(*words, flags, options))


def _raise_if_negative(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
