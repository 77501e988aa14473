"""A file being written: beside its final name under a temporary one, invisible until it is committed whole.

Temporary file in the same folder with O_EXCL, then a rename: a reader sees the old content or the new one, never a
part, and a failed or cancelled write leaves nothing behind. A rename replaces the name, never what a link points at.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.tools.io_failures import telling
from toolhub_service.tools.renaming import rename

TEMPORARY_PREFIX = ".toolhub-"
"""Listings leave these names out."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Draft:
    """Bytes on their way to one name in one folder. Made by `Workspace.write_atomic`."""

    def __init__(self, folder: int, name: str, path: str, *, mode: int, max_bytes: int | None) -> None:
        """Takes over the descriptor `folder` when it succeeds. `max_bytes` None: no bound. Raises OSError."""
        self.path = path
        self.written_bytes = 0
        self._name = name
        self._max_bytes = max_bytes
        self._sha256 = hashlib.sha256()
        self._temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        self._mode = mode
        self._descriptor = os.open(self._temporary, _CREATE, 0o600, dir_fd=folder)
        self._folder = folder

    @property
    def sha256(self) -> str:
        """Hex digest of what has been written so far."""
        return self._sha256.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append. Raises ToolFailure FILE_TOO_LARGE past `max_bytes`, IO_ERROR when the disk refuses."""
        self.written_bytes += len(data)
        if self._max_bytes is not None and self.written_bytes > self._max_bytes:
            message = f"The file would be larger than {self._max_bytes} bytes. Write less or split it."
            raise refuse(ErrorKind.FILE_TOO_LARGE, message, max_bytes=self._max_bytes)
        self._sha256.update(data)
        rest = memoryview(data)
        with telling(self.path):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def commit(self, *, overwrite: bool, durable: bool, judge: Callable[[int, str], None] | None = None) -> None:
        """Give the file its name. `judge` is shown folder and name right before, and raises to refuse.

        Raises ToolFailure ALREADY_EXISTS when taken meanwhile and not `overwrite`.
        """
        with telling(self.path):
            if self._mode != 0o600:
                os.fchmod(self._descriptor, self._mode)
            if durable:
                os.fsync(self._descriptor)
            if judge is not None:
                judge(self._folder, self._name)
            rename(self._folder, self._temporary, self._folder, self._name, overwrite=overwrite)
            self._temporary = ""
            if durable:
                _sync_folder(self._folder)

    def close(self) -> None:
        """Release the descriptors and remove what was not committed."""
        try:
            if self._temporary:
                # Missing: someone took the temporary name away, so nothing of ours remains.
                with telling(self.path), suppress(FileNotFoundError):
                    os.unlink(self._temporary, dir_fd=self._folder)
        finally:
            os.close(self._descriptor)
            os.close(self._folder)


def _sync_folder(folder: int) -> None:
    """fsync(2) refuses O_PATH descriptors, so the folder is opened anew through itself."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
