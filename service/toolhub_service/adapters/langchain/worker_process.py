"""One worker process as the hub holds it: started, asked, and ended with all that it started.

The worker leads a session of its own and is reached over a socket pair, so that what a tool prints cannot break a
message. A pipe of which only the hub holds the writing end is its lifeline: when the hub is gone, however it went, the
worker's group is killed (`lifeline`). Nothing is forked: each worker is a new interpreter.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.langchain.frames import ChannelClosed, FrameProtocol
from toolhub_service.tools.child import Child, Program, spawn
from toolhub_service.tools.hidden_folder import CannotHide, HiddenFolder

_GRACE_S: Final = 0.5
"""Between SIGTERM and SIGKILL."""
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
    start_within_s: float = 60.0
    max_frame_bytes: int = 16 * 1024 * 1024
    """Of an answer."""
    hides: HiddenFolder | None = None
    """What the worker must not see."""


class WorkerFailed(Exception):
    """A worker could not be started, or has ended before it answered."""

    def __init__(self, reason: str, *, was_asked: bool = False) -> None:
        """`was_asked`: the call had been sent to it, so that nobody knows what became of it."""
        super().__init__(reason)
        self.was_asked = was_asked


class WorkerProcess:
    """A running worker. Made by `start_worker`."""

    def __init__(self, child: Child, watch: _Watch, channel: socket.socket, lifeline: int) -> None:
        """Owns all four: the hub's ends of the channel and the lifeline are closed with the process."""
        self._child = child
        self._watch = watch
        self._socket = channel
        self._lifeline = lifeline
        self._channel: asyncio.Transport | None = None
        self._frames = FrameProtocol(0)
        self.greeted: Any = None
        """What it answered to the greeting."""

    @property
    def pid(self) -> int:
        return self._child.get_pid()

    @property
    def alive(self) -> bool:
        return not self._child.exited.is_set() and self._channel is not None and not self._channel.is_closing()

    async def connect(self, max_frame_bytes: int) -> None:
        """Open the channel; once, before anything is asked."""
        self._socket.setblocking(False)
        self._channel, self._frames = await asyncio.get_running_loop().create_connection(
            lambda: FrameProtocol(max_frame_bytes), sock=self._socket
        )
        self._watch.told(self._frames)

    async def ask(self, frame: bytes) -> Any:
        """The answer. Raises WorkerFailed, FrameTooLarge, ValueError: then, as on cancellation, it must be ended."""
        try:
            return await self._frames.ask(frame)
        except ChannelClosed as closed:
            raise WorkerFailed("it ended before it answered", was_asked=True) from closed

    async def end(self) -> None:
        """Leave nothing running: SIGTERM to the group, a grace, SIGKILL to the group."""
        try:
            await self._child.end(_GRACE_S)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._channel is not None:
            self._channel.abort()
        else:
            self._socket.close()
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)


async def start_worker(terms: WorkerTerms, on_line: OnLine) -> WorkerProcess:
    """A worker that has answered the greeting. Raises WorkerFailed; leaves nothing behind when it fails."""
    ours, theirs = socket.socketpair()
    theirs_lifeline, ours_lifeline = os.pipe()
    try:
        with theirs:
            passed = (theirs.fileno(), theirs_lifeline)
            argv = (*terms.argv, *map(str, passed))
            program = Program(argv, terms.environment, merges_errors=True, pass_fds=passed)
            if terms.hides is not None:
                program = await terms.hides.hidden_from(program)
            watch = _Watch(on_line)
            child = await spawn(program, watch)
    except BaseException as error:
        ours.close()
        os.close(ours_lifeline)
        if isinstance(error, CannotHide):
            raise WorkerFailed(
                "neither bubblewrap nor Landlock works here to hide the hub's data folder from it"
            ) from error
        if isinstance(error, OSError):
            raise WorkerFailed("it could not be started") from error
        raise
    finally:
        os.close(theirs_lifeline)
    worker = WorkerProcess(child, watch, ours, ours_lifeline)
    try:
        async with asyncio.timeout(terms.start_within_s):
            await worker.connect(terms.max_frame_bytes)
            worker.greeted = await worker.ask(terms.greeting)
    except BaseException as error:
        await asyncio.shield(asyncio.ensure_future(worker.end()))
        if isinstance(error, TimeoutError | WorkerFailed):
            raise WorkerFailed("it did not become ready") from error
        raise
    return worker


class _Watch(asyncio.SubprocessProtocol):
    """Hears what the worker prints and when it ends."""

    def __init__(self, on_line: OnLine) -> None:
        self._frames: FrameProtocol | None = None
        self._on_line = on_line
        self._rest = b""
        self._has_exited = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_LINE_BYTES]
        for line in lines[-100:]:
            self._on_line(line[:_LINE_BYTES].decode("utf-8", "replace"))

    def process_exited(self) -> None:
        # A child that outlives the worker can hold the channel open: its end is the end of the answer all the same.
        self._has_exited = True
        if self._frames is not None:
            self._frames.fail(ChannelClosed())

    def told(self, frames: FrameProtocol) -> None:
        """Fail who waits there when the worker ends."""
        self._frames = frames
        if self._has_exited:
            frames.fail(ChannelClosed())
