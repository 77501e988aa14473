"""One worker process, from the hub's side: started, asked, and ended with all processes that it started.

The worker leads a session of its own and is reached over a socket pair, so that a tool's output cannot break a message.
A pipe whose writing end only the hub holds is its lifeline: when the hub is gone, for whatever reason, the worker's
group is killed (`lifeline`). Nothing is forked: each worker is a new interpreter.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.langchain.frames import ChannelClosed, FrameProtocol
from toolhub_service.sandbox.child import Child, Program, spawn, wait_up_to
from toolhub_service.sandbox.hidden import CannotHide, HiddenPaths
from toolhub_service.sandbox.strays import kill_strays

_GRACE_S: Final = 0.5  # between SIGTERM and SIGKILL
_LINE_BYTES: Final = 4096

OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WorkerTerms:
    """How a worker process is started."""

    argv: Sequence[str]
    """The program; the numbers of its two descriptors are appended."""
    environment: Mapping[str, str]
    greeting: bytes
    """The first frame sent; the worker answers it when it is ready."""
    start_timeout_s: float = 60.0
    max_frame_bytes: int = 16 * 1024 * 1024
    """Limit of an answer."""
    hides: HiddenPaths | None = None
    """Paths hidden from the worker."""


class WorkerFailed(Exception):
    """A worker could not be started, or has ended before it answered."""

    def __init__(self, reason: str, *, was_asked: bool = False) -> None:
        """`was_asked`: the call had been sent to it, so its outcome is unknown."""
        super().__init__(reason)
        self.was_asked = was_asked


class WorkerProcess(asyncio.SubprocessProtocol):
    """A running worker, its output, and its end. Made by `start_worker`."""

    def __init__(self, channel: socket.socket, lifeline: int, max_frame_bytes: int, on_line: OnLine) -> None:
        """Takes over the hub's ends of the channel and the lifeline: they are closed with the process."""
        self._socket = channel
        self._lifeline = lifeline
        self._frames = FrameProtocol(max_frame_bytes)
        self._on_line = on_line
        self._rest = b""
        self._child: Child | None = None
        self._channel: asyncio.Transport | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.get_pid()

    @property
    def alive(self) -> bool:
        has_channel = self._channel is not None and not self._channel.is_closing()
        return has_channel and self._child is not None and not self._child.exited.is_set()

    async def start(self, program: Program) -> None:
        """Start the process, once. Raises OSError when that fails."""
        self._child = await spawn(program, self)

    async def connect(self) -> None:
        """Open the channel, once, before the first question."""
        self._socket.setblocking(False)
        self._channel, _ = await asyncio.get_running_loop().create_connection(lambda: self._frames, sock=self._socket)

    async def ask(self, frame: bytes) -> Any:
        """Return the answer. Raises WorkerFailed, FrameTooLarge, ValueError: then, as on cancellation, the worker must
        be ended."""
        try:
            return await self._frames.ask(frame)
        except ChannelClosed as closed:
            raise WorkerFailed("it ended before it answered", was_asked=True) from closed

    async def end(self) -> None:
        """Leave nothing running: SIGTERM to the group, a pause, SIGKILL; SIGKILL to processes that have left
        the group."""
        try:
            if self._child is not None:
                await self._end_all(self._child)
        finally:
            if self._channel is not None:
                self._channel.abort()
            else:
                self._socket.close()
            lifeline, self._lifeline = self._lifeline, -1
            if lifeline >= 0:
                os.close(lifeline)

    async def _end_all(self, child: Child) -> None:
        try:
            # First, and once more, because with the worker all knowledge of its processes is lost.
            if not child.exited.is_set():
                kill_strays(child.get_pid())
                child.signal_group(signal.SIGTERM)
                await wait_up_to(_GRACE_S, child.exited)
        finally:
            if not child.exited.is_set():
                kill_strays(child.get_pid())
            await child.end(0.0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        # A line without an end would otherwise grow for as long as the tool prints.
        self._rest = self._rest[:_LINE_BYTES]
        for line in lines[-100:]:
            self._on_line(line[:_LINE_BYTES].decode("utf-8", "replace"))

    def process_exited(self) -> None:
        # A child that outlives the worker can hold the channel open; the worker's end is the end of the answer all the
        # same.
        self._frames.fail(ChannelClosed())


async def start_worker(terms: WorkerTerms, on_line: OnLine) -> WorkerProcess:
    """Return a worker that has answered the greeting. Raises WorkerFailed, and then leaves nothing running."""
    ours, theirs = socket.socketpair()
    theirs_lifeline, ours_lifeline = os.pipe()
    worker = WorkerProcess(ours, ours_lifeline, terms.max_frame_bytes, on_line)
    try:
        # Closed here once the worker has them: an end left open in the hub would hide that the worker has closed its
        # own.
        with theirs, os.fdopen(theirs_lifeline) as inherited:
            passed = (theirs.fileno(), inherited.fileno())
            argv = (*terms.argv, *map(str, passed))
            program = Program(argv, terms.environment, merges_errors=True, pass_fds=passed)
            if terms.hides is not None:
                program = await terms.hides.hidden_from(program)
            await worker.start(program)
        async with asyncio.timeout(terms.start_timeout_s):
            await worker.connect()
            await worker.ask(terms.greeting)
    except BaseException as error:
        # A start that is cut off must not leave the process running.
        await asyncio.shield(asyncio.ensure_future(worker.end()))
        if isinstance(error, CannotHide):
            raise WorkerFailed(
                "neither bubblewrap nor Landlock works here to hide the hub's data folder from it"
            ) from error
        # TimeoutError is an OSError too, and has its own sentence below.
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise WorkerFailed("it could not be started") from error
        if isinstance(error, TimeoutError | WorkerFailed):
            raise WorkerFailed("it did not become ready") from error
        raise
    return worker
