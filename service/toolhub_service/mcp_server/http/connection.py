"""Connections of the MCP port: `RequestFraming` reads their requests, one at a time, and an ASGI application answers.

There is no second parser behind the framing, which could read a request in another way. A connection tells the acceptor
whether it is idle, and is closed when the head of a request, the rest of a refused one, or the next request takes too
long.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import ssl
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

from toolhub_service.guards.accepting import Accepted
from toolhub_service.guards.http_framing import Arrived, RequestFraming, RequestHead, RequestRefused
from toolhub_service.mcp_server.caller import PRINCIPAL
from toolhub_service.mcp_server.http.admission import CLIENT_CHAIN, App, Message, Scope, refusal_body

_KEEP_ALIVE_S: Final = 60.0
# An answer of which the client takes nothing for so long is aborted.
_SEND_STALL_S: Final = 60.0
# A body that nobody reads yet waits in the kernel beyond this.
_BODY_HELD_MAX_BYTES: Final = 65_536
# A larger answer is not copied behind its head.
_ONE_WRITE_MAX_BYTES: Final = 65_536
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED: Final = b"HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_UNSAFE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY: Final = frozenset({204, 304})


class Connections:
    """All connections of a port, until `close`."""

    def __init__(self, app: App, head_s: float) -> None:
        """`head_s`: timeout for the head of a request to arrive."""
        self.app = app
        self.head_s = head_s
        self.open: set[HttpConnection] = set()
        self.answering: set[asyncio.Task[None]] = set()
        self.is_leaving = False

    def add(self, accepted: Accepted) -> HttpConnection:
        return HttpConnection(self, accepted)

    async def close(self, grace_s: float) -> None:
        """Close those that are idle, the others once their request is answered, and all of them after `grace_s`."""
        self.is_leaving = True
        for connection in list(self.open):
            connection.leave()
        if self.answering:
            _, late = await asyncio.wait(self.answering, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for connection in list(self.open):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    def __init__(self, connections: Connections, accepted: Accepted) -> None:
        self._connections = connections
        self._accepted = accepted
        self._framing = RequestFraming()
        self._request: HttpRequest | None = None
        self._transport: Any = None
        self._end: dict[str, Any] = {}
        """What the scope of each request says of this connection."""
        self._chain: tuple[bytes, ...] = ()
        self._loop = asyncio.get_running_loop()
        # Without what a request before has set, such as its caller.
        self._context = contextvars.copy_context()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_due = False
        """Whether the deadline is that of what has begun to arrive."""
        self._going_on: asyncio.Handle | None = None
        self._is_reading = True
        self._is_refused = False
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._accepted.abort = self.abort
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None:
            self._chain = _shown_chain(encrypted)
        self._end = {
            "scheme": "http" if encrypted is None else "https",
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }
        self._connections.open.add(self)
        self._expect_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.discard(self)
        self._accepted.end()
        self._stop_waiting()
        self._writable.set()
        if self._request is not None:
            self._request.lose()

    def abort(self) -> None:
        self._transport.abort()

    def leave(self) -> None:
        """Close the connection now, or when the request that is under way has been answered."""
        if self._request is None or self._request.is_answered:
            self._close()

    # What arrives

    def data_received(self, data: bytes) -> None:
        if not self._is_refused and not self._transport.is_closing():
            self._read(self._framing.take, data)

    def _go_on(self) -> None:
        """Begin the next request."""
        self._going_on = None
        if not self._transport.is_closing():
            self._read(self._framing.go_on)

    def _read(self, framed: Callable[..., Arrived], *data: bytes) -> None:
        try:
            head, content = framed(*data)
        except RequestRefused as refused:
            self._refuse(refused)
            return
        if head is not None:
            self._begin(head)
        request = self._request
        if request is not None and not request.is_answered:
            request.take(content, is_whole=self._framing.is_whole)
        elif self._framing.is_whole:  # a request that was answered before its end, such as one without a valid key
            self._rest()
        elif not self._framing.is_between and not self._is_due:
            self._expect_rest()
        self.regulate()

    def _begin(self, head: RequestHead) -> None:
        self._stop_waiting()
        self._accepted.begin()
        path, _, query = head.target.partition(b"?")
        text = path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "method": head.method,
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.fields,
            "state": {},
            **self._end,
        }
        self._request = HttpRequest(self, scope)
        task = self._loop.create_task(
            self._request.run(self._connections.app, self._chain), context=self._context.copy()
        )
        self._connections.answering.add(task)
        task.add_done_callback(self._connections.answering.discard)

    def _refuse(self, refused: RequestRefused) -> None:
        """Answer, unless the answer to an earlier request is on its way, and close: what follows cannot be read."""
        self._is_refused = True
        request = self._request
        if request is None or request.is_answered or not request.is_begun:
            body = refusal_body(refused.message)
            head = f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)
        if request is not None:
            request.lose()
        self._close()

    def regulate(self) -> None:
        """Read on only while there is a place for what arrives: the rest waits in the kernel."""
        framing, request = self._framing, self._request
        is_full = framing.is_whole and framing.held_bytes > 0
        if request is not None and request.held_bytes > _BODY_HELD_MAX_BYTES:
            is_full = True
        if is_full != self._is_reading or self._transport.is_closing():
            return
        self._is_reading = not is_full
        if is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # What is sent

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client takes what was written. Raises OSError, and closes the connection, when it does not."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(_SEND_STALL_S):
                await self._writable.wait()
        except TimeoutError as stalled:
            self.abort()
            raise OSError("the client takes nothing of its answer") from stalled

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def mark_answered(self, request: HttpRequest) -> None:
        """The answer has been written: wait for the next request, or close."""
        self._accepted.rest(is_known=PRINCIPAL in request.scope)
        if self._transport.is_closing():
            return
        if not request.is_kept or self.is_leaving:
            self._close()
            return
        self._rest()
        self.regulate()

    @property
    def is_leaving(self) -> bool:
        return self._connections.is_leaving

    def _rest(self) -> None:
        """Be idle. The next request begins once this one has arrived to its end, after what other connections sent."""
        if not self._framing.is_whole:
            self._expect_rest()
            return
        self._close_after(_KEEP_ALIVE_S, self._close)
        if not self._framing.held_bytes:
            self._framing.go_on()
        elif self._going_on is None:
            self._going_on = self._loop.call_soon(self._go_on, context=self._context)

    def _close(self) -> None:
        """Close once everything is written, or nobody has taken it for long."""
        self._transport.close()
        self._close_after(_KEEP_ALIVE_S, self.abort)

    def _expect_rest(self) -> None:
        self._close_after(self._connections.head_s, self.abort)
        self._is_due = True

    def _close_after(self, seconds: float, close: Callable[[], None]) -> None:
        self._stop_waiting()
        self._deadline = self._loop.call_later(seconds, close)

    def _stop_waiting(self) -> None:
        self._is_due = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class HttpRequest:
    """A request that is read and answered: what an ASGI application receives and sends."""

    def __init__(self, connection: HttpConnection, scope: Scope) -> None:
        self.scope = scope
        self.is_begun = False
        """Whether its answer is on its way."""
        self.is_answered = False
        fields = scope["headers"]
        is_newer = scope["http_version"] == "1.1"
        said = b",".join(value for name, value in fields if name == b"connection").lower()
        self.is_kept = is_newer and b"close" not in [each.strip() for each in said.split(b",")]
        """Whether the connection stays open after it."""
        self._connection = connection
        self._waits_for_continue = is_newer and (b"expect", b"100-continue") in [
            (name, value.lower()) for name, value in fields if name == b"expect"
        ]
        self._body = bytearray()
        self._is_whole = False
        self._is_lost = False
        self._changed = asyncio.Event()
        self._held_head = b""
        """The head of an answer whose body follows at once."""
        self._has_body = scope["method"] != "HEAD"
        self._is_chunked = False
        self._left: int | None = None
        """Bytes of the answer that are still to be sent, where it says its length."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the body that the application has not taken."""
        return len(self._body)

    def take(self, content: bytes, *, is_whole: bool) -> None:
        """Take what has arrived of the body."""
        self._body += content
        self._is_whole = is_whole
        if content or is_whole:
            self._changed.set()

    def lose(self) -> None:
        """Its connection is closed: nothing more arrives, and nobody reads the answer."""
        self._is_lost = True
        self._changed.set()

    async def run(self, app: App, chain: tuple[bytes, ...]) -> None:
        """`chain`: certificates that the client has presented."""
        CLIENT_CHAIN.set(chain)
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - no text of it may reach the client, and the log has it from the endpoint
            self._fail()
        finally:
            if not self.is_answered:
                self._fail()

    def _fail(self) -> None:
        """Close without the rest of an answer."""
        if self._is_lost or self.is_answered:
            return
        if not self.is_begun or self._held_head:
            self._connection.write(_FAILED)
        self.is_begun = self.is_answered = True
        self.is_kept = False
        self._connection.mark_answered(self)

    async def receive(self) -> Message:
        if self._waits_for_continue and not (self.is_begun or self._is_whole):
            self._connection.write(_CONTINUE)
        self._waits_for_continue = False
        if not (self._is_lost or self.is_answered):
            await self._changed.wait()
            self._changed.clear()
        if self._is_lost or self.is_answered:
            return {"type": "http.disconnect"}
        body = bytes(self._body)
        self._body.clear()
        self._connection.regulate()
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}

    async def send(self, message: Message) -> None:
        await self._connection.drain()
        if self._is_lost:
            return
        if self.is_answered or (message["type"] == "http.response.start") is self.is_begun:
            raise RuntimeError(f"{message['type']} does not follow what was sent before")
        if not self.is_begun:
            self._begin_answer(message["status"], message.get("headers", ()))
            return
        is_last = not message.get("more_body", False)
        self._write_body(message.get("body", b""), is_last=is_last)
        if is_last:
            self.is_answered = True
            self._body.clear()
            self._changed.set()
            self._connection.mark_answered(self)

    def _begin_answer(self, status: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [_status_line(status), _date_line(int(time.time()))]
        for name, value in fields:
            if _UNSAFE.search(name) or _UNSAFE.search(value):
                raise RuntimeError("a header of the answer has control characters")
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection":  # said below
                self.is_kept = self.is_kept and value.lower() != b"close"
                continue
            lines.append(b"%s: %s\r\n" % (name, value))
        self._has_body = self._has_body and status not in _WITHOUT_BODY
        if self._left is None and self._has_body and self.scope["http_version"] == "1.1":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if self._connection.is_leaving:
            self.is_kept = False
        if not self.is_kept:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self.is_begun = True
        head = b"".join(lines)
        if self._left is None:
            self._connection.write(head)
        else:
            self._held_head = head

    def _write_body(self, data: bytes, *, is_last: bool) -> None:
        if not self._has_body:
            data = b""
        elif self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (is_last and self._left):
                raise RuntimeError("the answer has another length than it says")
        elif self._is_chunked:
            data = (b"%x\r\n%s\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if is_last else b"")
        head, self._held_head = self._held_head, b""
        if head and len(data) > _ONE_WRITE_MAX_BYTES:
            self._connection.write(head)
            head = b""
        if head or data:
            self._connection.write(head + data)


@lru_cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


@lru_cache(maxsize=1)
def _date_line(now_unix_s: int) -> bytes:
    return f"date: {formatdate(now_unix_s, usegmt=True)}\r\n".encode()


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def _shown_chain(encrypted: ssl.SSLObject) -> tuple[bytes, ...]:
    """Return the chain as PEM; empty where the client has presented no certificate.

    Before Python 3.13 only the client's own certificate can be read, so a CA that the hub trusts must have signed it.
    """
    own = encrypted.getpeercert(binary_form=True)
    if own is None:
        return ()
    sent: Any = getattr(encrypted, "get_unverified_chain", None)
    chain: list[bytes] = [own] if sent is None else sent()
    return tuple(ssl.DER_cert_to_PEM_cert(der).encode() for der in chain)
