"""Ends the programs that a hub leaves behind when it is killed.

A hub that is killed (SIGKILL, out of memory) cannot end its servers. Their standard input closes, but not every program
reacts to that, and the kernel's PR_SET_PDEATHSIG reaches one process only: never the server that `npx` or a shell
started. So one small process (this file, run with the standard library only) reads the process groups from the hub over
a pipe that no other process holds. When the pipe closes, the hub has ended, for whatever reason, and the process kills
those groups, and what left them: each program is started with a variable that everything it starts inherits
(`RUN_VARIABLE`). It has a session of its own and runs only while there are programs to watch.

For less than a millisecond after the start of a program, before its first line here, only the closing of standard input
ends it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolhub_service.sandbox.strays import kill_marked

RUN_VARIABLE: Final = "TOOLHUB_SOURCE_RUN"
"""Environment variable by which what a program leaves behind is found (`kill_marked`)."""
_HUB: Final = secrets.token_hex(8)
_ROOT: Final = str(Path(__file__).parents[4])
_WATCH: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from toolhub_service.adapters.mcp.transports.reaper import watch; watch(sys.argv[2])"
)


class Reaper:
    """Sends the groups to kill after the hub to the watching process. Not thread-safe."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._runs = 0

    def next_run(self) -> str:
        """Return the value of `RUN_VARIABLE` for the next program; no other begins so."""
        self._runs += 1
        return f"{_run_of_hub()}{self._runs}."

    def watch(self, group: int) -> None:
        """Kill this process group when the hub dies before it calls `forget`."""
        self._groups.add(group)
        if self._process is None:
            self._start()
        elif not self._send(f"+{group}\n"):
            self._stop()
            self._start()

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        if not self._groups:
            self._stop()
        else:
            self._send(f"-{group}\n")

    def _start(self) -> None:
        read, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603  this file, by this interpreter
                [sys.executable, "-I", "-S", "-c", _WATCH, _ROOT, _run_of_hub()],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(read)
        os.set_blocking(self._pipe, False)
        self._send("".join(f"+{group}\n" for group in self._groups))

    def _stop(self) -> None:
        if self._process is None:
            return
        # An empty list first: if the pipe closed without one, the process would kill groups that `watch` only wanted to
        # resend.
        self._send("0\n")
        os.close(self._pipe)
        threading.Thread(target=self._process.wait, daemon=True).start()
        self._process = None

    def _send(self, line: str) -> bool:
        try:
            return os.write(self._pipe, line.encode()) == len(line)
        except (BrokenPipeError, BlockingIOError):
            return False


REAPER = Reaper()  # one per process: a pipe for each source would need a process for each


def _run_of_hub() -> str:
    """Return how the values of all programs of this process begin; a forked process has its own."""
    return f"{os.getpid()}.{_HUB}."


def watch(run: str) -> None:
    """Read groups until the hub is gone, and kill what is left of them. Body of the watching process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line)
        if group > 0:
            groups.add(group)
        elif group < 0:
            groups.discard(-group)
        else:
            groups.clear()
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, and its number may have been reused
            os.killpg(group, signal.SIGKILL)
    if groups:
        kill_marked(f"{RUN_VARIABLE}={run}")
