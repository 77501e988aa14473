"""Calls of a running script, over a Unix socket that only its sandbox sees and that is closed with the run.

One line of JSON is one call, and one line its answer:

    {"token": "…", "tool": "core/fs.readText", "args": {"path": "a.txt"}}
    {"ok": true, "value": {…}}        or   {"ok": false, "error": {"kind": "POLICY_DENIED", "message": "…", …}}

According to the kernel, the client must be the started program or one of its descendants; it must also know the token
of this run. Each call is an inner call of the running one, which determines what it may do.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.strict_json import loads

REQUEST_MAX_BYTES: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 32
_TOKEN_BYTES: Final = 32
_PARENTS_MAX: Final = 64
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class MadeCall:
    tool: str
    call_id: str
    ok: bool


@dataclass(slots=True)
class SocketCarrier:
    """The socket of one run. `calls` are narrowed to what the skill may use."""

    calls: InnerCalls
    purpose: str
    parallel_calls: int
    user: int
    """User whose processes may connect."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES), repr=False)
    root: int = 0
    """The started process; 0: no process may connect yet."""
    made: list[MadeCall] = field(default_factory=list)
    refused_peers: int = 0
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _places: asyncio.Semaphore | None = None

    async def listen(self, path: str) -> None:
        """Start to listen, once. Raises OSError."""
        self._places = asyncio.Semaphore(self.parallel_calls)
        self._server = await asyncio.start_unix_server(self._connected, path, limit=REQUEST_MAX_BYTES)

    async def close(self) -> None:
        """Accept no more calls, and end those under way."""
        if self._server is not None:
            self._server.close()
        self.root = 0
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                await _send(writer, _failed(_too_many()))
            # In addition to the token: a leaked token is useless to a process that is not part of the run.
            elif not self._is_ours(writer.get_extra_info("socket")):
                self.refused_peers += 1
            else:
                await self._answer_all(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the program has ended, or closed its end: nobody waits for an answer
        except asyncio.CancelledError:
            if self.root:  # unless `close`, which awaits it, has done so
                raise
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                message = f"A call has {REQUEST_MAX_BYTES:,} bytes at most. Pass large values as files or artifacts."
                await _send(
                    writer, _failed(refuse(ErrorKind.INVALID_INPUT, message, max_bytes=REQUEST_MAX_BYTES).error)
                )
                return
            if not line:
                return
            answer, keep_open = await self._answer(line)
            await _send(writer, answer)
            if not keep_open:
                return

    async def _answer(self, line: bytes) -> tuple[JsonObject, bool]:
        """Return the answer, and whether the connection stays open: it does not for a wrong token."""
        try:
            asked = _read(line)
        except ToolFailure as failure:
            return _failed(failure.error), False
        if not self._knows(asked["token"]):
            message = "This token is of no run that is under way. A run's token ends with it; use the one it was given."
            return _failed(refuse(ErrorKind.PERMISSION_DENIED, message).error), False
        assert self._places is not None
        async with self._places:
            result = await self.calls.invoke(asked["tool"], asked["args"], purpose=self.purpose)
        self.made.append(MadeCall(result.tool, result.call_id, result.ok))
        if result.error is not None:
            return _failed(result.error), True
        artifacts: list[JsonValue] = [ref.artifact_id for ref in result.artifacts]
        return {"ok": True, "value": result.value, "call_id": result.call_id, "artifacts": artifacts}, True

    def _knows(self, token: str) -> bool:
        return bool(self.root) and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self.token.encode())

    def _is_ours(self, connection: Any) -> bool:
        """Return whether, according to the kernel, the run's program or one of its descendants connected."""
        try:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return False
        pid, user, _ = _CREDENTIALS.unpack(credentials)
        return bool(self.root) and user == self.user and _descends(pid, self.root)


def _descends(pid: int, root: int) -> bool:
    """Return whether a process is another one or its descendant, as far as the parents in between still live."""
    for _ in range(_PARENTS_MAX):
        if pid == root:
            return True
        if pid <= 1:
            return False
        pid = _parent_of(pid)
    return False


def _parent_of(pid: int) -> int:
    """Return the parent's id; 0 when the process has ended."""
    with suppress(OSError, ValueError, IndexError):
        # The name, in parentheses, may contain anything.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _read(line: bytes) -> dict[str, Any]:
    """Return token, tool and arguments. Raises ToolFailure."""
    asked = loads(line, max_bytes=REQUEST_MAX_BYTES)
    if (
        not isinstance(asked, dict)
        or not isinstance(asked.get("token"), str)
        or not isinstance(asked.get("tool"), str)
        or not isinstance(asked.get("args", {}), dict)
    ):
        message = 'A call is one line of JSON: {"token": …, "tool": "full/name", "args": {…}}.'
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return {"args": {}, **asked}


def _failed(error: ToolError) -> JsonObject:
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
