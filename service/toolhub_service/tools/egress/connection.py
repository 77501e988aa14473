"""HTTP/1.1 on one connection (RFC 9112), with h11 as the state machine: one request, one response, then maybe another.

The head of a response is bounded at 64 KiB and 256 fields, interim responses by number. A connection may be used again
only when both sides are done, it is quiet and nothing is left over: a second, unasked response would answer the next
request.
"""

from __future__ import annotations

import h11

from toolhub_service.tools.egress.breakage import Breakage, WireError
from toolhub_service.tools.egress.stream import Stream

HEAD_MAX_BYTES = 64 * 1024
FIELDS_MAX = 256
_INTERIM_MAX = 16


class HttpConnection:
    """One connection to one origin."""

    def __init__(self, stream: Stream, address: str, *, idle_timeout_s: float) -> None:
        """`idle_timeout_s`: how long the server may send nothing while it owes us something."""
        self.address = address
        """The literal address that was dialled."""
        self._stream = stream
        self._idle_timeout_s = idle_timeout_s
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX_BYTES)

    @property
    def usable(self) -> bool:
        """Whether an idle connection can carry another request."""
        return self._stream.quiet

    async def send(self, request: h11.Request, body: bytes) -> h11.Response:
        """Send the request and return the head of the final response. Raises WireError."""
        output = self._http.send(request) or b""
        if body:
            output += self._http.send(h11.Data(data=body)) or b""
        self._stream.write(output + (self._http.send(h11.EndOfMessage()) or b""))
        for _ in range(_INTERIM_MAX):
            event = await self._next_event()
            if isinstance(event, h11.Response) and _is_bounded(event):
                return event
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                break
        raise WireError(Breakage.MALFORMED)

    async def next_chunk(self) -> bytes:
        """The next bytes of the body as they were sent, at most about 512 KiB; empty at its end. Raises WireError."""
        while self._http.their_state is h11.SEND_BODY:
            event = await self._next_event()
            if isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
        return b""

    def finish(self) -> bool:
        """Whether the exchange is complete and the connection is ready for the next one."""
        if self._http.their_state is h11.SEND_BODY and not self._body_has_arrived():
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        leftover, _ = self._http.trailing_data
        if leftover or not self._stream.quiet:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        """Close the descriptor at once."""
        self._stream.close()

    def _body_has_arrived(self) -> bool:
        """Whether what is left of the body is here already; it is dropped. Nothing is waited for."""
        try:
            while isinstance(event := self._http.next_event(), h11.Data):
                continue
        except h11.RemoteProtocolError:
            return False
        return isinstance(event, h11.EndOfMessage)

    async def _next_event(self) -> object:
        has_ended = False
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._stream.read(self._idle_timeout_s)
                has_ended = not data
                self._http.receive_data(data)
        except h11.RemoteProtocolError:
            raise WireError(Breakage.BROKEN if has_ended else Breakage.MALFORMED) from None
        if isinstance(event, h11.ConnectionClosed):
            raise WireError(Breakage.BROKEN)
        return event


def _is_bounded(head: h11.Response) -> bool:
    """h11 bounds only a head that has not arrived whole."""
    fields = head.headers
    return len(fields) <= FIELDS_MAX and sum(len(name) + len(value) for name, value in fields) <= HEAD_MAX_BYTES
