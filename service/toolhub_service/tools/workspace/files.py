"""Files of a workspace: the meaning of disk errors, a file open for reading, and a file that is written atomically.

Writing: a temporary file in the same folder with O_EXCL, then a rename: a reader sees the old content or the new one,
never a part, and a failed or cancelled write leaves nothing behind. A rename replaces the name, never what a link
points at.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.storage import disk_full
from toolhub_service.tools.storage.workspace_usage import WorkspaceAccount, charge_of

# OSError to ToolFailure, in one place: what a model reads for a disk error.

_SHOWN_CHARS = 200
_OUTSIDE = (
    ErrorKind.PATH_OUTSIDE_SANDBOX,
    "leaves the workspace or goes through a symbolic link. Use a path of real folders inside the workspace.",
)
_DENIED = (ErrorKind.IO_ERROR, "cannot be accessed: permission denied. Use another path.")
_TOO_LARGE = (ErrorKind.IO_ERROR, "could not be written: the file system takes no file of this size. Write less.")
_SPECIAL = (ErrorKind.INVALID_INPUT, "is not a regular file (a pipe, socket or device). Use a regular file.")
_BUSY = (ErrorKind.IO_ERROR, "is being changed by someone else. Try again.")

_MEANINGS = {
    errno.ENOENT: (
        ErrorKind.NOT_FOUND,
        "does not exist. List its folder with core/fs.listDir. Another request_id has another workspace.",
    ),
    errno.EEXIST: (ErrorKind.ALREADY_EXISTS, "already exists. Set overwrite to true or choose another path."),
    errno.EXDEV: _OUTSIDE,
    errno.ELOOP: _OUTSIDE,
    errno.EISDIR: (ErrorKind.INVALID_INPUT, "is a folder. Name a file."),
    errno.ENOTDIR: (
        ErrorKind.INVALID_INPUT,
        "is not a folder, or a part of its path is a file. Name a folder, or a path below one.",
    ),
    errno.ENOTEMPTY: (ErrorKind.INVALID_INPUT, "is a folder that is not empty. Empty it first or choose another path."),
    errno.EINVAL: (ErrorKind.INVALID_INPUT, "does not allow this operation, such as moving a folder into itself."),
    errno.ENAMETOOLONG: (ErrorKind.INVALID_INPUT, "is too long. Use shorter names."),
    errno.ENXIO: _SPECIAL,
    errno.ENODEV: _SPECIAL,
    errno.EFBIG: _TOO_LARGE,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.EAGAIN: _BUSY,
    errno.EBUSY: _BUSY,
    errno.ETXTBSY: _BUSY,
    errno.EMFILE: (ErrorKind.IO_ERROR, "could not be opened: too many files are open. Try again."),
    errno.ENFILE: (ErrorKind.IO_ERROR, "could not be opened: too many files are open. Try again."),
}
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system answers when a disk, or the quota of the hub's user, is full."""
_OTHERWISE = (ErrorKind.IO_ERROR, "could not be read or written. Try again or use another path.")
_PASSING = frozenset({errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EMFILE, errno.ENFILE})


def failure_of(error: OSError, path: str) -> ToolFailure:
    """Return the failure of an operation on `path` (relative to the workspace) for a caller."""
    code = error.errno or 0
    if code in DISK_FULL:
        return disk_full(errno=errno.errorcode[code])
    kind, sentence = _MEANINGS.get(code, _OTHERWISE)
    shown = path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}…"
    message = f'"{shown}" {sentence}'
    return refuse(kind, message, retryable=code in _PASSING, path=shown, errno=errno.errorcode.get(code, str(code)))


@contextmanager
def as_tool_failures(path: str) -> Iterator[None]:
    """Convert any OSError of the body into the ToolFailure about `path`."""
    try:
        yield
    except OSError as error:
        raise failure_of(error, path) from error


# A regular file open for reading: the open file is the checked one, whatever its name refers to by now.

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
        sha256, read_bytes = hashlib.sha256(), 0
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


# Atomic naming of a file: rename(2), and renameat2(2) with RENAME_NOREPLACE where nothing may be replaced.
#
# Two writers of the same new name cannot both succeed. Where the C library or the file system lacks renameat2, link(2)
# (for files) and mkdir(2) with a rename over the empty folder (for folders) refuse a taken name just as atomically.

_RENAME_NOREPLACE = 1
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
if _renameat2 is not None:
    _renameat2.restype = ctypes.c_int
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def rename(source_folder: int, source: str, folder: int, name: str, *, overwrite: bool) -> None:
    """Move a directory entry; names are single components. Raises OSError EEXIST when taken and not `overwrite`."""
    if overwrite:
        os.rename(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)
        return
    code = errno.ENOSYS
    if _renameat2 is not None:
        failed = _renameat2(source_folder, os.fsencode(source), folder, os.fsencode(name), _RENAME_NOREPLACE)
        code = ctypes.get_errno() if failed else 0
    if code in _UNSUPPORTED:
        _rename_by_claim(source_folder, source, folder, name)
    elif code:
        raise OSError(code, os.strerror(code))


def _rename_by_claim(source_folder: int, source: str, folder: int, name: str) -> None:
    """EINVAL also means that a folder is moved into itself; then rename(2) reports it again."""
    if stat.S_ISDIR(os.stat(source, dir_fd=source_folder, follow_symlinks=False).st_mode):
        os.mkdir(name, 0o700, dir_fd=folder)
        try:
            os.rename(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)
        except OSError:
            os.rmdir(name, dir_fd=folder)
            raise
    else:
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(source, dir_fd=source_folder)


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
