"""What a program has started outside of its own group: found by its parents, and ended before they are gone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_ROUNDS_MAX = 100  # What is killed may have started another meanwhile


def kill_strays(root: int) -> None:
    """SIGKILL to all that the program `root`, which leads a group, has started and that leads a session or group of
    its own.

    Each process is stopped before its children are read, so that none is started meanwhile; the program's group goes on
    afterwards. A child of a stopped parent keeps its number until the parent reaps it, so that no other is hit.
    """
    found: set[int] = set()
    fresh = {root}
    while fresh:
        for pid in fresh:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        found |= fresh
        fresh = {below for pid in found for below in _children(pid)} - found
    for pid in found - {root}:
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != root:
                os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGCONT)


def kill_marked(folder: str) -> None:
    """SIGKILL to every process that works in a folder, or was given its name in its environment: what a run of that
    folder has left behind where no namespace holds its processes together."""
    mark, own = os.fsencode(folder), os.getpid()
    for _ in range(_ROUNDS_MAX):
        found = [pid for pid in _processes() if pid != own and _is_marked(pid, folder, mark)]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names are all that is wanted


def _is_marked(pid: int, folder: str, mark: bytes) -> bool:
    """Not of one that has ended and was not yet reaped, which has neither."""
    with suppress(OSError):
        if mark in Path(f"/proc/{pid}/environ").read_bytes():
            return True
        return str(Path(f"/proc/{pid}/cwd").readlink()).startswith(folder)
    return False


def _children(pid: int) -> list[int]:
    """Empty where the system does not tell."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is wanted
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found
