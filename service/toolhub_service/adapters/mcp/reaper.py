"""Ends the programs that a hub leaves behind when it is killed.

A hub that is killed outright (SIGKILL, out of memory) cannot end its servers. Their standard input closes, but not
every program heeds that, and the kernel's PR_SET_PDEATHSIG reaches one process only: never the server that `npx` or a
shell started. So one small process (this very file, run with the standard library alone) reads from the hub, over a
pipe that nobody else holds, which process groups there are; the end of that pipe is the end of the hub, whatever ended
it, and then it kills those groups. It lives in a session of its own, only while there are programs to watch.

Between the start of a program and its first line here lies less than a millisecond in which only the closing of
standard input ends the program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


class Reaper:
    """Sends the watching process the groups to kill after the hub. Not thread-safe."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def watch(self, group: int) -> None:
        """Kill this process group when the hub dies before it says `forget`."""
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
                [sys.executable, "-I", "-S", __file__],
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
        # An empty list first: a pipe that closes without one would kill what `watch` only wanted to send again.
        self._send("0\n")
        os.close(self._pipe)
        threading.Thread(target=self._process.wait, daemon=True).start()
        self._process = None

    def _send(self, line: str) -> bool:
        try:
            return os.write(self._pipe, line.encode()) == len(line)
        except (BrokenPipeError, BlockingIOError):
            return False


REAPER = Reaper()  # Of this process: a pipe more for each source would be a process more for each


def _watch() -> None:
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
        with suppress(ProcessLookupError, PermissionError):  # it has ended, and its number may be another's by now
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _watch()
