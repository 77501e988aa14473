"""Starts programs like asyncio's subprocesses, but never loses one. It is the only place that starts children.

Each child has a thread of the hub, which starts it and waits for it. That keeps three promises. A cancellation
during a start leaves nothing behind: asyncio's own start forgets pipes that it has not yet connected, and kills the
leader only, so that a sandbox that has just forked lives on. The restrictions of the thread (Landlock, a filter of
system calls) are inherited by the child, and by nothing else of the hub (cred_copy, fork(2)). And the signal of
PR_SET_PDEATHSIG, which is sent when the *thread* that started a child ends, is sent when the hub ends.

Every child leads a session and a process group, and is ended as a group.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from resource import struct_rusage
from typing import IO

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
                self._on_pipe_closed(fd)

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
            closed = partial(self._on_pipe_closed, fd)
            await connect(partial(_Pipe, self._protocol, self._pipes, fd, closed), pipe)

    def _on_pipe_closed(self, fd: int, error: Exception | None = None) -> None:
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
