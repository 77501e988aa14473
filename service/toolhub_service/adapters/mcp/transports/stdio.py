"""A server on the standard input and output of its own program, one JSON-RPC message per line.

The SDK's own transport has no bound on a line and hands standard error on. Here: the program leads a session and a
process group of its own, inherits no descriptor, and gets an environment made from nothing. Standard output is taken by
a protocol as it arrives. A line longer than `max_message_bytes` is skipped without being held; the request that it
would have answered fails as `Breakage.TOO_LARGE` where its id can be read, a notification is dropped, and otherwise the
connection ends, so that no call waits for an answer that was thrown away. Lines that are no JSON-RPC are counted and
ignored, a few kept for diagnostics; too many of them end the connection. One that was meant as an answer, with an id
that can be read, fails its request as `Breakage.UNDECODABLE` at once; programs print all sorts of things, so that any
other line fails nothing.

The end: standard input is closed, a grace, SIGTERM to the group, a grace, SIGKILL to the group in any case and to what
left it (`kill_marked`), so that nothing the program started stays behind; so also when the leader has ended by itself,
and when the hub is killed (reaper.py).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, jsonrpc_message_adapter

from toolhub_service.adapters.mcp.failures import Breakage, Facts, NotConnected, error_of
from toolhub_service.adapters.mcp.kind import StdioTerms, command_advice
from toolhub_service.adapters.mcp.transports.events import MESSAGES_FREE, MESSAGES_PER_S, line_allowance
from toolhub_service.adapters.mcp.transports.inbox import PeerRequests
from toolhub_service.adapters.mcp.transports.lines import Lines, Tail, TooLong, later_messages
from toolhub_service.adapters.mcp.transports.pipe_calls import PipeCalls
from toolhub_service.adapters.mcp.transports.pump import LinePump
from toolhub_service.adapters.mcp.transports.reaper import REAPER, RUN_VARIABLE
from toolhub_service.adapters.mcp.transports.repairs import repair_message
from toolhub_service.aio.cooperative import in_thread
from toolhub_service.egress.framing import Pace
from toolhub_service.sandbox.child import Child, Program, spawn, wait_up_to
from toolhub_service.sandbox.strays import kill_marked

HELD_MAX = 256  # messages, after which the pipe is not read until half of them are taken
HELD_MAX_BYTES = 1024 * 1024
_CANCELLED = "notifications/cancelled"
_YIELD_EVERY = 32  # messages in a row before other tasks run


class ReceiveQueue(ObjectReceiveStream[SessionMessage | Exception]):
    """Messages from the server that the SDK has not taken yet: the stream that its dispatcher reads.

    The protocol of the pipe fills it, and does not read the pipe while the SDK does not keep up.
    """

    def __init__(self, hold_back: Callable[[bool], None]) -> None:
        """`hold_back(True)` stops reading the pipe."""
        self._pause_reading = hold_back
        self._held: deque[tuple[SessionMessage, int]] = deque()
        self._held_bytes = 0
        self._wake = asyncio.Event()
        self._is_paused = False
        self._is_over = False
        self._taken = 0

    def put(self, message: SessionMessage, size_bytes: int) -> None:
        if self._is_over:
            return
        self._held.append((message, size_bytes))
        self._held_bytes += size_bytes
        self._wake.set()
        if not self._is_paused and (len(self._held) > HELD_MAX or self._held_bytes > HELD_MAX_BYTES):
            self._is_paused = True
            self._pause_reading(True)

    def end(self) -> None:
        """End the stream; messages held can still be taken."""
        self._is_over = True
        self._wake.set()

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message. Raises anyio.EndOfStream."""
        while not self._held:
            if self._is_over:
                raise anyio.EndOfStream
            self._wake.clear()
            await self._wake.wait()
        self._taken += 1
        if self._taken % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
        message, size_bytes = self._held.popleft()
        self._held_bytes -= size_bytes
        if self._is_paused and len(self._held) <= HELD_MAX // 2 and self._held_bytes <= HELD_MAX_BYTES // 2:
            self._is_paused = False
            self._pause_reading(False)
        return message

    async def aclose(self) -> None:
        self.end()
        self._held.clear()
        self._held_bytes = 0


