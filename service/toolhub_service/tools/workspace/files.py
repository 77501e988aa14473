"""A file of a workspace that is open for reading: read in chunks, and its state at the time of opening."""

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

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.tools.workspace.disk_errors import as_tool_failures

CHUNK_BYTES = 1024 * 1024


class SourceFile:
    """Takes over a descriptor; closes it when it is not a regular file, at `close` and at the end of a `with`."""

    __slots__ = ("_descriptor", "identity", "mode", "path", "size_bytes")

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        self._descriptor = descriptor
        try:
            status = os.fstat(descriptor)
        except OSError:
            self.close()
            raise
        if not stat.S_ISREG(status.st_mode):
            self.close()
            code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.ENXIO
            raise OSError(code, os.strerror(code))
        self.size_bytes = status.st_size
        """Size when it was opened."""
        self.mode = status.st_mode & 0o777
        """Permission bits."""
        self.identity = status.st_dev, status.st_ino
        """Device and inode."""

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes, at most `size_bytes`; empty at the end. Raises ToolFailure IO_ERROR."""
        with as_tool_failures(self.path):
            return os.read(self._descriptor, size_bytes)

    def rewind(self) -> None:
        """Continue reading from the beginning."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def chunks(self, stop: threading.Event | None = None) -> Iterator[bytes]:
        """Yield the file in pieces of 1 MiB, up to its size when it was opened, so that a growing file comes to an end.

        Raises ToolFailure CANCELLED soon after `stop` is set.
        """
        left_bytes = self.size_bytes
        while left_bytes > 0:
            raise_if_cancelled(stop)
            data = self.read(min(CHUNK_BYTES, left_bytes))
            if not data:
                return
            left_bytes -= len(data)
            yield data

    def digest(
        self, stop: threading.Event | None = None, on_read: Callable[[int], None] = lambda _: None
    ) -> tuple[str, int]:
        """Return the SHA-256 in hex of what is read, and its length; `on_read` is called for each piece. Raises as
        `chunks`."""
        sha256 = hashlib.sha256()
        read_bytes = 0
        for data in self.chunks(stop):
            sha256.update(data)
            read_bytes += len(data)
            on_read(len(data))
        return sha256.hexdigest(), read_bytes

    def lock(self) -> None:
        """Lock the file against other edits until it is closed. Raises ToolFailure IO_ERROR, retryable, when it is
        locked."""
        with as_tool_failures(self.path):
            # Never waits: the other edit may last long, and this one would time out without an explanation.
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
