"""Runs one program in its own session, with bounded output and a guaranteed end.

The program leads a new process group; at the deadline, on cancellation and after its own exit the whole group is
killed, so that nothing it started outlives the call (`Child`). Standard input is empty, no descriptor is inherited.
Output is taken by a protocol as it arrives (no task, no stream buffer): it keeps the first bytes, counts and hashes the
rest, and ends a program that floods.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from resource import struct_rusage
from typing import IO, Any

from toolhub_service.sandbox.capture import Capture
from toolhub_service.sandbox.strays import kill_strays

# Starts programs like asyncio's subprocesses, but never loses one. It is the only place that starts children.
#
# Each child has a thread of the hub's, which starts it and waits for it. That keeps three promises. A cancellation
# during a start leaves nothing behind: asyncio's own start forgets pipes that it has not yet connected, and kills the
# leader only, so that a sandbox that has just forked lives on. The restrictions of the thread (Landlock, a filter of
# system calls) are inherited by the child, and by nothing else of the hub (cred_copy, fork(2)). And the signal of
# PR_SET_PDEATHSIG, which is sent when the *thread* that started a child ends, is sent when the hub ends.
#
# Every child leads a session and a process group, and is ended as a group.

# Time for the pipes to close after the group is dead; only a process that left the group can keep them open longer.
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """The program to start, with its environment. No descriptor is inherited except `pass_fds`."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    working_directory: str | None = None
    has_input: bool = False
    """Whether standard input is a pipe; else it is empty."""
    merges_errors: bool = False
    """Whether standard error is redirected to standard output."""
    pass_fds: Sequence[int] = ()
    ends_strays: bool = False
    """Whether `run_process` also ends what the program started outside of its group."""
    confine: Callable[[], None] | None = None
    """Called in the child's thread before it is started. Raises OSError when it cannot confine the thread."""


