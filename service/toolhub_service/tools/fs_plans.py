"""What a change of files would do now, told in plans; what would fail, fails with the words of the change itself."""

from __future__ import annotations

import errno
import posixpath

from toolhub_service.domain.constraints import Sandbox
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.guards.paths import judge_path
from toolhub_service.tools.fs_values import judge_overwrite
from toolhub_service.tools.io_failures import failure_of
from toolhub_service.tools.workspace import Status, Workspace


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
