"""A server as a process of its own: started until it is ready, killed, and started again."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.services.programs import Unavailable

READY = "ready to accept connections"
"""Redis and PostgreSQL say so in the same words."""
WITHIN_S = 60.0


# Popen's own `user` takes fork in place of vfork, and then gRPC's handlers of forks run in the child: where a test had
# a channel open, initdb now and then did not come to its first line.
_BECOME = """\
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""


def rootless(command: Sequence[str]) -> list[str]:
    """The command, run by an account that servers which refuse to run as root do not refuse."""
    if os.geteuid() != 0:
        return list(command)
    account = unprivileged()
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(account.pw_uid), str(account.pw_gid), *command]


def unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Unavailable("servers refuse to run as root, and no user `postgres` is here: useradd --system postgres")


class ServerProcess:
    """One process at a time. `start` waits until it is ready."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        rootless: bool = False,
        ready: str = READY,
    ) -> None:
        self._command = command
        self._folder = folder
        self._environment = dict(environment) if environment is not None else None
        self._rootless = rootless
        self._ready = ready
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    def start(self) -> None:
        """Raises Unavailable with its last words when it ends instead, or says nothing in time."""
        assert not self.is_running, "it runs already"
        self._process = process = subprocess.Popen(
            rootless(self._command) if self._rootless else self._command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        lines: deque[str] = deque(maxlen=3)
        is_ready = threading.Event()
        self._reader = threading.Thread(target=_read, args=(process, lines, is_ready, self._ready), daemon=True)
        self._reader.start()
        if not is_ready.wait(WITHIN_S) or not (lines and self._ready in lines[-1].lower()):
            self.stop(signal.SIGKILL)
            raise Unavailable(f"{Path(self._command[0]).name} did not start: {' | '.join(lines)}")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was never started"
        self._process.send_signal(number)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal and wait for the end. Does nothing when it has ended already."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert self._reader is not None
        self._reader.join()


def _read(process: subprocess.Popen[str], lines: deque[str], is_ready: threading.Event, ready: str) -> None:
    """Everything it says, to its end, so that it never waits for a reader."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if not is_ready.is_set():
                lines.append(line.strip())
                if ready in line.lower():
                    is_ready.set()
    is_ready.set()
