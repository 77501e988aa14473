"""Files that commands edit: one editor at a time, replaced whole, and kept through a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolhub_service.telemetry.keyring import sync_folder

_MODE = 0o600
_FOLDER_MODE = 0o700
_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WAIT_S = 30.0
"""Another editor needs milliseconds; one that was stopped by Ctrl-Z must not hold up others without a word."""
_LOOK_S = 0.02


@contextmanager
def edited(path: Path) -> Iterator[None]:
    """What is read inside is not changed by another command before it is written.

    The lock (flock(2)) is a file beside it, for the file itself is replaced; who may not write there cannot take it.
    Raises OSError: EDEADLK when another command keeps it for half a minute.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, _LOCK, _MODE)
    try:
        _wait_for(descriptor, path)
        yield
    finally:
        os.close(descriptor)  # which lets go of the lock, as the end of the process does


def _wait_for(descriptor: int, path: Path) -> None:
    until_s = time.monotonic() + _WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                told = "another command is editing it; see to that one, and try again"
                raise OSError(errno.EDEADLK, told, str(path)) from None
            time.sleep(_LOOK_S)


def replace_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file at once; a new one is readable by its owner only, an old one keeps its mode unless one is given.

    A link stays a link: what it points to is replaced. Raises OSError.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if mode is None and path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
