"""A call's folder: every path is opened beneath it, whatever other processes do meanwhile.

There is no gap between check and use: a file is checked by the descriptor that is read (fstat), and each change of a
folder (create, rename, unlink, mkdir) names one component relative to a descriptor that was opened beneath. Sources:
openat2(2); CVE-2025-53109 and CVE-2025-53110 (prefix and link escapes of a file server).
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.storage import disk_full
from toolhub_service.guards.paths import check_path
from toolhub_service.tools.disk_space.workspace_usage import BLOCK_BYTES, WorkspaceAccount, charge_of
from toolhub_service.tools.workspace.atomic_file import AtomicFile
from toolhub_service.tools.workspace.disk_errors import DISK_FULL, as_tool_failures, failure_of
from toolhub_service.tools.workspace.entries import Counted, count_entry, remove_entry
from toolhub_service.tools.workspace.entry_state import ABSENT, entry_state
from toolhub_service.tools.workspace.files import SourceFile
from toolhub_service.tools.workspace.opening import O_FOLDER, O_LISTED, O_PATH_ONLY, O_READ, Opening, best_opening
from toolhub_service.tools.workspace.rename import rename

FileType: TypeAlias = Literal["file", "dir", "link", "other"]


class Status(msgspec.Struct, frozen=True):
    """The entry at a path; links are not followed."""

    type: FileType
    size_bytes: int
    modified_at_s: float
    """Seconds since 1970."""
    identity: tuple[int, int]
    """Device and inode."""


class Workspace:
    """A folder and all beneath it. Paths are relative to it and pass `check_path`; every method raises ToolFailure."""

    def __init__(
        self,
        root: str,
        *folders: str,
        opening: Opening | None = None,
        expected: Mapping[str, str] | None = None,
        account: WorkspaceAccount | None = None,
    ) -> None:
        """Open `root`/`folders…`, created when missing; `folders` are names from `workspace_folder_name`. `expected`:
        by path the `state` that was shown; the first change of such a path is refused as PLAN_REQUIRED in any other
        state. `account`: counts what is written, and refuses what exceeds it; None: nothing does. Raises ToolFailure
        IO_ERROR when it cannot be opened, BUDGET_EXCEEDED when it would be new and nothing may be stored."""
        self._opening = opening or best_opening()
        self._root = -1
        self._expected = dict(expected or {})
        self.account = account
        self.folder = str(Path(root, *folders))
        """Absolute path; only for a sandbox's bind mount."""
        try:
            self._root = self._open_root(root, folders)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_full(errno=errno.errorcode[error.errno]) from error
            message = "The workspace cannot be opened. An operator must check the workspace root."
            raise refuse(ErrorKind.IO_ERROR, message, errno=errno.errorcode.get(error.errno or 0, "")) from error

    def _open_root(self, root: str, folders: tuple[str, ...]) -> int:
        try:
            descriptor = os.open(root, O_FOLDER)
        except FileNotFoundError:
            Path(root).mkdir(0o700, parents=True, exist_ok=True)
            descriptor = os.open(root, O_FOLDER)
        for name in folders:
            try:
                inner = self._open_or_make(descriptor, name)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def _open_or_make(self, folder: int, name: str) -> int:
        try:
            return self._opening(folder, name, O_FOLDER | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Two calls of one caller may create it at the same time.
            self._make_folder(folder, name)
            return self._opening(folder, name, O_FOLDER | os.O_NOFOLLOW)

    def _make_folder(self, folder: int, name: str) -> None:
        """Make a folder unless the name is taken, and count it. Raises OSError, and ToolFailure as `_grow`."""
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            return
        self._grow(BLOCK_BYTES)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except OSError as error:
            self._shrink(BLOCK_BYTES)
            if not isinstance(error, FileExistsError):
                raise

    def _grow(self, size_bytes: int) -> None:
        """Raises ToolFailure BUDGET_EXCEEDED."""
        if self.account is not None:
            self.account.grow(size_bytes)

    def _shrink(self, size_bytes: int) -> None:
        if self.account is not None:
            self.account.shrink(size_bytes)

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    # Reading

    def stat(self, path: str) -> Status:
        """Return the entry's status; a link is reported as a link. Raises NOT_FOUND."""
        relative = check_path(path)
        with as_tool_failures(relative):
            descriptor = self._opening(self._root, relative, O_PATH_ONLY | os.O_NOFOLLOW)
            try:
                return status_of(os.fstat(descriptor))
            finally:
                os.close(descriptor)

    def open_read(self, path: str) -> SourceFile:
        """Open a regular file, which the caller must close. Raises NOT_FOUND, INVALID_INPUT for anything else."""
        relative = check_path(path)
        with as_tool_failures(relative):
            return SourceFile(self._opening(self._root, relative, O_READ), relative)

    def open_to_edit(self, path: str) -> SourceFile:
        """Open as `open_read` does, locked against other edits until it is closed, here and in other processes
        (flock(2)).

        Raises IO_ERROR, retryable, when another edit has locked the file or has just replaced it; refuses a link.
        """
        relative = check_path(path)
        with as_tool_failures(relative):
            file = SourceFile(self._opening(self._root, relative, O_READ | os.O_NOFOLLOW), relative)
        with ExitStack() as on_refusal:
            on_refusal.push(file)
            file.lock()
            # The previous owner of the lock has replaced the file: this one no longer has a name.
            if self.stat(relative).identity != file.identity:
                raise failure_of(OSError(errno.EAGAIN, ""), relative)
            on_refusal.pop_all()
        return file

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """Yield a folder's descriptor, to list it or to use it as a child's working directory."""
        relative = check_path(path)
        with as_tool_failures(relative):
            descriptor = self._opening(self._root, relative, O_LISTED)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # Changing

    @contextmanager
    def write_atomic(
        self,
        path: str,
        *,
        overwrite: bool = False,
        mkdirp: bool = True,
        max_bytes: int | None = None,
        mode: int | None = None,
    ) -> Iterator[AtomicFile]:
        """Yield a draft that becomes the file when the body succeeds, and is removed otherwise.

        `mode`: permission bits; None keeps those of a replaced file (0600 for a new one). Raises ALREADY_EXISTS unless
        `overwrite`, PATH_OUTSIDE_SANDBOX for a file with more than one hard link.
        """
        relative = check_path(path)
        with as_tool_failures(relative):
            folder, name = self._open_parent(relative, mkdirp=mkdirp)
            try:
                kept = _check_replacing(folder, name, overwrite)
                draft = AtomicFile(
                    folder,
                    name,
                    relative,
                    mode=kept.mode if mode is None else mode,
                    max_bytes=max_bytes,
                    account=self.account,
                    replaced_bytes=kept.charged_bytes,
                )
            except BaseException:
                os.close(folder)
                raise
        try:
            yield draft
            check = partial(self._check_state, relative) if relative in self._expected else None
            draft.commit(overwrite=overwrite, check=check)
        finally:
            draft.close()

    def rename(
        self,
        source: str,
        destination: str,
        *,
        overwrite: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Move a file or a folder in one step."""
        old = check_path(source)
        new = check_path(destination)
        with as_tool_failures(old):
            source_folder, source_name = self._open_parent(old, mkdirp=False)
        try:
            with as_tool_failures(old):
                # Before the destination's folders are created: moving a missing file must leave nothing behind.
                os.stat(source_name, dir_fd=source_folder, follow_symlinks=False)
            with as_tool_failures(new), self._parent(new, mkdirp=True) as (folder, name):
                replaced = _check_replacing(folder, name, overwrite)
                if self._expected:
                    # Both right before the rename: the state that a plan showed is compared as late as possible.
                    self._check_state(new, folder, name, stop)
                    self._check_state(old, source_folder, source_name, stop)
                rename(source_folder, source_name, folder, name, overwrite=overwrite)
            self._shrink(replaced.charged_bytes)
        finally:
            os.close(source_folder)

    def remove(self, path: str, *, recursive: bool = False, stop: threading.Event | None = None) -> Counted:
        """Delete a file, an empty folder, or with `recursive` a folder and its contents; of a link only the link
        itself."""
        relative = check_path(path)
        with as_tool_failures(relative), self._parent(relative) as (folder, name):
            if self._expected:
                self._check_state(relative, folder, name, stop)
            removed = remove_entry(folder, name, recursive=recursive, stop=stop)
        self._shrink(removed.charged_bytes)
        return removed

    def count(self, path: str) -> Counted:
        """Return what `remove` would delete. Raises NOT_FOUND."""
        relative = check_path(path)
        with as_tool_failures(relative), self._parent(relative) as (folder, name):
            return count_entry(folder, name)

    @property
    def expects(self) -> bool:
        """Return whether changes compare states first, which takes time for a folder."""
        return bool(self._expected)

    def state(self, path: str, stop: threading.Event | None = None) -> str:
        """Return the entry's state as one digest (`entry_state`). Raises CANCELLED soon after `stop` is set."""
        relative = check_path(path)
        try:
            with self._parent(relative) as (folder, name):
                return entry_state(folder, name, stop)
        except FileNotFoundError:
            return ABSENT
        except OSError as error:
            return f"not to be looked at: {errno.errorcode.get(error.errno or 0, '')}"

    def confirm(self, path: str, stop: threading.Event | None = None) -> None:
        """Call this after the content of a path was read and before it is used: raises PLAN_REQUIRED when it differs
        from what a plan or an approval has shown."""
        relative = check_path(path)
        if relative in self._expected:
            with as_tool_failures(relative), self._parent(relative) as (folder, name):
                self._check_state(relative, folder, name, stop)

    # Internals

    def _check_state(self, relative: str, folder: int, name: str, stop: threading.Event | None = None) -> None:
        """Check the state right before the change, in the folder of the change. The change itself makes another state,
        which a second change in the same call may replace."""
        # Compared once: later differences are due to the call's own changes.
        shown = self._expected.pop(relative, None)
        if shown is not None and entry_state(folder, name, stop) != shown:
            message = (
                f"{relative} has changed since the dry run, so nothing was done. Invoke with mode DRY_RUN again, "
                "check the plan, then invoke with its plan_digest."
            )
            raise refuse(ErrorKind.PLAN_REQUIRED, message, differs=["state"])

    @contextmanager
    def _parent(self, relative: str, *, mkdirp: bool = False) -> Iterator[tuple[int, str]]:
        folder, name = self._open_parent(relative, mkdirp=mkdirp)
        try:
            yield folder, name
        finally:
            os.close(folder)

    def _open_parent(self, relative: str, *, mkdirp: bool) -> tuple[int, str]:
        if relative == ".":
            raise refuse(ErrorKind.INVALID_INPUT, "This is the workspace itself. Name a file or folder inside it.")
        above, _, name = relative.rpartition("/")
        opened = self._open_new(above or ".") if mkdirp else self._opening(self._root, above or ".", O_FOLDER)
        return opened, name

    def _open_new(self, relative: str) -> int:
        """Return a descriptor of the folder; missing folders are created, outermost first."""
        try:
            return self._opening(self._root, relative, O_FOLDER)
        except FileNotFoundError:
            pass  # rare: nearly always it exists, and one system call was enough
        names = relative.split("/")
        descriptor = self._opening(self._root, ".", O_FOLDER)
        for depth in range(1, len(names) + 1):
            try:
                self._make_folder(descriptor, names[depth - 1])  # opened below, which refuses anything but a folder
                # From the root again, not from the parent, which could have been moved out meanwhile.
                inner = self._opening(self._root, "/".join(names[:depth]), O_FOLDER)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor


def status_of(status: os.stat_result) -> Status:
    return Status(
        type=_type_of(status.st_mode),
        size_bytes=status.st_size,
        modified_at_s=status.st_mtime,
        identity=(status.st_dev, status.st_ino),
    )


def _type_of(mode: int) -> FileType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


class _Replaced(NamedTuple):
    """What a new file takes over from the one that it replaces."""

    mode: int = 0o600
    """Its permission bits."""
    charged_bytes: int = 0
    """What the replaced file counts as; 0: there is none."""


def _check_replacing(folder: int, name: str, overwrite: bool) -> _Replaced:
    """Return what the new file replaces.

    It refuses early what must not be replaced, for a clear message and to protect the other name of a hard-linked file.
    Safety does not depend on it: a rename replaces the file under the name and writes into none, and without
    `overwrite` the kernel refuses a name that was taken meanwhile.
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return _Replaced()
    if not overwrite:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    # The link itself is replaced: writing through it would change its target.
    if stat.S_ISLNK(status.st_mode):
        return _Replaced(charged_bytes=charge_of(status.st_size))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    if status.st_nlink > 1:
        message = "The file has a second name (hard link) that may lie outside the workspace. Write to a new path."
        raise refuse(ErrorKind.PATH_OUTSIDE_SANDBOX, message)
    return _Replaced(status.st_mode & 0o777, charge_of(status.st_size))
