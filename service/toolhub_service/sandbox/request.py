"""What code that is not the hub's is given when it runs: what it sees, what it may write, and its limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import LEVELS, Level, Sandbox

__all__ = ["LEVELS", "Bounds", "Level", "SandboxRequest", "interpreter_reads", "too_weak", "wanted_level"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of resources (setrlimit(2)); each holds for one process but `processes`."""

    cpu_s: int = 30
    memory_bytes: int = 1024 * _MIB
    """Of address space, which some runtimes reserve without using it."""
    file_bytes: int = 100 * _MIB
    """The largest file; inside bubblewrap also the size of /tmp and of /dev/shm."""
    processes: int = 64
    """Threads count as well."""
    open_files: int = 256


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """One program to be confined. Paths are absolute and appear inside at their own place."""

    argv: Sequence[str]
    """`argv[0]` is the path of the program; it is made visible."""
    environment: Mapping[str, str]
    """All of it; nothing of the hub's is added."""
    folder: str
    """Working directory: `/`, or within what is shown."""
    reads: Sequence[str] = ()
    """Files and folders that can be read and run, beside the system's under /usr."""
    writes: Sequence[str] = ()
    """Folders that can be written. Hand them over first (`Ladder.hand_over`), unless they come of `run_folder`."""
    sockets: Sequence[str] = ()
    """Unix sockets that can be connected to."""
    bounds: Bounds = Bounds()
    has_network: bool = False
    """The hub's own network; without it there is none at all, not even the machine's loopback."""
    has_input: bool = False
    """Whether standard input is a pipe; else it is empty."""


def interpreter_reads() -> tuple[str, ...]:
    """What the hub's own Python needs to be seen in order to run: for `SandboxRequest.reads`.

    The folders of the interpreter and of its environment, and that of the package, should it lie elsewhere.
    """
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parent.parent))
    resolved = dict.fromkeys(os.path.realpath(place) for place in places)
    return tuple(place for place in resolved if place != "/usr" and not place.startswith("/usr/"))


def wanted_level(tool: str, sandbox: Sandbox) -> Level:
    """What must hold the skills and programs that a tool starts: Landlock at least, whatever the policy says."""
    wanted: Level = "bubblewrap" if sandbox.require_bubblewrap else sandbox.minimum_of(tool)
    return max(wanted, "landlock", key=LEVELS.index)


def too_weak(tool: str, level: Level | None, minimum: Level) -> ToolFailure | None:
    """Why the tool may not start what this level would hold; None: it may. `level`: None where nothing works."""
    if level is not None and LEVELS.index(level) >= LEVELS.index(minimum):
        return None
    best = f"the best that works is {level}" if level else "nothing that could hold it works"
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"{tool} starts only what {minimum} holds, and here {best}. Use another tool. Operators see by "
        "`toolhub doctor` what this machine lacks for it.",
        retryable=False,
    )
