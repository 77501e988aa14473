"""A regular file open for reading: what stands open is what was judged, whatever its name means by now."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from toolhub_service.tools.io_failures import telling
from toolhub_service.tools.off_loop import heed

CHUNK_BYTES = 1024 * 1024


class SourceFile:
    """Takes over a descriptor; closes it when it is no regular file, at `close` and at the end of a `with`."""

    __slots__ = ("_descriptor", "_status", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        self._descriptor = descriptor
        try:
            self._status = os.fstat(descriptor)
            if not stat.S_ISREG(self._status.st_mode):
                raise _not_regular(self._status.st_mode)
        except OSError:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        return self._status.st_size

    @property
    def mode(self) -> int:
        """Permission bits."""
        return self._status.st_mode & 0o777

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self._status.st_dev, self._status.st_ino

    def read(self, size_bytes: int) -> bytes:
        """The next bytes, `size_bytes` at most; empty at the end. Raises ToolFailure IO_ERROR."""
        with telling(self.path):
            return os.read(self._descriptor, size_bytes)

    def rewind(self) -> None:
        """To be read again from the beginning."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def chunks(self, stop: threading.Event | None = None) -> Iterator[bytes]:
        """The file as large as it was when opened, 1 MiB at a time, so that a growing file comes to an end.

        Raises ToolFailure CANCELLED soon after `stop` is set.
        """
        left_bytes = self.size_bytes
        while left_bytes > 0:
            heed(stop)
            data = self.read(min(CHUNK_BYTES, left_bytes))
            if not data:
                return
            left_bytes -= len(data)
            yield data

    def digest(
        self, stop: threading.Event | None = None, on_read: Callable[[int], None] = lambda _: None
    ) -> tuple[str, int]:
        """SHA-256 in hex of what is read, and how many bytes; `on_read` hears of each piece. Raises as `chunks`."""
        sha256, read_bytes = hashlib.sha256(), 0
        for data in self.chunks(stop):
            sha256.update(data)
            read_bytes += len(data)
            on_read(len(data))
        return sha256.hexdigest(), read_bytes

    def lock(self) -> None:
        """Hold the file against other edits until it is closed. Raises ToolFailure IO_ERROR, retryable, when held."""
        with telling(self.path):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _not_regular(mode: int) -> OSError:
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO
    return OSError(code, os.strerror(code))
