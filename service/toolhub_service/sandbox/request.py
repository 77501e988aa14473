"""The confinement of code that is not the hub's: what it can read and write, and its limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import LEVELS, Level, Sandbox

__all__ = ["LEVELS", "Bounds", "Level", "SandboxRequest", "interpreter_reads", "too_weak", "wanted_level"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Resource limits (setrlimit(2)); each applies to one process, except `processes`."""

    cpu_s: int = 30
    memory_bytes: int = 1024 * _MIB
    """Address space, which some runtimes reserve without using it."""
    file_bytes: int = 100 * _MIB
    """The largest file; inside bubblewrap also the size of /tmp and of /dev/shm."""
    processes: int = 64
    """Threads count, too."""
    open_files: int = 256


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """One program to confine. Paths are absolute and appear inside at the same place."""

    argv: Sequence[str]
    """`argv[0]` is the path of the program; it is made visible."""
    environment: Mapping[str, str]
    """The whole environment; nothing of the hub's is added."""
    folder: str
    """Working directory: `/`, or within the visible folders."""
    reads: Sequence[str] = ()
    """Files and folders that can be read and run, beside the system's under /usr."""
    writes: Sequence[str] = ()
    """Folders that can be written. Call `Ladder.hand_over` for them first, unless they are from `run_folder`."""
    descriptors: Sequence[int] = ()
    """Open descriptors that it inherits under their numbers; the only way to anything outside."""
    bounds: Bounds = Bounds()
    has_input: bool = False
    """Whether standard input is a pipe; else it is empty."""


def interpreter_reads() -> tuple[str, ...]:
    """Return what the hub's own Python needs to read in order to run: for `SandboxRequest.reads`.

    The folders of the interpreter and of its environment, and the package's, if it is elsewhere.
    """
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parent.parent))
    resolved = dict.fromkeys(os.path.realpath(place) for place in places)
    return tuple(place for place in resolved if place != "/usr" and not place.startswith("/usr/"))


def wanted_level(tool: str, sandbox: Sandbox) -> Level:
    """Return the level required for skills and programs that a tool starts: at least Landlock, whatever the policy
    says."""
    wanted: Level = "bubblewrap" if sandbox.require_bubblewrap else sandbox.minimum_of(tool)
    return max(wanted, "landlock", key=LEVELS.index)


def too_weak(tool: str, level: Level | None, minimum: Level) -> ToolFailure | None:
    """Return why the tool may not start a program at this level; None: it may. `level`: None when none works."""
    if level is not None and LEVELS.index(level) >= LEVELS.index(minimum):
        return None
    best = f"the best that works is {level}" if level else "nothing that could hold it works"
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"{tool} starts only what {minimum} holds, and here {best}. Use another tool. Operators see by "
        "`toolhub doctor` what this machine lacks for it.",
        retryable=False,
    )
