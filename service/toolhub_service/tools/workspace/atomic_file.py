"""A file that is written atomically: a temporary file in the same folder with O_EXCL, then a rename.

A reader sees the old content or the new one, never a part, and a failed or cancelled write leaves nothing behind. A
rename replaces the name, never what a link points at.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.tools.disk_space.workspace_usage import WorkspaceAccount, charge_of
from toolhub_service.tools.workspace.disk_errors import as_tool_failures
from toolhub_service.tools.workspace.rename import rename

TEMPORARY_PREFIX = ".toolhub-"
"""Listings leave these names out."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class AtomicFile:
    """A file being written under a temporary name in its folder. Made by `Workspace.write_atomic`.

    Its account grows before each piece is written, and shrinks again when the file is not committed.
    """

    def __init__(
        self,
        folder: int,
        name: str,
        path: str,
        *,
        mode: int,
        max_bytes: int | None,
        account: WorkspaceAccount | None = None,
        replaced_bytes: int = 0,
    ) -> None:
        """Takes over the descriptor `folder` when it succeeds. `max_bytes` None: no limit. `replaced_bytes`: what the
        file that it will replace counts as. Raises OSError, and ToolFailure as `WorkspaceAccount.grow`."""
        self.path = path
        self.written_bytes = 0
        self._name = name
        self._max_bytes = max_bytes
        self._sha256 = hashlib.sha256()
        self._temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        self._mode = mode
        self._account = account
        self._replaced_bytes = replaced_bytes
        self._charged_bytes = 0
        self._charge()
        try:
            # Private until it is complete; its own mode is set with its name.
            self._descriptor = os.open(self._temporary, _CREATE, 0o600, dir_fd=folder)
        except OSError:
            self._discharge()
            raise
        self._folder = folder

    @property
    def sha256(self) -> str:
        """Return the hex digest of what has been written so far."""
        return self._sha256.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append. Raises ToolFailure FILE_TOO_LARGE past `max_bytes`, BUDGET_EXCEEDED beyond what the caller may store
        and on a full disk, IO_ERROR for another disk error."""
        self.written_bytes += len(data)
        if self._max_bytes is not None and self.written_bytes > self._max_bytes:
            message = f"The file would be larger than {self._max_bytes} bytes. Write less or split it."
            raise refuse(ErrorKind.FILE_TOO_LARGE, message, max_bytes=self._max_bytes)
        self._charge()
        self._sha256.update(data)
        rest = memoryview(data)
        with as_tool_failures(self.path):
            while rest:
                # write(2) may write only a part.
                rest = rest[os.write(self._descriptor, rest) :]

    def commit(self, *, overwrite: bool, check: Callable[[int, str], None] | None = None) -> None:
        """Give the file its name. `check` is called with folder and name right before, and raises to refuse.

        Raises ToolFailure ALREADY_EXISTS when taken meanwhile and not `overwrite`.
        """
        with as_tool_failures(self.path):
            if self._mode != 0o600:
                os.fchmod(self._descriptor, self._mode)
            if check is not None:
                check(self._folder, self._name)
            rename(self._folder, self._temporary, self._folder, self._name, overwrite=overwrite)
            self._temporary = ""
        if self._account is not None:
            self._account.shrink(self._replaced_bytes)

    def close(self) -> None:
        """Release the descriptors and remove what was not committed."""
        try:
            if self._temporary:
                # Missing: another process removed the temporary name, so nothing of ours remains.
                with as_tool_failures(self.path), suppress(FileNotFoundError):
                    os.unlink(self._temporary, dir_fd=self._folder)
                self._discharge()
        finally:
            os.close(self._descriptor)
            os.close(self._folder)

    def _charge(self) -> None:
        due_bytes = charge_of(self.written_bytes) - self._charged_bytes
        if self._account is not None and due_bytes:
            self._account.grow(due_bytes)
            self._charged_bytes += due_bytes

    def _discharge(self) -> None:
        if self._account is not None:
            self._account.shrink(self._charged_bytes)
