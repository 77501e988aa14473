"""What the core/fs.* tools share: how arguments are described to a model, and two small judgements."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.constraints import Sandbox
from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.guards.paths import PATH_BYTES

FilePath = Annotated[
    str,
    Meta(description="File, relative to the workspace, such as notes/today.md.", min_length=1, max_length=PATH_BYTES),
]
FolderPath = Annotated[
    str,
    Meta(description='Folder, relative to the workspace; "." is the workspace.', min_length=1, max_length=PATH_BYTES),
]
AnyPath = Annotated[
    str, Meta(description="File or folder, relative to the workspace.", min_length=1, max_length=PATH_BYTES)
]
Overwrite = Annotated[bool, Meta(description="Replace a file that stands there; otherwise ALREADY_EXISTS.")]
Encoding = Annotated[str, Meta(description="Text encoding, such as utf-8 or gb18030.", min_length=1, max_length=40)]
Sha256 = Annotated[str, Meta(description="SHA-256 of the file's content, hex.")]

_EARLIEST_S = -62_135_596_800.0
_LATEST_S = 253_402_300_799.0


def iso_time(unix_s: float) -> str:
    """ISO 8601 in UTC to the millisecond; times beyond the years 1 to 9999 are told as the nearest."""
    bounded_s = min(max(unix_s, _EARLIEST_S), _LATEST_S)
    return datetime.fromtimestamp(bounded_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def judge_overwrite(overwrite: bool, sandbox: Sandbox) -> None:
    """Raises ToolFailure POLICY_DENIED where replacing files is not granted."""
    if overwrite and not sandbox.may_overwrite:
        message = "Policy does not allow replacing files here. Write to a new path with overwrite false."
        raise refuse(ErrorKind.POLICY_DENIED, message)


def judge_size(size_bytes: int, limit_bytes: int, what: str) -> None:
    """Raises ToolFailure FILE_TOO_LARGE."""
    if size_bytes > limit_bytes:
        message = f"{what} is {size_bytes} bytes; the limit is {limit_bytes}. Work with a smaller part."
        raise refuse(ErrorKind.FILE_TOO_LARGE, message, size_bytes=size_bytes, max_bytes=limit_bytes)
