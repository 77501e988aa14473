"""OSError to ToolFailure, in one place: what a model is told when the disk says no."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse

_SHOWN_CHARS = 200
_OUTSIDE = (
    ErrorKind.PATH_OUTSIDE_SANDBOX,
    "leads out of the workspace or through a link. Use a path of real folders inside the workspace.",
)
_DENIED = (ErrorKind.IO_ERROR, "may not be touched: the file system denies it. Use another path.")
_FULL = (ErrorKind.IO_ERROR, "could not be written: the disk or its quota is full. Delete something first.")
_SPECIAL = (ErrorKind.INVALID_INPUT, "is not a regular file (a pipe, socket or device). Use a regular file.")
_BUSY = (ErrorKind.IO_ERROR, "is being changed by someone else. Try again.")

_TOLD = {
    errno.ENOENT: (
        ErrorKind.NOT_FOUND,
        "does not exist. List its folder with core/fs.listDir to see what does; another request_id has other files.",
    ),
    errno.EEXIST: (ErrorKind.ALREADY_EXISTS, "exists already. Set overwrite to true or choose another path."),
    errno.EXDEV: _OUTSIDE,
    errno.ELOOP: _OUTSIDE,
    errno.EISDIR: (ErrorKind.INVALID_INPUT, "is a folder. Name a file."),
    errno.ENOTDIR: (
        ErrorKind.INVALID_INPUT,
        "is no folder, or a part of its path is a file. Name a folder, or choose a path beneath one.",
    ),
    errno.ENOTEMPTY: (ErrorKind.INVALID_INPUT, "is a folder that is not empty. Empty it first or choose another path."),
    errno.EINVAL: (ErrorKind.INVALID_INPUT, "cannot take this operation, such as a folder moved into itself."),
    errno.ENAMETOOLONG: (ErrorKind.INVALID_INPUT, "is too long. Use shorter names."),
    errno.ENXIO: _SPECIAL,
    errno.ENODEV: _SPECIAL,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.EAGAIN: _BUSY,
    errno.EBUSY: _BUSY,
    errno.ETXTBSY: _BUSY,
    errno.EMFILE: (ErrorKind.IO_ERROR, "could not be opened: too many files are open. Try again."),
    errno.ENFILE: (ErrorKind.IO_ERROR, "could not be opened: too many files are open. Try again."),
}
_OTHERWISE = (ErrorKind.IO_ERROR, "could not be read or written. Try again or use another path.")
_PASSING = frozenset({errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EMFILE, errno.ENFILE})


def failure_of(error: OSError, path: str) -> ToolFailure:
    """What the failed operation on `path` (relative to the workspace) means to a caller."""
    code = error.errno or 0
    kind, sentence = _TOLD.get(code, _OTHERWISE)
    shown = path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}…"
    message = f'"{shown}" {sentence}'
    return refuse(kind, message, retryable=code in _PASSING, path=shown, errno=errno.errorcode.get(code, str(code)))


@contextmanager
def telling(path: str) -> Iterator[None]:
    """Whatever OSError the body raises leaves as the ToolFailure about `path`."""
    try:
        yield
    except OSError as error:
        raise failure_of(error, path) from error
