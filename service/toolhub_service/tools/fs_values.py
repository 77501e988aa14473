"""What the core/fs.* tools share: how arguments are described to a model, and two small judgements."""

from __future__ import annotations

import errno
import posixpath
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.guards.paths import PATH_BYTES, judge_path
from toolhub_service.tools.files import failure_of
from toolhub_service.tools.workspace import Status, Workspace

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


# What a change of files would do now, told in plans; what would fail, fails with the words of the change itself.


def standing(workspace: Workspace, path: str) -> Status | None:
    """What stands at the path; None when nothing does. Raises ToolFailure for a path that cannot be looked at."""
    try:
        return workspace.stat(path)
    except ToolFailure as failure:
        if failure.error.kind is ErrorKind.NOT_FOUND:
            return None
        raise


def target(workspace: Workspace, path: str, sandbox: Sandbox, *, overwrite: bool, mkdirp: bool = True) -> str:
    """How a file that would be put there is told: as a new one, or as one that replaces another.

    Raises ToolFailure ALREADY_EXISTS, INVALID_INPUT for a folder, NOT_FOUND when the folder is missing and not made.
    """
    judge_overwrite(overwrite, sandbox)
    relative = judge_path(path)
    if not mkdirp:
        workspace.stat(posixpath.dirname(relative) or ".")
    found = standing(workspace, relative)
    if found is None:
        return f'the new file "{relative}"'
    if not overwrite:
        raise failure_of(FileExistsError(errno.EEXIST, ""), relative)
    if found.type == "dir":
        raise failure_of(IsADirectoryError(errno.EISDIR, ""), relative)
    return f'"{relative}", replacing the {"link" if found.type == "link" else f"{found.size_bytes:,} bytes"} there'
