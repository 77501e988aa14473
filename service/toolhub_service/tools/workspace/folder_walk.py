"""A bounded walk through a folder, sorted, links never entered.

It is depth first, with the names to visit on a stack. Each folder is opened beneath the workspace, read and closed
before its first entry is yielded, so an abandoned walk holds no descriptor.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import msgspec

from toolhub_service.aio.threads import raise_if_cancelled
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.tools.workspace.atomic_file import TEMPORARY_PREFIX
from toolhub_service.tools.workspace.disk_errors import as_tool_failures
from toolhub_service.tools.workspace.workspace import FileType, Status, Workspace, status_of

MAX_DEPTH = 64
MAX_VISITED = 100_000


class Entry(msgspec.Struct, frozen=True):
    path: str
    """Relative to the workspace."""
    inner_path: str
    """Relative to the walked folder."""
    type: FileType
    depth: int
    """1 for entries directly in the walked folder."""
    status: Status | None
    """Only when the walk was asked for it."""


class FolderWalk:
    """Iterate over it once; then `truncated` is whether something may be missing.

    It is true when a limit was reached or an inner folder may not be read; one that vanished or was replaced does not
    count. Opening the walked folder itself must succeed.
    """

    def __init__(
        self,
        workspace: Workspace,
        path: str,
        *,
        stop: threading.Event,
        max_depth: int = MAX_DEPTH,
        max_visited: int = MAX_VISITED,
        include_hidden: bool = False,
        with_status: bool = False,
    ) -> None:
        self.truncated = False
        self._workspace = workspace
        self._path = path
        self._inner_from = 0 if path == "." else len(path) + 1
        self._stop = stop
        self._max_depth = max_depth
        self._budget = max_visited
        self._include_hidden = include_hidden
        self._with_status = with_status

    def __iter__(self) -> Iterator[Entry]:
        """Raises ToolFailure NOT_FOUND, INVALID_INPUT, PATH_OUTSIDE_SANDBOX for the folder itself; CANCELLED."""
        pending = self._list_folder(self._path, 1)
        while pending:
            entry = pending.pop()
            yield entry
            if entry.type == "dir" and entry.depth < self._max_depth:
                pending.extend(self._read_inner(entry))
            # Reaching the caller's own depth does not count; reaching the hub's limit does.
            elif entry.type == "dir" and self._max_depth == MAX_DEPTH:
                self.truncated = True

    def _read_inner(self, entry: Entry) -> list[Entry]:
        try:
            return self._list_folder(entry.path, entry.depth + 1)
        except ToolFailure as failure:
            if failure.error.kind is ErrorKind.CANCELLED:
                raise
            self.truncated |= failure.error.kind is ErrorKind.IO_ERROR
            return []

    def _list_folder(self, path: str, depth: int) -> list[Entry]:
        """Return the folder's entries, last name first."""
        raise_if_cancelled(self._stop)
        with as_tool_failures(path), self._workspace.open_folder(path) as descriptor, os.scandir(descriptor) as scan:
            prefix = "" if path == "." else f"{path}/"
            wanted = (found for found in scan if self._is_wanted(found.name))
            read = list(islice((self._entry(prefix, found, depth) for found in wanted), self._budget + 1))
        if len(read) > self._budget:
            self.truncated = True
            read.pop()
        self._budget -= len(read)
        return sorted(read, key=lambda entry: entry.path, reverse=True)

    def _is_wanted(self, name: str) -> bool:
        return not name.startswith(".") or (self._include_hidden and not name.startswith(TEMPORARY_PREFIX))

    def _entry(self, prefix: str, found: os.DirEntry[str], depth: int) -> Entry:
        status = None
        if self._with_status:
            # Missing: deleted since the folder was read.
            with suppress(FileNotFoundError):
                status = status_of(found.stat(follow_symlinks=False))
        # Bytes that are not UTF-8 become U+FFFD: such a file is listed, but cannot be named in a call.
        path = prefix + found.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return Entry(path, path[self._inner_from :], _type_of(found), depth, status)


def _type_of(found: os.DirEntry[str]) -> FileType:
    if found.is_symlink():
        return "link"
    if found.is_dir(follow_symlinks=False):
        return "dir"
    return "file" if found.is_file(follow_symlinks=False) else "other"
