"""What the stores of bytes have in common: bounds, and what a caller is told when one says no."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse

CHUNK_BYTES: Final = 256 * 1024
"""Largest chunk that a reading yields."""
SETTLE_S: Final = 300.0
"""How long bytes are safe from removal after they were stored: far longer than it takes to record them."""

_FULL = (
    "The hub's place for artifacts is full. Ask an operator to make room there, then try again; write less until then."
)
_DENIED = "The hub may not use its place for artifacts. An operator must check its owner and permissions."
_BUSY = "The hub has too many files open to reach its artifacts. Try again in a moment."
_OTHERWISE = "The hub could not read or write its artifacts. Try again; an operator finds the cause by the errno."
_TOLD = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.ELOOP: _DENIED,
    errno.ENOTDIR: _DENIED,
    errno.EMFILE: _BUSY,
    errno.ENFILE: _BUSY,
}
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN})


def gone() -> ToolFailure:
    """There are no bytes under that digest."""
    return refuse(ErrorKind.NOT_FOUND, "The artifact's bytes are gone. Make it again, or ask its writer for it.")


@contextmanager
def telling() -> Iterator[None]:
    """Whatever OSError the body raises leaves as a ToolFailure IO_ERROR that names no path."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        name = errno.errorcode.get(code, str(code))
        raise refuse(ErrorKind.IO_ERROR, _TOLD.get(code, _OTHERWISE), retryable=code in _PASSING, errno=name) from error
