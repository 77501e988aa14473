"""Converts errors of the disk (OSError) to ToolFailure, with texts for a model."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.storage import disk_full

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
