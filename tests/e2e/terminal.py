"""Running commands as a person does: in a terminal of 100 columns, without colours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.command_server import on_path

COLUMNS = 100
BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
_WAIT_S = 60.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r(?=[^\n])")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    text: str
    """What stood on the terminal, standard error too."""
    code: int


def environment(home: Path, **more: str) -> dict[str, str]:
    """A newcomer's: a home of its own, nothing of tool-hub set, its programs on the path."""
    foreign = ("TOOLHUB_", "XDG_", "GRPC_", "COLUMNS", "LINES")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{BIN}{os.pathsep}{inherited.get('PATH', '')}"
    return {**inherited, "HOME": str(home), "PATH": path, "NO_COLOR": "1", "TERM": "xterm", **more}


def in_terminal(
    command: Sequence[str], env: Mapping[str, str], *, cwd: Path = ROOT, keys: bytes = b"", after: str = ""
) -> CommandOutput:
    """Run to the end; `keys` are typed once `after` has been shown. Where nobody types, `toolhub` is forked."""
    if command[0] == str(BIN / "toolhub"):
        command = ["toolhub", *command[1:]]
    with terminal(command, env, cwd=cwd, forks=not keys) as (process, screen):
        if keys:
            screen.wait_for(after)
            screen.type(keys)
        text = screen.rest()
        return CommandOutput(text, process.wait(_WAIT_S))


@contextlib.contextmanager
def terminal(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path = ROOT,
    columns: int = COLUMNS,
    forks: bool = False,
) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """A process whose terminal is ours; ended when the block is left."""
    ours, theirs = pty.openpty()
    env, *inherited = on_path(env) if forks else (env,)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        # A terminal types Ctrl-C to the session that it controls; a shell's background job would have it ignored.
        ["setsid", "--ctty", "env", "--default-signal=INT", *command],
        cwd=cwd,
        env=dict(env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        pass_fds=inherited,
    )
    os.close(theirs)
    try:
        yield process, Terminal(ours)
    finally:
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_WAIT_S)
        if process.poll() is None:
            process.kill()
            process.wait(_WAIT_S)
        os.close(ours)


class Terminal:
    """What has been shown so far."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.raw = b""

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.raw.decode("utf-8", "replace").replace("\r\n", "\n"))

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def wait_for(self, words: str, within_s: float = _WAIT_S) -> str:
        """Everything shown, once it holds the words."""
        ends_s = time.monotonic() + within_s
        while words not in self.text:
            assert self._read(ends_s), f"ended or waited in vain for {words!r}; shown was:\n{self.text}"
        return self.text

    def rest(self) -> str:
        ends_s = time.monotonic() + _WAIT_S
        while self._read(ends_s):
            pass
        assert time.monotonic() < ends_s, f"did not end; shown was:\n{self.text}"
        return self.text

    def _read(self, ends_s: float) -> bool:
        """Whether more came before the end of the process or of the time."""
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, ends_s - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # EIO: nobody holds the other side any more
            return False
        self.raw += data
        return bool(data)
