"""Ends processes that a program has started outside of its own group.

They are found by their parents, while those live (`kill_strays`), or by an environment variable that the program was
started with and that what it starts inherits, a daemon with a session of its own included (`kill_marked`; the way of
Jenkins' ProcessTreeKiller). A program that starts one with a cleaned environment and ends before it escapes both.

The standard library only: adapters/mcp/transports/reaper.py uses this without the hub.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROUNDS_MAX: Final = 20  # of a search, for processes that start others while they are searched


def kill_strays(root: int) -> None:
    """Send SIGKILL to all processes started by the program `root` that lead their own session or group.

    Each process is stopped before its children are read, so that none is started meanwhile; the program's group goes on
    afterwards. A child of a stopped parent keeps its number until the parent reaps it, so that no other is hit.
    """
    # Below: a process that is gone needs no signal, and one of another user was not started by this program.
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


def kill_marked(mark: str) -> None:
    """Send SIGKILL to all processes whose environment has a variable that begins with `mark` (`NAME=value…`), and to
    all that those have started.

    Reads the environment of each process of this user, some 10 µs each: call it in a thread.
    """
    wanted = b"\0" + mark.encode()
    for _ in range(_ROUNDS_MAX):
        marked = [pid for pid in _processes() if wanted in b"\0" + _environment(pid)]
        if not marked:
            return
        for pid in marked:
            kill_strays(pid)
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)


def _processes() -> list[int]:
    """Return the processes of the machine but this one; empty where the system has no /proc."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208
    return []


def _environment(pid: int) -> bytes:
    """Return the environment that a process was started with; empty for one that has ended or is another user's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _children(pid: int) -> list[int]:
    """Return the children; empty when the system does not report them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is wanted
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found
