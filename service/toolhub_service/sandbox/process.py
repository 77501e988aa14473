"""Runs one program in its own session, with bounded output and a guaranteed end.

The program leads a new process group; at the deadline, on cancellation and after its own exit the whole group is
killed, so that nothing it started outlives the call (`Child`). Standard input is empty, no descriptor is inherited.
Output is taken by a protocol as it arrives (no task, no stream buffer): it keeps the first bytes, counts and hashes the
rest, and ends a program that floods.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from toolhub_service.sandbox.capture import Capture
from toolhub_service.sandbox.child import Program, spawn
from toolhub_service.sandbox.strays import kill_strays

FLOOD_BYTES = 64 * 1024 * 1024
"""Output after which a program is ended."""
# Pause between SIGTERM and SIGKILL.
_GRACE_S = 1.0
_STREAMS = {1: "stdout", 2: "stderr"}

OnOutput = Callable[[bytes, str], None]
"""Called with whole lines and the name of their stream."""
StopWhen = Callable[[Callable[[signal.Signals], None]], Coroutine[Any, Any, None]]
"""Called with what sends a signal to the program and all that it started."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended."""

    exit_code: int
    """As a shell reports it: 128 + n when signal n ended it."""
    duration_s: float
    stdout: Capture
    stderr: Capture
    timed_out: bool
    flooded: bool
    was_stopped: bool = False
    """Whether `stop_when` ended it."""
    cpu_s: float = 0.0
    """Of the program and all its waited-for children."""
    memory_max_bytes: int = 0
    """The largest memory of one of these."""


async def run_process(
    program: Program,
    *,
    deadline_s: float,
    keep_bytes: int,
    on_output: OnOutput,
    given: bytes = b"",
    on_start: Callable[[int], None] | None = None,
    stop_when: StopWhen | None = None,
) -> Finished:
    """Run to the end, to the deadline (loop clock) or to cancellation. Raises OSError when it cannot be started.

    `given`: all that a program with `has_input` reads on its standard input. `on_start`: called with its pid.
    `stop_when`: runs beside it; the program is killed when that returns.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    watch = _Watch(keep_bytes, on_output)
    child = await spawn(program, watch)
    timed_out = False
    watching = None if stop_when is None else asyncio.create_task(watch.stop_after(stop_when, child.signal_group))
    try:
        if on_start is not None:
            on_start(child.get_pid())
        if isinstance(feed := child.get_pipe_transport(0), asyncio.WriteTransport):
            feed.write(given)
            feed.write_eof()
        async with asyncio.timeout_at(deadline_s):
            await watch.over.wait()
    except TimeoutError:
        timed_out = True
    finally:
        if watching is not None:
            watching.cancel()
        if program.ends_strays and not child.exited.is_set():
            kill_strays(child.get_pid())
        await child.end(0.0 if watch.was_stopped else _GRACE_S)
    ended = child.get_returncode()
    code = -signal.SIGKILL if ended is None else ended
    return Finished(
        exit_code=128 - code if code < 0 else code,  # a signal as a shell reports it
        duration_s=loop.time() - started_s,
        stdout=watch.captures[1],
        stderr=watch.captures[2],
        timed_out=timed_out,
        flooded=watch.flooded,
        was_stopped=watch.was_stopped,
        cpu_s=0.0 if child.usage is None else child.usage.ru_utime + child.usage.ru_stime,
        memory_max_bytes=0 if child.usage is None else child.usage.ru_maxrss * 1024,
    )


class _Watch(asyncio.SubprocessProtocol):
    """Receives the program's output and its end."""

    def __init__(self, keep_bytes: int, on_output: OnOutput) -> None:
        self.captures = {1: Capture(keep_bytes), 2: Capture(keep_bytes)}
        self.over = asyncio.Event()
        """Set when it has ended or must be ended."""
        self.flooded = False
        self.was_stopped = False
        self._on_output = on_output

    async def stop_after(self, stop_when: StopWhen, signal_program: Callable[[signal.Signals], None]) -> None:
        # Called here, not before: a program that ends at once has this task cancelled before its first step.
        await stop_when(signal_program)
        self.was_stopped = True
        self.over.set()

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
