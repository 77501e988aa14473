"""Runs one program in a session of its own, with bounded output and a certain end.

The program leads a new process group; at the deadline, on cancellation and after its own exit the whole group is
killed, so that nothing it started outlives the call (child.py). Standard input is empty, no descriptor is inherited.
Output is taken by a protocol as it arrives (no task, no stream buffer): it keeps the first bytes, counts and hashes the
rest, and ends a program that floods.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import Callable
from dataclasses import dataclass

from toolhub_service.tools.child import Program, spawn

FLOOD_BYTES = 64 * 1024 * 1024
"""Of output, after which a program is ended."""
_GRACE_S = 1.0
"""Between SIGTERM and SIGKILL."""
_STREAMS = {1: "stdout", 2: "stderr"}

OnOutput = Callable[[bytes, str], None]
"""Whole lines, and the name of their stream."""


class Capture:
    """What one stream carried: its first bytes, its length and its hash."""

    def __init__(self, keep_bytes: int) -> None:
        self.kept = bytearray()
        self.total_bytes = 0
        self._keep_bytes = keep_bytes
        self._told_bytes = 0
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hex digest of all bytes, kept or not."""
        return self._hash.hexdigest()

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return the lines that it completed among the kept bytes."""
        self.total_bytes += len(data)
        self._hash.update(data)
        piece = data[: self._keep_bytes - len(self.kept)]
        self.kept += piece
        end = len(self.kept) - len(piece) + piece.rfind(b"\n") + 1
        return self._tell(end) if b"\n" in piece else b""

    def rest(self) -> bytes:
        """The unfinished last line."""
        return self._tell(len(self.kept))

    def text(self, max_chars: int) -> tuple[str, bool]:
        """At most `max_chars` characters and whether something is missing."""
        text = self.kept.decode("utf-8", "replace")
        return text[:max_chars], len(text) > max_chars or self.total_bytes > len(self.kept)

    def _tell(self, end: int) -> bytes:
        lines = bytes(self.kept[self._told_bytes : end])
        self._told_bytes = max(self._told_bytes, end)
        return lines


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended."""

    exit_code: int
    """As a shell tells it: 128 + n when signal n ended it."""
    duration_s: float
    stdout: Capture
    stderr: Capture
    timed_out: bool
    flooded: bool


async def run_process(program: Program, *, deadline_s: float, keep_bytes: int, on_output: OnOutput) -> Finished:
    """Run to the end, to the deadline (loop clock) or to cancellation. Raises OSError when it cannot be started."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    watch = _Watch(keep_bytes, on_output)
    child = await spawn(program, watch)
    timed_out = False
    try:
        async with asyncio.timeout_at(deadline_s):
            await watch.over.wait()
    except TimeoutError:
        timed_out = True
    finally:
        await child.end(_GRACE_S)
    code = child.get_returncode()
    return Finished(
        exit_code=_shell_code(-signal.SIGKILL if code is None else code),
        duration_s=loop.time() - started_s,
        stdout=watch.captures[1],
        stderr=watch.captures[2],
        timed_out=timed_out,
        flooded=watch.flooded,
    )


class _Watch(asyncio.SubprocessProtocol):
    """Hears what the program writes and when it ends."""

    def __init__(self, keep_bytes: int, on_output: OnOutput) -> None:
        self.captures = {1: Capture(keep_bytes), 2: Capture(keep_bytes)}
        self.over = asyncio.Event()
        """It has ended or must be ended."""
        self.flooded = False
        self._on_output = on_output

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        lines = self.captures[fd].feed(data)
        if lines:
            self._on_output(lines, _STREAMS[fd])
        if not self.flooded and sum(capture.total_bytes for capture in self.captures.values()) > FLOOD_BYTES:
            self.flooded = True
            self.over.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in self.captures and (rest := self.captures[fd].rest()):
            self._on_output(rest, _STREAMS[fd])

    def process_exited(self) -> None:
        self.over.set()


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
