"""Files that commands edit: one editor at a time, replaced whole, and kept through a power cut."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import yaml

from toolhub_service.stores.audit.chain import sync_folder
from toolhub_service.transport.interceptors.auth import KEY_PREFIX, StoredKey

_SIZE_BYTES = 32


class SecretFileInvalid(ValueError):
    """The file is not a key; the message says what to do."""


def read_or_make_key(path: Path) -> bytes:
    """The key. Raises OSError when it can neither be read nor made, SecretFileInvalid when the file holds no key."""
    if not path.exists():
        _make_key(path)
    return read_key(path, "remove it to have a new one made")


def _make_key(path: Path) -> None:
    """Whole or not at all: of several processes that start together one makes the key and all read that one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE_BYTES).hex().encode())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def read_key(path: Path, advice: str) -> bytes:
    """32 bytes, as 64 hexadecimal digits. Raises OSError, and SecretFileInvalid with the advice."""
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


_MODE = 0o600
_FOLDER_MODE = 0o700
_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Another editor needs milliseconds; one that was stopped by Ctrl-Z must not hold up others without a word.
_WAIT_S = 30.0
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
                advice = "another command is editing it; see to that one, and try again"
                raise OSError(errno.EDEADLK, advice, str(path)) from None
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


# Processes that run jobs, by the locks (flock(2)) that they hold as long as they live: whose lock can be had is dead
# for certain, and nobody has to wait for its silence. Those of another boot, which may be another machine that has the
# folder too, are not judged: not every file system of a network tells one machine of the locks of another.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunnerLocks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: tuple[Path, int] | None = None

    def hold(self, runner: str) -> None:
        """Be known as alive until this process ends. Where the folder takes no lock, silence alone tells of the end."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
            draft = self._folder / f".{runner}"
            descriptor = os.open(draft, _LOCK, _MODE)
            self._own = self._folder / f"{_BOOT_ID.read_text().strip()}.{runner}", descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(self._own[0])  # seen once it is locked, not before

    def let_go(self) -> None:
        own, self._own = self._own, None  # once: by then another file may have the number of a closed descriptor
        if own is not None:
            path, descriptor = own
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def dead(self) -> list[str]:
        """Runners of this machine whose process has ended since they were asked for last."""
        found: list[str] = []
        with suppress(OSError):
            boot_id = _BOOT_ID.read_text().strip()
            for path in self._folder.glob(f"{boot_id}.*"):
                if self._own is None or path != self._own[0]:
                    found += [path.name.removeprefix(f"{boot_id}.")] if _is_free(path) else []
        return found

    def are_held(self) -> bool:
        """Whether a process of this machine, of this boot, runs jobs on the folder. Changes nothing."""
        if not self._folder.is_dir():
            return False
        return any(map(_is_held, self._folder.glob(f"{_BOOT_ID.read_text().strip()}.*")))


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_free(path: Path) -> bool:
    """Whether nobody held the lock; then the file is gone."""
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


_KEYS_MODE = 0o600


class KeyFileInvalid(ValueError):
    """The file is not a list of keys; the message says where."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sha256: str


class KeyFile:
    """Read and changed as a whole, by one command at a time, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, StoredKey]:
        """Key id to stored key; empty when there is no file. Raises KeyFileInvalid."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            entries = msgspec.convert(yaml.safe_load(text) or {}, dict[str, _Entry])
        except (yaml.YAMLError, msgspec.ValidationError) as broken:
            raise KeyFileInvalid(
                f"{self._path}: not a file of API keys. Repair or restore it; without it keys must be made anew, with "
                "`toolhub keys create`."
            ) from broken
        return {key_id: StoredKey(entry.name, entry.sha256) for key_id, entry in entries.items()}

    def create(self, name: str) -> str:
        """A new key for the principal `name`: the whole key text, shown this once.

        Raises OSError and KeyFileInvalid; then there is no such key.
        """
        key_id = f"{KEY_PREFIX}{secrets.token_hex(4)}"
        key = f"{key_id}_{secrets.token_urlsafe(32)}"
        stored = StoredKey(name, hashlib.sha256(key.encode()).hexdigest())
        with edited(self._path):
            self._write({**self.read(), key_id: stored})
        return key

    def revoke(self, key_id: str) -> bool:
        """Whether there was such a key. Raises OSError and KeyFileInvalid; then it still works."""
        with edited(self._path):
            keys = self.read()
            if keys.pop(key_id, None) is None:
                return False
            self._write(keys)
            return True

    def _write(self, keys: Mapping[str, StoredKey]) -> None:
        data = {key_id: {"name": stored.name, "sha256": stored.sha256} for key_id, stored in sorted(keys.items())}
        replace_text(self._path, yaml.safe_dump(data), mode=_KEYS_MODE)