class Child(asyncio.SubprocessTransport):
    """A program started by `spawn`. Its protocol is called on the loop with its output and at its end."""

    def __init__(self, protocol: asyncio.SubprocessProtocol) -> None:
        super().__init__()
        self.exited = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when it has ended and its pipes are closed."""
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[subprocess.Popen[bytes]] = self._loop.create_future()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: dict[int, asyncio.BaseTransport] = {}
        self._open: set[int] = set()
        self._code: int | None = None
        self.usage: struct_rusage | None = None
        """Resources used by it and all its waited-for children; known once it has ended."""
        self._is_closed = False

    async def start(self, program: Program) -> None:
        """Start it, once.

        Raises OSError and ValueError when that fails; when cancelled, it has ended what it started.
        """
        try:
            threading.Thread(target=self._live, args=(program,), name="child", daemon=True).start()
        except RuntimeError as full:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from full
        cancelled: asyncio.CancelledError | None = None
        while not self._started.done():  # A start takes milliseconds, and its inputs must stay until it is over.
            try:
                await asyncio.wait({self._started})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if self._started.exception() is None:
                await self._abandon()
            raise cancelled
        try:
            await self._connect(self._started.result())
        except BaseException:
            await self._abandon()
            raise

    async def end(self, grace_s: float) -> None:
        """End the whole group: SIGTERM, a grace period, SIGKILL; then wait until the pipes are closed.

        When cancelled, it kills at once.
        """
        try:
            if not self.exited.is_set():
                self.signal_group(signal.SIGTERM)
                await wait_up_to(grace_s, self.exited)
        finally:
            self.signal_group(signal.SIGKILL)
            try:
                await wait_up_to(_DRAIN_S, self.gone)
            finally:
                self.close()

    def signal_group(self, number: signal.Signals) -> None:
        # Gone already, or a program that runs as another user by now (setuid).
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.get_pid(), number)

    def get_pid(self) -> int:
        """Return the id of the leader, also of its group and session."""
        assert self._process is not None
        return self._process.pid

    def get_returncode(self) -> int | None:
        """Return None while it runs, -n when signal n ended it."""
        return self._code

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self._pipes.get(fd)

    def close(self) -> None:
        """Kill the group if the leader runs, and close the pipes."""
        if self._process is None or self._is_closed:
            return
        self._is_closed = True
        if self._code is None:
            self.signal_group(signal.SIGKILL)
        for fd, pipe in _pipes_of(self._process):
            transport = self._pipes.get(fd)
            if fd not in self._open:
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # Otherwise unread input of the program would keep the pipe open.
            elif transport is not None:
                transport.close()
            else:
                pipe.close()
                self._closed(fd)

    async def _abandon(self) -> None:
        """End a child that no caller has received yet."""
        self.close()
        # Cancelled again: it is killed, and its exit is no longer waited for. The first cancellation continues.
        with suppress(asyncio.CancelledError):
            await wait_up_to(_DRAIN_S, self.exited)

    def _live(self, program: Program) -> None:
        """Body of the child's thread, from its start to its end."""
        try:
            if program.confine is not None:
                program.confine()
            process = subprocess.Popen(  # noqa: S603 - callers are what decides on programs
                program.argv,
                stdin=subprocess.PIPE if program.has_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if program.merges_errors else subprocess.PIPE,
                env=dict(program.environment),
                cwd=program.working_directory,
                pass_fds=program.pass_fds,
                start_new_session=True,
                bufsize=0,
            )
        except BaseException as error:  # noqa: BLE001 - goes to whoever waits
            self._on_loop(self._started.set_exception, error)
            return
        if not self._on_loop(self._has_started, process):
            # The loop has been closed meanwhile: nobody is left to end it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code, usage = _waited_for(process)
        self._on_loop(self._has_ended, code, usage)

    def _on_loop(self, what: Callable[..., object], *arguments: object) -> bool:
        """Return False when the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            return False
        return True

    def _has_started(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._open = {fd for fd, _ in _pipes_of(process)}
        self._protocol.connection_made(self)
        self._started.set_result(process)

    def _has_ended(self, code: int, usage: struct_rusage | None) -> None:
        self._code = code
        self.usage = usage
        self.exited.set()
        self._protocol.process_exited()
        self._finish()

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        for fd, pipe in _pipes_of(process):
            connect = self._loop.connect_write_pipe if fd == 0 else self._loop.connect_read_pipe
            closed = partial(self._closed, fd)
            await connect(partial(_Pipe, self._protocol, self._pipes, fd, closed), pipe)

    def _closed(self, fd: int, error: Exception | None = None) -> None:
        if fd in self._open:
            self._open.remove(fd)
            self._protocol.pipe_connection_lost(fd, error)
            self._finish()

    def _finish(self) -> None:
        if self._code is not None and not self._open and not self.gone.is_set():
            self.gone.set()
            self._protocol.connection_lost(None)


async def spawn(program: Program, protocol: asyncio.SubprocessProtocol) -> Child:
    """Return the running program.

    Raises OSError and ValueError when it cannot be started; a cancellation leaves nothing.
    """
    child = Child(protocol)
    await child.start(program)
    return child


async def wait_up_to(seconds: float, event: asyncio.Event) -> bool:
    """Return whether the event was set in time."""
    with suppress(TimeoutError):  # the event's own state is the answer
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class _Pipe(asyncio.Protocol):
    """One pipe of a child, which passes data to the child's protocol."""

    def __init__(
        self,
        protocol: asyncio.SubprocessProtocol,
        pipes: dict[int, asyncio.BaseTransport],
        fd: int,
        closed: Callable[[Exception | None], None],
    ) -> None:
        self._protocol = protocol
        self._pipes = pipes
        self._fd = fd
        self._closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipes[self._fd] = transport

    def data_received(self, data: bytes) -> None:
        self._protocol.pipe_data_received(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def _waited_for(process: subprocess.Popen[bytes]) -> tuple[int, struct_rusage | None]:
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        return process.wait(), None
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def _pipes_of(process: subprocess.Popen[bytes]) -> list[tuple[int, IO[bytes]]]:
    pipes = enumerate((process.stdin, process.stdout, process.stderr))
    return [(fd, pipe) for fd, pipe in pipes if pipe is not None]


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
