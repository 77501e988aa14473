"""Where a blob lies in a bucket, and what a caller is told when the bucket says no."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from toolhub_service.domain.errors import ErrorKind, refuse


def key_of(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:]}"


@contextmanager
def telling() -> Iterator[None]:
    """What obstore raises leaves as a ToolFailure without a word of it: its texts hold URLs."""
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        message = (
            "The hub may not use its bucket for artifacts. An operator must check its credential and rights there."
        )
        raise refuse(ErrorKind.IO_ERROR, message) from error
    except (BaseError, OSError) as error:
        message = "The hub's bucket for artifacts does not answer as it should. Try again in a moment."
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retry_after_s=2.0) from error
