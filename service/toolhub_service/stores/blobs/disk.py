"""Bytes of artifacts in a folder, under their sha256: `<folder>/ab/cdef…`.

A blob is written to a temporary name, synced and renamed, and the folder is synced: so a name implies whole, durable
content. Equal content is one file, because a rename replaces the older copy. Disk work runs in threads; the loop only
hands chunks over.

Several processes may share the folder. Two rules keep them apart: a temporary file is locked (flock(2)) by the process
that writes it, so that another one's start removes only what was left behind; and a name is given under the shared lock
of `<folder>/.lock` and removed under the exclusive one, never while its bytes are younger than `settle_s`: a writer
that has just named the same content may be about to record it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from toolhub_service.aio.threads import raise_if_cancelled, to_thread
from toolhub_service.domain.artifact import BlobWriter
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.storage import disk_full
from toolhub_service.tools.workspace.disk_errors import DISK_FULL

# What all blob stores share: bounds, and the caller's error when a store refuses.

CHUNK_BYTES: Final = 256 * 1024
"""Largest chunk that `read` yields."""
SETTLE_S: Final = 300.0
"""How long bytes are safe from removal after they were stored: far longer than recording them takes."""

_TOO_LARGE = "The hub's place for artifacts takes no file of this size. Write less."
_DENIED = "The hub may not use its place for artifacts. An operator must check its owner and permissions."
_BUSY = "The hub has too many files open to reach its artifacts. Try again in a moment."
_OTHERWISE = "The hub could not read or write its artifacts. Try again; an operator finds the cause by the errno."
_ADVICE = {
    errno.EFBIG: _TOO_LARGE,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.ELOOP: _DENIED,
    errno.ENOTDIR: _DENIED,
    errno.EMFILE: _BUSY,
    errno.ENFILE: _BUSY,
}
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN})


def no_such_blob() -> ToolFailure:
    """Return the error for a digest without bytes."""
    return refuse(ErrorKind.NOT_FOUND, "The artifact's bytes are gone. Make it again, or ask its writer for it.")


@contextmanager
def as_tool_failures() -> Iterator[None]:
    """Turn any OSError of the block into a ToolFailure that names no path: IO_ERROR, for a full disk `disk_full`."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        if code in DISK_FULL:
            raise disk_full(errno=errno.errorcode[code]) from error
        name = errno.errorcode.get(code, str(code))
        advice = _ADVICE.get(code, _OTHERWISE)
        raise refuse(ErrorKind.IO_ERROR, advice, retryable=code in _PASSING, errno=name) from error


# One blob on its way to the disk: chunks are gathered to 1 MiB, then hashed and written in a thread.

# One hop to a thread a megabyte, and one in all for a small blob.
_GATHERED_BYTES = 1024 * 1024


class DiskWriter:
    """Implements `domain.artifact.BlobWriter`."""

    def __init__(self, folder: DiskBlobs) -> None:
        self._folder = folder
        self._descriptor = -1
        self._temporary = ""
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    async def write(self, chunk: bytes) -> None:
        """Write a chunk. Raises ToolFailure IO_ERROR."""
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes >= _GATHERED_BYTES:
            await to_thread(self._flush)

    async def finish(self) -> tuple[str, int]:
        await to_thread(self._publish)
        return self._sha256.hexdigest(), self._size_bytes

    async def abort(self) -> None:
        self._held.clear()
        if self._descriptor >= 0:
            await to_thread(lambda _: self._drop())

    def _publish(self, stop: threading.Event) -> None:
        self._flush(stop)
        with as_tool_failures():
            self._folder.publish(self._descriptor, self._temporary, self._sha256.hexdigest(), stop)
            self._temporary = ""
            self._drop()

    def _flush(self, stop: threading.Event) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        with as_tool_failures():
            if self._descriptor < 0:
                self._descriptor, self._temporary = self._folder.create()
            for chunk in held:
                raise_if_cancelled(stop)
                self._sha256.update(chunk)
                self._size_bytes += len(chunk)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def _drop(self) -> None:
        """Close the descriptor, and remove the file if it was not published."""
        try:
            if self._temporary:
                with as_tool_failures():
                    self._folder.discard(self._temporary)
                self._temporary = ""
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


_INCOMING = ".incoming"
_LOCK = ".lock"
# How much one hop to a reading thread returns.
_READ_BYTES = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCKED = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_CLOSED = -1


