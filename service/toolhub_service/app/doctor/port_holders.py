"""Which processes of this machine listen on a port (proc(5): net/tcp, and the links below a process's fd)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_LISTENS: Final = "0A"
"""The state TCP_LISTEN in net/tcp."""
_COMMAND_CHARS: Final = 120


class Holder(NamedTuple):
    pid: int
    command: str
    """Its command line, cut to 120 characters; its name where that is empty."""


def holders_of(port: int) -> list[Holder]:
    """Return the processes that listen on a TCP port, as far as this user may see them."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    return [Holder(pid, _command(pid)) for pid in _pids() if sockets.intersection(_open_by(pid))] if sockets else []


def have_open(holders: Collection[Holder], files: Collection[Path]) -> bool:
    """Return whether one of the processes has one of the files open, be it removed since."""
    paths = [str(file.resolve()) for file in files]
    wanted = {*paths, *(f"{path} (deleted)" for path in paths)}
    return any(wanted.intersection(_open_by(holder.pid)) for holder in holders)


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            for line in Path("/proc/net", name).read_text("ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            yield int(entry.name)


def _open_by(pid: int) -> set[str]:
    """Return what the process's descriptors lead to; nothing of another user's process."""
    found: set[str] = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(str(entry.readlink()))
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return (words or Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip())[:_COMMAND_CHARS]
    return "a process that has just ended"
