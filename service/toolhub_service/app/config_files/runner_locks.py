"""Liveness of processes that run jobs, by the locks (flock(2)) that they hold while they live.

When a lock is free, its process is certainly dead, without a timeout. Processes of another boot, and so perhaps of
another machine with the same folder, are not checked: not every network file system shows one machine the locks of
another.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from toolhub_service.app.config_files.editing import FILE_MODE, FOLDER_MODE, OPEN_LOCK

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunnerLocks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: tuple[Path, int] | None = None

    def hold(self, runner: str) -> None:
        """Hold the lock until this process ends. Without file locks, only missing beats show its end."""
        with suppress(OSError):  # a file system without locks, or a system without boot ids
            path = self._folder / f"{_BOOT_ID.read_text().strip()}.{runner}"
            self._folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            draft = self._folder / f".{runner}"
            self._own = path, os.open(draft, OPEN_LOCK, FILE_MODE)
            fcntl.flock(self._own[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(path)  # visible once it is locked, not before

    def release(self) -> None:
        own, self._own = self._own, None  # once: later another file may have the number of a closed descriptor
        if own is not None:
            path, descriptor = own
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def dead(self) -> list[str]:
        """Return the runners of this machine whose process has ended since the last call."""
        found: list[str] = []
        with suppress(OSError):  # then missing beats show it, after the time a runner may be silent
            boot_id = _BOOT_ID.read_text().strip()
            for path in self._folder.glob(f"{boot_id}.*"):
                if self._own is None or path != self._own[0]:
                    found += [path.name.removeprefix(f"{boot_id}.")] if _is_free(path) else []
        return found

    def are_held(self) -> bool:
        """Return whether a process of this machine and boot runs jobs on the folder. Changes nothing."""
        if not self._folder.is_dir():
            return False
        return any(map(_is_held, self._folder.glob(f"{_BOOT_ID.read_text().strip()}.*")))


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        # Shared: two concurrent checks must not take each other for a hub.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_free(path: Path) -> bool:
    """Return whether nobody held the lock; then the file is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