class DiskBlobs:
    """Implements `domain.artifact.Blobs`. No link beneath the folder is followed."""

    def __init__(self, folder: str, *, settle_s: float = SETTLE_S) -> None:
        """Make the folder when missing and remove what killed processes left. Raises ToolFailure IO_ERROR."""
        self._settle_s = settle_s
        with as_tool_failures():
            Path(folder).mkdir(0o700, parents=True, exist_ok=True)
            self._root = os.open(folder, _FOLDER & ~os.O_NOFOLLOW)
            with suppress(FileExistsError):  # of an earlier start, or of another hub on this folder
                os.mkdir(_INCOMING, 0o700, dir_fd=self._root)
            self._incoming = os.open(_INCOMING, _FOLDER, dir_fd=self._root)
            self._remove_left_behind()

    async def writer(self) -> BlobWriter:
        return DiskWriter(self)

    async def read(self, sha256: str, offset_bytes: int, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield chunks of 1 to 262144 bytes; a limit of 0 means to the end. Raises ToolFailure NOT_FOUND, IO_ERROR."""
        descriptor = await to_thread(lambda _: self._open_blob(sha256))
        try:
            at, end = offset_bytes, offset_bytes + limit_bytes if limit_bytes else None
            while end is None or at < end:
                wanted = _READ_BYTES if end is None else min(_READ_BYTES, end - at)
                data = await to_thread(partial(_pread, descriptor, wanted, at))
                if not data:
                    return
                at += len(data)
                for start in range(0, len(data), CHUNK_BYTES):
                    yield data[start : start + CHUNK_BYTES]
        finally:
            os.close(descriptor)

    async def remove(self, sha256: str) -> None:
        """Remove the bytes, unless they are younger than `settle_s` or gone already."""
        await to_thread(lambda _: self._remove(sha256))

    async def close(self) -> None:
        """Close the store; a second call does nothing."""
        for descriptor in (self._incoming, self._root):
            if descriptor != _CLOSED:
                os.close(descriptor)
        self._incoming = self._root = _CLOSED

    # For DiskWriter, in a thread

    def create(self) -> tuple[int, str]:
        """Return a new, locked temporary file: its descriptor and name. Raises OSError."""
        while True:
            name = secrets.token_hex(16)
            descriptor = os.open(name, _TEMPORARY, 0o600, dir_fd=self._incoming)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, name
            os.close(descriptor)  # a starting process removed it as a left-over before it was locked

    def publish(self, descriptor: int, temporary: str, sha256: str, stop: threading.Event) -> None:
        """Give a whole temporary file its name, durably.

        Raises OSError, and ToolFailure CANCELLED when `stop` is set.
        """
        os.fsync(descriptor)
        shard = self._open_shard(sha256, make=True)
        try:
            with self._hold_lock(fcntl.LOCK_SH):
                raise_if_cancelled(stop)
                os.utime(descriptor)  # its age counts from now, however long the upload took
                os.rename(temporary, sha256[2:], src_dir_fd=self._incoming, dst_dir_fd=shard)
            os.fsync(shard)
        finally:
            os.close(shard)

    def discard(self, temporary: str) -> None:
        """Remove a temporary file. Raises OSError."""
        with suppress(FileNotFoundError):  # it has become a blob, or the sweeper was faster
            os.unlink(temporary, dir_fd=self._incoming)

    # File operations

    def _open_blob(self, sha256: str) -> int:
        if not _SHA256.fullmatch(sha256):
            raise no_such_blob()
        with as_tool_failures():
            try:
                shard = self._open_shard(sha256)
                try:
                    descriptor = os.open(sha256[2:], _READ, dir_fd=shard)
                finally:
                    os.close(shard)
            except FileNotFoundError:
                raise no_such_blob() from None
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            return descriptor

    def _open_shard(self, sha256: str, *, make: bool = False) -> int:
        name = sha256[:2]
        try:
            return os.open(name, _FOLDER, dir_fd=self._root)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):  # another write of this shard has just made it
            os.mkdir(name, 0o700, dir_fd=self._root)
            os.fsync(self._root)
        return os.open(name, _FOLDER, dir_fd=self._root)

    def _remove(self, sha256: str) -> None:
        if not _SHA256.fullmatch(sha256):
            return
        with as_tool_failures(), suppress(FileNotFoundError):  # another hub's sweeper has removed it
            shard = self._open_shard(sha256)
            try:
                with self._hold_lock(fcntl.LOCK_EX):
                    status = os.stat(sha256[2:], dir_fd=shard, follow_symlinks=False)
                    if time.time() - status.st_mtime >= self._settle_s:
                        os.unlink(sha256[2:], dir_fd=shard)
            finally:
                os.close(shard)

    @contextmanager
    def _hold_lock(self, how: int) -> Iterator[None]:
        """Hold the folder's lock.

        Each holder opens the file anew, so that threads of one process exclude one another, too.
        """
        descriptor = os.open(_LOCK, _LOCKED, 0o600, dir_fd=self._root)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def _remove_left_behind(self) -> None:
        for name in os.listdir(self._incoming):  # noqa: PTH208 - a descriptor has no Path
            with suppress(FileNotFoundError):
                descriptor = os.open(name, _READ, dir_fd=self._incoming)
                try:
                    # A lock shows that its writer, a process beside this one, is still alive.
                    with suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(name, dir_fd=self._incoming)
                finally:
                    os.close(descriptor)


@contextmanager
def pause_removals(folder: Path) -> Iterator[None]:
    """Keep all processes from removing bytes of the folder. Keep the block short.

    Does nothing when there is no folder.
    """
    try:
        descriptor = os.open(folder / _LOCK, _LOCKED, 0o600)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _pread(descriptor: int, size_bytes: int, at: int, stop: threading.Event) -> bytes:
    raise_if_cancelled(stop)
    with as_tool_failures():
        return os.pread(descriptor, size_bytes, at)
