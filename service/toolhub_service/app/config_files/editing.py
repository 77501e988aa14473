"""Files that commands edit: one editor at a time, replaced whole, and kept through a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolhub_service.stores.audit.keyring import sync_folder

_SIZE_BYTES = 32


class SecretFileInvalid(ValueError):
    """The file is not a key; the message says what to do."""


def read_or_make_key(path: Path) -> bytes:
    """Return the key.

    Raises OSError when it can neither be read nor made, SecretFileInvalid when the file holds no key.
    """
    if not path.exists():
        _make_key(path)
    return read_key(path, "remove it to have a new one made")


def _make_key(path: Path) -> None:
    """Make the key whole or not at all: of several processes that start together one makes it and all read it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE_BYTES).hex().encode())
        # Of two hubs that start at once one wins, and both then read its key.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def read_key(path: Path, advice: str) -> bytes:
    """Return 32 bytes, stored as 64 hexadecimal digits. Raises OSError, and SecretFileInvalid with advice."""
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _SIZE_BYTES:
        raise SecretFileInvalid(f"{path} holds no key of {_SIZE_BYTES} bytes; {advice}")
    return key


Stamp = tuple[int, int, int, int] | None
"""(inode, modification time, size, mode); None: no such file."""


def stamp_of(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


FILE_MODE = 0o600
FOLDER_MODE = 0o700
OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Another editor needs milliseconds; one that was stopped by Ctrl-Z must not silently block others.
_WAIT_S = 30.0
_POLL_S = 0.02


@contextmanager
def lock_for_edit(path: Path) -> Iterator[None]:
    """No other command changes the file between reading and writing in this block.

    The lock (flock(2)) is a separate file, because the file itself is replaced; taking it needs write access to the
    folder. Raises OSError: EDEADLK when another command keeps it for half a minute.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    # A separate file: the file itself is replaced, and a lock on the old one would exclude nobody.
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, OPEN_LOCK, FILE_MODE)
    try:
        _wait_for(descriptor, path)
        yield
    finally:
        os.close(descriptor)  # which releases the lock, as the end of the process does


def _wait_for(descriptor: int, path: Path) -> None:
    until_s = time.monotonic() + _WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                advice = "another command is editing it; see to that one, and try again"
                raise OSError(errno.EDEADLK, advice, str(path)) from None
            # flock waits without a bound, or not at all.
            time.sleep(_POLL_S)


def replace_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file atomically. A link stays a link: its target is replaced. Raises OSError.

    A new file is readable by its owner only, an old one keeps its mode unless one is given.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if mode is None and path.exists():
                # Keep the mode of a file that an operator has made readable for a group.
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            # Before the rename: otherwise the name could lead to an empty file after a power cut.
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
