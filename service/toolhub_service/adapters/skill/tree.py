"""The files of a skill's folder: a bounded walk, their digests, and reads and copies that match these digests.

A skill is untrusted. So a walk opens each name below the descriptor of its folder and never follows a link; refuses
anything but files, folders and links that stay within the tree; and stops at its limits. Later reads and copies are
hashed again: bytes that have changed since raise `TreeChanged`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from toolhub_service.guards.foreign_text import escape_hidden, is_hidden

LEFT_OUT: Final = frozenset({".git", ".DS_Store", "__pycache__"})
"""Names that are not part of a skill, at any depth: neither digested nor read nor copied."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: a file may have become a FIFO since it was checked.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES: Final = 256 * 1024
_LINKS_MAX: Final = 16  # in one chain
_SHOWN_CHARS: Final = 120


class TreeRefused(ValueError):
    """The folder cannot be a skill's; the message names the entry below the folder and says why."""


class TreeChanged(ValueError):
    """A file has changed since the tree was digested; the message names it."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of one skill. The largest of a public set of 17 has 83 files."""

    files_max: int = 1_000
    """Files, links and folders."""
    total_max_bytes: int = 64 * 1024 * 1024
    file_max_bytes: int = 32 * 1024 * 1024
    depth_max: int = 12
    """Nesting depth of folders, the skill's own not counted."""
    name_max_bytes: int = 200
    path_max_bytes: int = 1_000


LIMITS: Final = TreeLimits()


@dataclass(frozen=True, slots=True)
class TreeFile:
    path: str
    """Relative to the skill's folder, with `/` between names."""
    size_bytes: int
    sha256: str
    """Hex; for a link, of its target."""
    is_executable: bool = False
    link: str = ""
    """Target as it is written; empty: it is no link."""


