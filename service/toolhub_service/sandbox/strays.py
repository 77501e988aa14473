"""Ends processes that a program has started outside of its own group, found by their parents while those live."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


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


def _children(pid: int) -> list[int]:
    """Return the children; empty when the system does not report them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is wanted
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found
