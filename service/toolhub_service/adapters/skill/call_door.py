"""Calls of a running script, through a descriptor that it inherits: nothing on the machine has a name to connect to.

The descriptor is one end of a socket pair, the door. For each connection the script makes a socket pair of its own and
sends one end through the door (SCM_RIGHTS, unix(7)); `toolhub_tools` does that. So a script needs no socket of the
machine, the filter of system calls refuses it all of them, and only the processes that inherited the door can call.
On a connection, one line of JSON is one call, and one line its answer:

    {"tool": "core/fs.readText", "args": {"path": "a.txt"}}
    {"ok": true, "value": {…}}        or   {"ok": false, "error": {"kind": "POLICY_DENIED", "message": "…", …}}

Each call is an inner call of the running one, which determines what it may do. The door is closed with the run.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from typing import Any, Final

from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.strict_json import loads

REQUEST_MAX_BYTES: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 32
_MESSAGE_BYTES: Final = 16
"""Of what comes with a descriptor, and says nothing."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    tool: str
    call_id: str
    ok: bool


@dataclass(slots=True)
class CallDoor:
    """The door of one run. `calls` are narrowed to what the skill may use."""

    calls: InnerCalls
    purpose: str
    parallel_calls: int
    made: list[MadeCall] = field(default_factory=list)
    _ours: socket.socket | None = None
    _theirs: socket.socket | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _places: asyncio.Semaphore | None = None

    def open(self) -> int:
        """Open it, once, and return the descriptor that the program inherits. Raises OSError."""
        self._places = asyncio.Semaphore(self.parallel_calls)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        asyncio.get_running_loop().add_reader(self._ours, self._take)
        return self._theirs.fileno()

    def close_hub_copy(self) -> None:
        """Note that the program has its descriptor: the hub's copy is closed, so that the program's end is seen."""
        if self._theirs is not None:
            self._theirs.close()

    async def close(self) -> None:
        """Accept no more calls, and end those under way."""
        self.close_hub_copy()
        self._close_ours()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _close_ours(self) -> None:
        if self._ours is not None:
            asyncio.get_running_loop().remove_reader(self._ours)
            self._ours.close()
            self._ours = None

    def _take(self) -> None:
        """Take one connection: no more in one turn of the loop, however many a script has sent."""
        assert self._ours is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._ours, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message and not descriptors:
            self._close_ours()  # nobody has the other end any more
        for descriptor in descriptors:
            if (connection := _connection_of(descriptor)) is not None:
                task = asyncio.create_task(self._serve_connection(connection))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _serve_connection(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=REQUEST_MAX_BYTES)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                await _send(writer, _error_answer(_too_many()))
            else:
                await self._answer_all(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the program has ended, or closed its end: nobody waits for an answer
        finally:
            writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                message = f"A call has {REQUEST_MAX_BYTES:,} bytes at most. Pass large values as files or artifacts."
                await _send(
                    writer, _error_answer(refuse(ErrorKind.INVALID_INPUT, message, max_bytes=REQUEST_MAX_BYTES).error)
                )
                return
            if not line:
                return
            await _send(writer, await self._answer_line(line))

    async def _answer_line(self, line: bytes) -> JsonObject:
        try:
            tool, args = _parse_request(line)
        except ToolFailure as failure:
            return _error_answer(failure.error)
        assert self._places is not None
        async with self._places:
            result = await self.calls.invoke(tool, args, purpose=self.purpose)
        self.made.append(MadeCall(result.tool, result.call_id, result.ok))
        if result.error is not None:
            return _error_answer(result.error)
        artifacts: list[JsonValue] = [ref.artifact_id for ref in result.artifacts]
        return {"ok": True, "value": result.value, "call_id": result.call_id, "artifacts": artifacts}


def _connection_of(descriptor: int) -> socket.socket | None:
    """Return the connected stream socket that a script has sent; None, and it is closed, for anything else."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    try:
        connection.getpeername()
        if (connection.family, connection.type) == (socket.AF_UNIX, socket.SOCK_STREAM):
            connection.setblocking(False)
            return connection
    except OSError:
        pass  # it is not connected
    connection.close()
    return None


def _parse_request(line: bytes) -> tuple[str, JsonObject]:
    """Return tool and arguments. Raises ToolFailure."""
    asked: Any = loads(line, max_bytes=REQUEST_MAX_BYTES)
    if isinstance(asked, dict):
        tool, args = asked.get("tool"), asked.get("args", {})
        if isinstance(tool, str) and isinstance(args, dict):
            return tool, args
    message = 'A call is one line of JSON: {"tool": "full/name", "args": {…}}.'
    raise refuse(ErrorKind.INVALID_INPUT, message)


def _error_answer(error: ToolError) -> JsonObject:
    return {
        "ok": False,
        "error": {
            "kind": error.kind.value,
            "message": error.message,
            "retryable": error.invites_retry,
            "details": dict(error.details),
        },
    }


def _too_many() -> ToolError:
    return refuse(ErrorKind.RATE_LIMITED, f"A run has {CONNECTIONS_MAX} connections at most. Close some.").error


async def _send(writer: asyncio.StreamWriter, answer: JsonObject) -> None:
    writer.write(dumps(answer) + b"\n")
    await writer.drain()