@dataclass(frozen=True)
class Tree:
    """The contents of a folder when it was walked."""

    files: tuple[TreeFile, ...]
    """By path."""
    folders: tuple[str, ...] = ()
    """Paths of all folders below the skill's own, outer ones first."""

    @cached_property
    def digest(self) -> str:
        """Return the sha256 (hex) over path, kind, executable bit and digest of every file and link."""
        listed = [[file.path, "link" if file.link else "file", file.is_executable, file.sha256] for file in self.files]
        return hashlib.sha256(json.dumps(listed, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()

    @cached_property
    def by_path(self) -> Mapping[str, TreeFile]:
        return {file.path: file for file in self.files}

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def find(self, path: str) -> TreeFile | None:
        """Return the file at a path, through links within the tree; None when there is none, or it is a folder."""
        resolved = _resolve_links(path, self.by_path, frozenset(self.folders))
        return None if resolved is None else self.by_path.get(resolved)


def read_tree(folder: Path, limits: TreeLimits = LIMITS) -> Tree:
    """Digest everything in a folder, which itself may be reached through links.

    Blocks, so call it in a thread. Raises TreeRefused, and OSError where something cannot be read.
    """
    walk = _Walk(limits)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        walk.enter(descriptor, "", 0)
    finally:
        os.close(descriptor)
    tree = Tree(tuple(sorted(walk.files, key=lambda file: file.path)), tuple(sorted(walk.folders)))
    _check_links(tree)
    return tree


def read_file(folder: Path, file: TreeFile, max_bytes: int) -> bytes:
    """Return the whole bytes of a file of a tree. Raises TreeChanged when they have changed; ValueError when the file
    is larger than that or a link (see `Tree.find`)."""
    if file.link or file.size_bytes > max_bytes:
        raise ValueError(f"{show_path(file.path)} is a link, or has more than {max_bytes:,} bytes")
    with open_file(folder, file) as descriptor:
        data = b"".join(_chunks(descriptor, file.size_bytes))
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise _change_of_file(file)
    return data


def copy_tree(folder: Path, tree: Tree, target: Path) -> None:
    """Write the files of a tree, as they were digested, into `target`, which must not exist yet.

    The copy contains exactly the checked files, whatever happens to the folder meanwhile. Raises TreeChanged, OSError.
    """
    target.mkdir(mode=0o700)
    for name in tree.folders:
        (target / name).mkdir(mode=0o755)
    for file in tree.files:
        if file.link:
            (target / file.path).symlink_to(file.link)
        else:
            _copy(folder, file, target / file.path)
    target.chmod(0o755)


def stamp_of(folder: Path, limits: TreeLimits = LIMITS) -> str:
    """Return a stamp that changes when times or sizes of the folder's files do; reads no file. Empty: there is no
    folder."""
    found: list[str] = []
    waiting = [folder]
    while waiting and len(found) <= limits.files_max:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name in LEFT_OUT:
                        continue
                    status = entry.stat(follow_symlinks=False)
                    found.append(
                        f"{entry.path!r} {status.st_mode} {status.st_ino} {status.st_size} {status.st_ctime_ns}"
                    )
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(Path(entry.path))
                    if len(found) > limits.files_max:
                        break
        except OSError as failed:
            found.append(f"error {failed.errno}")
    return hashlib.sha256("\n".join(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()


def show_path(path: str) -> str:
    """Return a foreign path for a sentence: hidden characters escaped, truncated."""
    text = escape_hidden(path.encode("utf-8", "backslashreplace").decode())
    return f"`{text}`" if len(text) <= _SHOWN_CHARS else f"`{text[: _SHOWN_CHARS - 1]}…`"


@dataclass(slots=True)
class _Walk:
    """One walk, and the remainder of its limits."""

    limits: TreeLimits
    files: list[TreeFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    _entries: int = 0
    _bytes: int = 0

    def enter(self, descriptor: int, prefix: str, depth: int) -> None:
        """Walk the folder behind a descriptor. `prefix`: its path with a `/` at the end."""
        if depth > self.limits.depth_max:
            raise TreeRefused(f"{show_path(prefix)}: more than {self.limits.depth_max} folders within each other")
        for name in self._names(descriptor, prefix):
            path = prefix + name
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                self.files.append(_link(descriptor, name, path))
            elif stat.S_ISDIR(found.st_mode):
                self._enter_below(descriptor, name, path, depth)
            elif stat.S_ISREG(found.st_mode):
                self.files.append(self._digest_file(descriptor, name, path))
            else:
                raise TreeRefused(f"{show_path(path)}: neither a file nor a folder (a device, socket or pipe)")

    def _names(self, descriptor: int, prefix: str) -> list[str]:
        """Return the names in order, each counted as soon as it is seen: a folder may have millions."""
        names: list[str] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.name in LEFT_OUT:
                    continue
                self._entries += 1
                if self._entries > self.limits.files_max:
                    raise TreeRefused(f"more than {self.limits.files_max:,} files and folders")
                self._check_name(entry.name, prefix)
                names.append(entry.name)
        return sorted(names)

    def _check_name(self, name: str, prefix: str) -> None:
        try:
            sizes = len(name.encode()), len((prefix + name).encode())
        except UnicodeEncodeError:
            raise TreeRefused(f"{show_path(prefix + name)}: a name that is not UTF-8") from None
        if sizes[0] > self.limits.name_max_bytes or sizes[1] > self.limits.path_max_bytes:
            raise TreeRefused(
                f"{show_path(prefix + name)}: a name of more than {self.limits.name_max_bytes} bytes, or a path "
                f"of more than {self.limits.path_max_bytes:,}"
            )
        if "\\" in name or any(is_hidden(char) or char in "\n\t" for char in name):
            raise TreeRefused(f"{show_path(prefix + name)}: a name with a backslash or a hidden character")

    def _enter_below(self, descriptor: int, name: str, path: str, depth: int) -> None:
        self.folders.append(path)
        below = _open(name, _FOLDER, descriptor, path)
        try:
            self.enter(below, f"{path}/", depth + 1)
        finally:
            os.close(below)

    def _digest_file(self, descriptor: int, name: str, path: str) -> TreeFile:
        opened = _open(name, _FILE, descriptor, path)
        try:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise TreeRefused(f"{show_path(path)}: it became something else while it was read")
            limit = min(self.limits.file_max_bytes, self.limits.total_max_bytes - self._bytes)
            digest, size = hashlib.sha256(), 0
            for chunk in _chunks(opened, limit):
                digest.update(chunk)
                size += len(chunk)
            if size > limit:
                raise TreeRefused(
                    f"{show_path(path)}: a file of more than {self.limits.file_max_bytes:,} bytes, or files of more "
                    f"than {self.limits.total_max_bytes:,} together"
                )
        finally:
            os.close(opened)
        self._bytes += size
        return TreeFile(path, size, digest.hexdigest(), is_executable=bool(status.st_mode & 0o111))


def _open(name: str, flags: int, descriptor: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=descriptor)
    except OSError as failed:
        raise TreeRefused(f"{show_path(path)}: it cannot be opened: {os.strerror(failed.errno or 0)}") from None


def _link(descriptor: int, name: str, path: str) -> TreeFile:
    target = os.readlink(name, dir_fd=descriptor)
    data = target.encode("utf-8", "surrogateescape")
    return TreeFile(path, len(data), hashlib.sha256(data).hexdigest(), link=target)


def _chunks(descriptor: int, limit_bytes: int) -> Iterator[bytes]:
    """Yield at most one chunk more than `limit_bytes`: enough to detect that there is more."""
    read = 0
    while read <= limit_bytes and (chunk := os.read(descriptor, _CHUNK_BYTES)):
        read += len(chunk)
        yield chunk


def _check_links(tree: Tree) -> None:
    """Raises TreeRefused for a link whose target is not a file or folder of the tree."""
    folders = frozenset(tree.folders)
    for file in tree.files:
        end = _resolve_links(file.path, tree.by_path, folders) if file.link else file.path
        # A reader that followed a link to an enclosing folder would never end.
        if end is None or (file.link and f"{file.path}/".startswith(f"{end}/" if end else "")):
            raise TreeRefused(f"{show_path(file.path)}: a link that leads out of the skill, nowhere, or in a circle")


def _resolve_links(path: str, files: Mapping[str, TreeFile], folders: frozenset[str]) -> str | None:
    """Return the path of the file or folder that a path leads to, through links of the tree only; None: there
    is none."""
    names = [*reversed(path.split("/"))]
    at: list[str] = []
    links = 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not at:
                return None
            at.pop()
            continue
        here = "/".join((*at, name))
        found = files.get(here)
        if found is not None and found.link:
            links += 1
            if links > _LINKS_MAX or found.link.startswith("/"):
                return None
            names.extend(reversed(found.link.split("/")))
        elif here in folders or (found is not None and not names):
            at.append(name)
        else:
            return None
    return "/".join(at)


@contextmanager
def open_file(folder: Path, file: TreeFile) -> Iterator[int]:
    """Yield its descriptor, opened name by name, without links below the folder. Raises TreeChanged."""
    descriptor = _open_below(folder, file)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_below(folder: Path, file: TreeFile) -> int:
    *folders, name = file.path.split("/")
    held: list[int] = []
    try:
        held.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for each in folders:
            held.append(os.open(each, _FOLDER, dir_fd=held[-1]))
        held.append(os.open(name, _FILE, dir_fd=held[-1]))
        if stat.S_ISREG(os.fstat(held[-1]).st_mode):
            return held.pop()
    except OSError:
        pass  # it is gone, or a link replaced a folder: the file is not the listed one
    finally:
        for descriptor in held:
            os.close(descriptor)
    raise _change_of_file(file)


def _copy(folder: Path, file: TreeFile, target: Path) -> None:
    digest = hashlib.sha256()
    with open_file(folder, file) as descriptor, target.open("xb") as copied:
        for chunk in _chunks(descriptor, file.size_bytes):
            digest.update(chunk)
            copied.write(chunk)
        os.fchmod(copied.fileno(), 0o755 if file.is_executable else 0o644)
    if digest.hexdigest() != file.sha256:
        raise _change_of_file(file)


def _change_of_file(file: TreeFile) -> TreeChanged:
    return TreeChanged(f"{show_path(file.path)} is another file than the one that was digested")
