"""A worker process: loads one source's tools as the hub did, then runs one call at a time in its main thread.

Started by the hub with the numbers of two descriptors: the channel and the lifeline. Output of tools goes to the hub's
pipe for diagnostics. A child that a tool forked and that returns from the tool ends here, because it must not answer
too.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolhub_service.adapters.langchain.kind import LoadTerms

if TYPE_CHECKING:
    from toolhub_service.adapters.langchain.bound_tool import BoundTool

# Messages between the hub and its worker processes: four bytes of length, big-endian, then JSON.
#
# JSON only, so that a worker, which may run anybody's code, can send the hub only plain values.

LENGTH_BYTES: Final = 4


class FrameTooLarge(Exception):
    """The other side announced a larger frame than agreed."""


class ChannelClosed(Exception):
    """The other side is gone."""


def encode(message: Any) -> bytes:
    """Return the frame of a JSON value."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode(body: bytes | bytearray) -> Any:
    return msgspec.json.decode(body)


def read_frame(channel: socket.socket) -> Any:
    """Wait for the next message and return it. Raises ChannelClosed. For workers, which trust the hub's sizes."""
    return decode(_read(channel, int.from_bytes(_read(channel, LENGTH_BYTES), "big")))


def _read(channel: socket.socket, size_bytes: int) -> bytearray:
    content = bytearray(size_bytes)
    view, filled = memoryview(content), 0
    while filled < size_bytes:
        received = channel.recv_into(view[filled:])
        if received == 0:
            raise ChannelClosed
        filled += received
    return content


class FrameProtocol(asyncio.Protocol):
    """The hub's end: one question at a time, and one answer to it.

    A sender of more than was asked for (a tool that found the descriptor, a child that a tool forked) is cut off: its
    data must not pass for the answer to the next question, which is another caller's.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._broken: Exception | None = None

    async def ask(self, frame: bytes) -> Any:
        """Send a frame (none when empty) and wait for the next. Raises ChannelClosed, FrameTooLarge, ValueError."""
        if self._broken is not None:
            raise self._broken
        answer = self._answer = asyncio.get_running_loop().create_future()
        if frame and self._transport is not None:
            self._transport.write(frame)
        self._deliver()
        return decode(await answer)

    def fail(self, error: Exception) -> None:
        """Fail the waiting and all later questions."""
        self._broken = self._broken or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._broken)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._deliver()
        # Unrequested bytes: the worker's code writes into the channel, and no later answer can be trusted.
        if self._received and (self._answer is None or self._answer.done()):
            self.fail(ChannelClosed())
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ChannelClosed())

    def _deliver(self) -> None:
        received = self._received
        if len(received) < LENGTH_BYTES:
            return
        size_bytes = int.from_bytes(received[:LENGTH_BYTES], "big")
        # Checked by the announced length, before anything of that size is buffered.
        if size_bytes > self._max_bytes:
            self.fail(FrameTooLarge())
            return
        end = LENGTH_BYTES + size_bytes
        if len(received) >= end and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(received[LENGTH_BYTES:end]))
            del received[:end]


# LangChain runs without its tracing: LangSmith would send arguments and results to a third party. Tracing is controlled
# by context, then by `langsmith.configure`, then by environment variables. The variables are set before anything is
# imported, the configuration right after, so that a later change of the variables has no effect.

OFF: Final = dict.fromkeys(
    ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"), "false"
)
_OTHER_TRACERS: Final = ("LANGCHAIN_HANDLER", "LANGCHAIN_WANDB_TRACING", "LANGCHAIN_COMET_TRACING")
_OWN_PREFIX: Final = "TOOLHUB_"  # the hub's own settings, some of which are secrets


def disable_tracing() -> None:
    """Turn tracing off in this process permanently. Imports langsmith: half a second the first time."""
    for name in _OTHER_TRACERS:
        os.environ.pop(name, None)
    os.environ.update(OFF)
    import langsmith

    langsmith.configure(enabled=False)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the hub's environment for a worker process, without the hub's settings and the switches of tracing."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_OWN_PREFIX) and name not in _OTHER_TRACERS
    }
    return kept | OFF


_SET_CHILD_SUBREAPER: Final = 36

# When the hub is gone, the worker's whole process group is killed. Only the hub holds the writing end of a pipe. On
# Linux the kernel itself sends SIGKILL to the group when that end closes (`F_SETOWN` with a group, `F_SETSIG`,
# `O_ASYNC`; fcntl(2)), which also ends a tool that never releases the interpreter lock. Where that is missing, a thread
# that waits for the end of the pipe does the same.


def bind_to_hub(lifeline: int) -> None:
    """Have this process group killed when the hub is gone.

    Raises RuntimeError where neither this process nor its parent leads its group, as others would be killed with it.
    The parent may be the sandbox that hides the hub's data folder.
    """
    if os.getpgrp() not in (os.getpid(), os.getppid()):
        raise RuntimeError("a worker must lead its process group")
    _adopt_orphans()
    # A child that inherited it would keep the pipe's reading end open after the worker's end.
    os.set_inheritable(lifeline, False)
    if hasattr(fcntl, "F_SETSIG"):
        # The kernel kills at once, even while a tool holds the GIL; where it cannot, the thread below does.
        with suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()


def _adopt_orphans() -> None:
    """Keep the processes that tools start below this one, so that the hub finds them all (PR_SET_CHILD_SUBREAPER of
    prctl(2)): otherwise an orphan in a session of its own would have no known parent. Linux only."""
    # Only Linux has it; elsewhere orphans of a tool are not ended with it.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with(lifeline: int) -> None:
    with suppress(OSError):  # a failed pipe also means that the hub is gone
        os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from toolhub_service.adapters.langchain.worker import main; main()"
)


def worker_argv() -> list[str]:
    """Return the command of a worker that imports from the same paths as this process."""
    paths = json.dumps(sys.path)
    return [sys.executable, "-P", "-c", _BOOTSTRAP, paths]


def main() -> None:
    """Serve until the hub is gone."""
    channel_fd, lifeline_fd = int(sys.argv[1]), int(sys.argv[2])
    bind_to_hub(lifeline_fd)
    os.set_inheritable(channel_fd, False)
    channel = socket.socket(fileno=channel_fd)
    try:
        _serve(channel)
    except (ChannelClosed, OSError):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _serve(channel: socket.socket) -> None:
    own_pid = os.getpid()
    greeting = read_frame(channel)
    tools = _loaded(greeting)
    channel.sendall(encode({"ready": sorted(tools)}))
    while True:
        call = read_frame(channel)
        tool = tools.get(call["tool"])
        answer = tool.call_blocking(call, greeting["max_bytes"]) if tool else {"failed": "absent", "runs": []}
        reply = encode(answer)
        # A tool that forked returns twice: the child must not answer in its parent's place.
        if os.getpid() != own_pid:
            os._exit(0)
        # The tool's output reaches the hub's log before its answer does.
        sys.stdout.flush()
        channel.sendall(reply)


def _loaded(greeting: Mapping[str, Any]) -> dict[str, BoundTool]:
    disable_tracing()
    from toolhub_service.adapters.langchain.bound_tool import bound
    from toolhub_service.adapters.langchain.loading import Loader

    tools, _ = Loader(msgspec.convert(greeting["loads"], LoadTerms)).load()
    return {tool.name: bound(tool, frozenset()) for tool in tools}
