"""Hides the hub's own folders and files from programs that otherwise see all of the machine.

With bubblewrap, if it works, empty mounts cover them and everything else is unchanged. Otherwise with Landlock, which
can only allow: it allows everything beside them and beside their parent folders at the start of the program, which so
can make no new entries in the parent folders. Both apply to all child processes and to every path.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.confinement import PROCESSES, PROGRAM_FOLDERS, succeeds
from toolhub_service.sandbox.kernel_walls import READ_FOLDERS, landlock_abi, restrict_files
from toolhub_service.sandbox.request import Level

# Root's capabilities: with these it could remove the cover, or read the hub and the disk around it.
# That of performance monitoring reads the memory map and environment of every process since Linux 6.13 (proc(5)).
_DROPPED = ("sys_admin", "sys_ptrace", "perfmon", "sys_rawio", "sys_module", "mknod")
# Root needs none of these: they reach the disk itself, beneath all files.
_OF_PROCESSORS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
_MOUNTINFO = "/proc/self/mountinfo"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - libraries of several processes need the machine's
_MEMORY = ("/dev/mem", "/dev/kmem", "/dev/port")


class CannotHide(OSError):
    """Neither bubblewrap nor Landlock works here."""


@dataclass(slots=True)
class HiddenPaths:
    """The paths hidden from programs."""

    paths: Sequence[str]
    """Absolute folders and files; missing ones are ignored."""
    bubblewrap: str
    """Absolute path of bubblewrap; empty to do without."""
    landlock: bool = True
    _works: bool | None = None

    async def level(self) -> Level | None:
        """Return the best level that works here; None when none does."""
        if self._works is None:
            probe = Program(self._cover_paths(_there(self.paths), ("/bin/true",)), {}, "/")
            self._works = bool(self.bubblewrap) and await succeeds(probe)
        if self._works:
            return "bubblewrap"
        return "landlock" if self.landlock and landlock_abi() else None

    async def hidden_from(self, program: Program) -> Program:
        """Return the program without access to them. Raises CannotHide."""
        level = await self.level()
        hidden = _there(self.paths)
        if level == "bubblewrap":
            return replace(program, argv=self._cover_paths(hidden, program.argv))
        if level == "landlock":
            argv = (*_without_capabilities(), *program.argv)
            return replace(program, argv=argv, confine=partial(_allow_all_but, (*hidden, *_devices_of_root())))
        raise CannotHide

    def _cover_paths(self, hidden: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
        dropped = (word for name in _DROPPED for word in ("--cap-drop", f"CAP_{name.upper()}"))
        devices = () if os.geteuid() else tuple(_own_devices())
        covers = (word for path in hidden for word in _cover(path))
        return (self.bubblewrap, "--die-with-parent", *dropped, "--dev-bind", "/", "/", *devices, *covers, "--", *argv)


def _there(paths: Sequence[str]) -> list[str]:
    """Return the outermost that exist."""
    found = [path for path in with_other_names(paths) if Path(path).exists()]
    return [path for path in found if not any(path != other and lies_in(path, other) for other in found)]


def with_other_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths without links, and other mounts of the same folders and files (proc_pid_mountinfo(5))."""
    resolved = dict.fromkeys(os.path.realpath(path) for path in paths)
    mounts = tuple(_mounts())
    others = (other for path in resolved for other in _other_names(path, mounts))
    return tuple(dict.fromkeys((*resolved, *others)))


def lies_in(path: str, folder: str) -> bool:
    """Return whether it is the folder or within it; both without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mounts() -> Iterator[tuple[str, str, str]]:
    """Yield the device, its mounted folder, and the mount point of each mount, in the order in which they were
    made."""
    try:
        lines = Path(_MOUNTINFO).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, device, root, place, *_ = line.split(" ")
        yield device, _unescape_mount_path(root), _unescape_mount_path(place)


def _unescape_mount_path(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _other_names(path: str, mounts: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    around = [mount for mount in mounts if lies_in(path, mount[2])]
    if not around:
        return
    device, root, place = max(around, key=lambda mount: len(mount[2]))
    on_device = _join_path(root, os.path.relpath(path, place))
    for other, other_root, other_place in mounts:
        if other != device or other_place == place:
            continue
        if lies_in(on_device, other_root):
            yield _join_path(other_place, os.path.relpath(on_device, other_root))
        elif lies_in(other_root, on_device):
            yield other_place


def _join_path(folder: str, below: str) -> str:
    return folder if below == "." else f"{folder.rstrip('/')}/{below}"


def _cover(path: str) -> tuple[str, ...]:
    if Path(path).is_dir():
        return ("--tmpfs", path, "--remount-ro", path)
    return ("--ro-bind", "/dev/null", path)


def _own_devices() -> Iterator[str]:
    """Yield mounts of a /dev without disks and memory, and of kernel settings that cannot be written."""
    yield from (*PROCESSES[2:], "--dev", "/dev", "--bind-try", _SHARED_MEMORY, _SHARED_MEMORY)
    for pattern in _OF_PROCESSORS:
        for path in sorted(Path("/").glob(pattern.lstrip("/"))):
            yield from ("--dev-bind-try", str(path), str(path))


def _devices_of_root() -> Iterator[str]:
    if os.geteuid() == 0:
        yield from _MEMORY
        with os.scandir("/dev") as entries:
            yield from (entry.path for entry in entries if stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode))


def _without_capabilities() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv", path=PROGRAM_FOLDERS) if os.geteuid() == 0 else None
    if setpriv is None:
        return ()
    dropped = ",".join(f"-{name}" for name in _DROPPED)
    return (setpriv, f"--inh-caps={dropped}", f"--bounding-set={dropped}", "--")


def _allow_all_but(hidden: Sequence[str]) -> None:
    """Allow this thread everything except these, and listing the entries of the folders above them."""
    above = {str(folder) for path in hidden for folder in Path(path).parents}
    beside: list[str] = []
    for folder in above:
        if any(lies_in(folder, path) for path in hidden) or not Path(folder).is_dir():
            continue
        with os.scandir(folder) as entries:
            beside += [
                entry.path
                for entry in entries
                if entry.path not in above and entry.path not in hidden and not entry.is_symlink()
            ]
    restrict_files([("/", READ_FOLDERS)], beside, tcp=True)