class SendQueue(ObjectSendStream[SessionMessage]):
    """Messages to the server: the stream that the SDK's dispatcher writes.

    It writes to the pipe, and waits while the program does not read, until the deadline of the waiting call.
    """

    def __init__(self, write: Callable[[bytes], None], on_sent: Callable[[JSONRPCMessage], None]) -> None:
        """`on_sent` is called with each message that was written."""
        self._write = write
        self._on_sent = on_sent
        self._open = asyncio.Event()
        self._open.set()
        self._is_over = False

    @property
    def is_held(self) -> bool:
        """Return whether the program does not read."""
        return not self._open.is_set()

    def set_full(self, is_full: bool) -> None:
        """Note whether the pipe is full."""
        if is_full:
            self._open.clear()
        else:
            self._open.set()

    def end(self) -> None:
        """Fail all tasks that wait or send, because the pipe is gone."""
        self._is_over = True
        self._open.set()

    async def send(self, item: SessionMessage) -> None:
        """Send a message. Raises anyio.BrokenResourceError when the program can no longer be written to.

        While the pipe is full a cancellation is dropped, because the SDK would delay the cancelled call for it.
        """
        message = item.message
        # The program reads nothing, so it would not read this; waiting here would delay the call that gave up.
        if self.is_held and isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            return
        await self.send_line(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        self._on_sent(message)

    async def send_line(self, line: bytes) -> None:
        """Write a line when there is room for it. Raises anyio.BrokenResourceError, as above."""
        await self._open.wait()
        if self._is_over:
            raise anyio.BrokenResourceError
        self._write(line)

    def send_now(self, line: bytes) -> None:
        """Write a line, or drop it while the program does not read."""
        if not self.is_held and not self._is_over:
            self._write(line)

    async def aclose(self) -> None:
        self.end()


INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
GRACE_S = 2.0  # from the closing of standard input to SIGTERM, as in the SDK
TERM_GRACE_S = 1.0
_LAST_WORDS_S = 0.2  # for output that a program wrote right before it ended
GARBAGE_MAX = 1_000
_GARBAGE_KEPT = 5
_GARBAGE_KEPT_BYTES = 200

_NO_OUTPUT = "Its program closed its output."
_NO_INPUT = "Its program closed its input."
_NO_PROGRAM = "Its program ended."
# Reasons that are replaced once it is known how the program ended.
PIPE_REASONS = frozenset({_NO_OUTPUT, _NO_INPUT, _NO_PROGRAM})

# Why the pipe is not read.
_FULL = "full"
_PACE = "pace"
_EARNED = 10  # messages that one of the hub's own allows for
# A longer line is repaired in a thread, a few at a time.
_AT_ONCE_BYTES = 64 * 1024
_MENDING_MAX = 4

_read = msgspec.json.Decoder().decode
OnEnd = Callable[[str], None]  # called once, with the reason, when the program or its pipes are gone


class PipeProtocol(asyncio.SubprocessProtocol):
    """One run of the program: receives what it writes, and notices its end."""

    def __init__(self, max_message_bytes: int, on_end: OnEnd) -> None:
        self.inbox = ReceiveQueue(self._hold_back)
        self.outbox = SendQueue(self._write, self._on_sent)
        self._max_message_bytes = max_message_bytes
        self._pump = LinePump(Lines(max_message_bytes), self._take_line, self._pause_reading)
        self._requests = PeerRequests(self.end)
        self.calls = PipeCalls(self.outbox, self._on_own_request, self._requests.note_own_answer)
        self._lines = line_allowance()
        self._pace = Pace(MESSAGES_FREE, MESSAGES_PER_S)
        self._mending: set[asyncio.Task[None]] = set()
        self._tail = Tail()
        self._on_end: OnEnd | None = on_end
        self._transport: asyncio.SubprocessTransport | None = None
        self._garbage = 0
        self._garbage_kept: list[bytes] = []
        self._too_long = 0
        self._is_signalled = False
        self.ended = ""  # how the program ended by itself; empty when it did not

    @asynccontextmanager
    async def running(self, terms: StdioTerms) -> AsyncIterator[None]:
        """Start the program once, and leave nothing of it running. Raises NotConnected when it cannot be started."""
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        run = REAPER.next_run()
        environment = {**inherited, **terms.variables_from_hub, **terms.env, RUN_VARIABLE: run}
        program = Program((terms.command, *terms.args), environment, terms.cwd or None, has_input=True)
        try:
            child = await spawn(program, self)
        except (OSError, ValueError) as error:
            raise NotConnected(_start_problem(error, terms)) from None
        # Only a connection that ended properly gets time; a failed start does not.
        grace_s = _LAST_WORDS_S
        try:
            yield
            grace_s = GRACE_S
        finally:
            await self._end_program(child, run, grace_s)

    async def _end_program(self, child: Child, run: str, grace_s: float) -> None:
        """End the program, and what it started; kill it at once when cancelled."""
        self.end("")
        stdin = child.get_pipe_transport(0)
        term_grace_s = 0.0
        try:
            if isinstance(stdin, asyncio.WriteTransport):
                stdin.close()
            await wait_up_to(grace_s, child.exited)
            term_grace_s = TERM_GRACE_S
        finally:
            self._is_signalled = True
            try:
                await child.end(term_grace_s)
            finally:
                # When cancelled the thread does it all the same.
                await in_thread(kill_marked, f"{RUN_VARIABLE}={run}")
                REAPER.forget(child.get_pid())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        # As early as possible: from here on a killed hub would leave a program behind.
        REAPER.watch(transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._tail.feed(data)
            return
        self._pump.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            # What it wrote before may hold an answer.
            self._pump.finish(lambda: self.end(_NO_OUTPUT))
        elif fd == 0:
            self.end(_NO_INPUT)

    def process_exited(self) -> None:
        code = self._transport.get_returncode() if self._transport else None
        if not self._is_signalled and code is not None:
            self.ended = (
                f"Its program ended (exit code {code})." if code >= 0 else f"Its program was killed (signal {-code})."
            )
        # Standard output may still hold an answer, and a child of the program may keep it open for ever.
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._pump.finish, lambda: self.end(_NO_PROGRAM))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            REAPER.forget(self._transport.get_pid())

    def pause_writing(self) -> None:
        self.outbox.set_full(True)

    def resume_writing(self) -> None:
        self.outbox.set_full(False)

    def end(self, why: str) -> None:
        """End both streams; requests in flight fail at once, and what the program still writes is dropped. An empty
        reason is not reported."""
        self._pump.stop()
        for task in self._mending:
            task.cancel()
        self.inbox.end()
        self.outbox.end()
        self.calls.end()
        on_end, self._on_end = self._on_end, None
        if why and on_end is not None:
            on_end(why)

    def errors(self) -> list[str]:
        """Return the tail of its standard error; secrets are not masked."""
        return self._tail.lines()

    def diagnostics(self) -> list[str]:
        """Return its standard error and the problems of its output; secrets are not masked."""
        lines = [f"stderr: {line}" for line in self._tail.lines()]
        if self._garbage:
            lines.append(f"{self._garbage} lines on standard output were not JSON-RPC, such as:")
            lines += [f"stdout: {line.decode('utf-8', 'replace')}" for line in self._garbage_kept]
        if self._too_long:
            lines.append(f"{self._too_long} messages were larger than the source's limit.")
        return lines

    def _take_line(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            self._on_oversized_line(line)
            return
        if not self._lines.take(1, len(line)):
            self.end(Breakage.FLOODED.value)
        elif line.strip() and not self._accept_line(line):
            self._on_invalid_line(line)

    def _accept_line(self, line: bytes) -> bool:
        """Return whether the line is a message. Parsed strictly: the SDK's own way accepts NaN and takes five times as
        long."""
        try:
            # Parsed by msgspec, as with HTTP, so that both transports accept the same JSON.
            message = _read(line)
        except (ValueError, RecursionError):
            return self._repair_line(line)
        return self._put(message, len(line))

    def _put(self, parsed: Any, size_bytes: int) -> bool:
        is_valid = self.calls.take(parsed) if self.calls.expects(parsed) else self._put_for_sdk(parsed, size_bytes)
        if not is_valid:
            return False
        if (pause_s := self._pace.take(1)) > 0:
            self._pump.hold(_PACE)
            asyncio.get_running_loop().call_later(pause_s, self._pump.release, _PACE)
        return True

    def _put_for_sdk(self, parsed: Any, size_bytes: int) -> bool:
        try:
            message = jsonrpc_message_adapter.validate_python(parsed, by_name=False)
        except (ValueError, RecursionError):
            return False
        self._requests.note_incoming(message)
        if self._requests.are_answers_made_up:
            self.end(Breakage.FLOODED.value)
        else:
            self.inbox.put(SessionMessage(message), size_bytes)
        return True

    def _repair_line(self, line: bytes) -> bool:
        """Return whether the line is a message with JSON that can be repaired."""
        if not line.lstrip().startswith(b"{"):
            return False
        if len(line) <= _AT_ONCE_BYTES:
            message = repair_message(line)
            return message is not None and self._put(message, len(line))
        if len(self._mending) >= _MENDING_MAX:
            return False
        task = asyncio.get_running_loop().create_task(self._mend(line))
        self._mending.add(task)
        task.add_done_callback(self._mending.discard)
        return True

    async def _mend(self, line: bytes) -> None:
        message = await in_thread(repair_message, line)
        if message is None or not self._put(message, len(line)):
            self._on_invalid_line(line)

    def _on_sent(self, message: JSONRPCMessage) -> None:
        self._requests.note_outgoing(message)
        self._pace.earn(_EARNED)

    def _on_own_request(self) -> None:
        self._requests.note_own_request()
        self._pace.earn(_EARNED)

    def _on_invalid_line(self, line: bytes) -> None:
        """Fail the request that an invalid line would have answered, and keep messages that follow a broken one in its
        line."""
        self._garbage += 1
        if len(self._garbage_kept) < _GARBAGE_KEPT:
            self._garbage_kept.append(line[:_GARBAGE_KEPT_BYTES])
        edges = TooLong.of(line)
        if b'"jsonrpc"' in edges.head or b'"jsonrpc"' in edges.tail:
            self._fail(edges, Breakage.UNDECODABLE, {})
        # A program that printed without a line break wrote its message behind the text.
        any(map(self._accept_line, later_messages(line)))
        if self._garbage > GARBAGE_MAX:
            self.end("Its program writes text that is not JSON-RPC to its standard output.")

    def _on_oversized_line(self, line: TooLong) -> None:
        self._too_long += 1
        breakage = Breakage.TOO_MANY if line.has_many_values else Breakage.TOO_LARGE
        facts: Facts = {} if line.has_many_values else {"limit_bytes": self._max_message_bytes}
        # It is unknown which request it answers, and one call would wait for ever, so the connection is given up.
        if not self._fail(line, breakage, facts) and not line.is_unasked:
            self.end(breakage.value)

    def _fail(self, line: TooLong, breakage: Breakage, facts: Facts) -> bool:
        """Fail the request that the line would have answered. Return False when its id cannot be read."""
        answers, error = line.answers, error_of(breakage, facts)
        if answers is not None and not self.calls.fail(answers, error):
            message = JSONRPCError.model_validate({"jsonrpc": "2.0", "id": answers, "error": error})
            self.inbox.put(SessionMessage(message), 0)
        return answers is not None

    def _write(self, data: bytes) -> None:
        pipe = self._transport.get_pipe_transport(0) if self._transport else None
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(data)

    def _hold_back(self, is_full: bool) -> None:
        """Stop reading while the SDK does not keep up."""
        if is_full:
            self._pump.hold(_FULL)
        else:
            self._pump.release(_FULL)

    def _pause_reading(self, is_full: bool) -> None:
        pipe = self._transport.get_pipe_transport(1) if self._transport else None
        if not isinstance(pipe, asyncio.ReadTransport) or pipe.is_closing():
            return
        if is_full:
            pipe.pause_reading()
        else:
            pipe.resume_reading()


def _start_problem(error: OSError | ValueError, terms: StdioTerms) -> str:
    if isinstance(error, FileNotFoundError):
        named = os.fsdecode(error.filename) if error.filename is not None else ""
        missing_folder = bool(terms.cwd) and named == terms.cwd
        return "Its working directory does not exist." if missing_folder else _missing_program(terms.command)
    if isinstance(error, PermissionError):
        return "Its program is not executable."
    return "Its program could not be started."


def _missing_program(command: str) -> str:
    """Return a reason with the program's name but not its folder, because agents read why a source is down."""
    if advice := command_advice(command):
        return f"Its program was not found. {advice}"
    folder, _, name = command.rpartition("/")
    if folder:
        return (
            f"Its program {name} was not found where `command` says: correct the path in sources.yaml, or install it."
        )
    return f"Its program {name} was not found on the hub's PATH: install it, or give its absolute path as `command`."
