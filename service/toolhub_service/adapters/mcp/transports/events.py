"""An event stream of a server: decompressed in bounded steps, counted, and passed on in pieces that cost one turn each.

Counted are its lines, which cost time however short they are, and what is no message (comments, empty events, names of
events) in bytes beside the messages. A stream that breaks a bound ends: the request that it answers fails, and the rest
of its bytes is dropped with the connection. Messages themselves are only slowed down: beyond a burst, a stream is read
at `MESSAGES_PER_S`, and the server feels it as a full pipe.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import orjson

from toolhub_service.adapters.mcp.failures import Breakage, Facts, error_of
from toolhub_service.adapters.mcp.messages.exchanges import Exchange, RequestCancelled
from toolhub_service.adapters.mcp.transports.repairs import is_strict, repair_bytes
from toolhub_service.adapters.mcp.transports.value_counter import count_values
from toolhub_service.aio.cooperative import run_in_slices
from toolhub_service.aio.turnstile import pass_turnstile
from toolhub_service.egress.bodies import Pull
from toolhub_service.egress.breakage import Breakage as WireBreakage
from toolhub_service.egress.breakage import WireError
from toolhub_service.egress.framing import Allowance, Pace, framing_allowance

MESSAGES_FREE: Final = 5_000
MESSAGES_PER_S: Final = 500.0
LINES_A_TURN: Final = 128
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_END_MAX_BYTES: Final = 3  # of an event's end that precede the piece that completes it
_DATA: Final = b"data:"
_SOON: Final = re.compile(rb"(?:^|(?<=[\r\n]))retry: *0*\d{0,3}(?:\r\n|\n|\r)")
_EMPTY_MAX_BYTES: Final = 8  # a line of data that is no message
_HEARTBEAT_MAX_BYTES: Final = 1_024
_HEARTBEATS: Final = ("heartbeat", "keepalive", "keep-alive", "ping")
_OF_MESSAGES: Final = frozenset({"jsonrpc", "id", "method", "result", "error"})


def line_allowance() -> Allowance:
    """Return the lines of one stream: those of whole messages have many times as much content."""
    return Allowance(16 * 1024, bytes_each=16, per_s=50)


class BoundedEvents:
    """The body of the response to one request.

    An event that is too large, or cannot be decompressed, is replaced by one that fails the request which the stream
    answers (the SDK inserts the request's id), and the stream ends.
    """

    def __init__(
        self,
        pull: Pull,
        close: Callable[[], None],
        max_event_bytes: int,
        exchange: Exchange,
        *,
        pace: Pace | None = None,
        on_flood: Callable[[], None] = lambda: None,
    ) -> None:
        """`close` closes the connection. `on_flood` is called when the stream breaks a bound."""
        self._pull = pull
        self._close = close
        self._exchange = exchange
        self._max_event_bytes = max_event_bytes
        self._lines, self._framing = line_allowance(), framing_allowance()
        self._pace = pace or Pace(MESSAGES_FREE, MESSAGES_PER_S)
        self._on_flood = on_flood

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for events in self._whole_events():
                # In slices: counting eight megabytes at once would block every other call.
                if await run_in_slices(count_values(events)):
                    yield _failing_event(Breakage.TOO_MANY)
                    return
                async for piece in self._pieces(events):
                    yield piece
        except WireError as error:
            if error.breakage is WireBreakage.CRUMBLED:
                self._on_flood()
            yield _failing_event(breakage_of_wire(error))
        except RequestCancelled:
            yield _failing_event(Breakage.LOST)

    def close(self) -> None:
        self._close()

    async def _whole_events(self) -> AsyncIterator[bytes]:
        """Yield what has arrived up to the end of an event, and what is left at the end. Raises WireError,
        RequestCancelled."""
        held = bytearray()
        while piece := await self._exchange.wait(self._pull):
            if not self._lines.take(_lines_in(piece), len(piece)):
                raise WireError(WireBreakage.CRUMBLED)
            # Only the new bytes are searched; otherwise a long event would cost the square of its length.
            seen = max(0, len(held) - _END_MAX_BYTES)
            held += piece
            if end := _end_of_events(held, seen):
                events = bytes(held[:end])
                del held[:end]
                yield events
            if len(held) > self._max_event_bytes:
                yield _failing_event(Breakage.TOO_LARGE, {"limit_bytes": self._max_event_bytes})
                return
        if held:
            yield bytes(held)

    async def _pieces(self, events: bytes) -> AsyncIterator[bytes]:
        """Yield the events in pieces of a few lines, whole events where they are short. Raises WireError,
        RequestCancelled."""
        ends = [end for end in _ENDS if end in events]
        at = 0
        while at < len(events):
            if at:
                await self._exchange.wait(pass_turnstile)
            end = _end_of_turn(events, at, ends)
            piece = events[at:end] if at or end < len(events) else events
            await self._count(piece)
            piece = await _repair_events(_without_haste(piece), ends)
            start = 0
            while start < len(piece):  # an event of many lines takes several turns
                if start:
                    await self._exchange.wait(pass_turnstile)
                stop = _end_of_lines(piece, start)
                yield piece[start:stop] if start or stop < len(piece) else piece
                start = stop
            at = end

    async def _count(self, piece: bytes) -> None:
        messages, content_bytes = _messages_in(piece)
        if not self._framing.take(len(piece) - content_bytes, content_bytes):
            raise WireError(WireBreakage.CRUMBLED)
        if (pause_s := self._pace.take(messages)) > 0:
            await self._exchange.wait(lambda: asyncio.sleep(pause_s))


def breakage_of_wire(error: WireError) -> Breakage:
    """Return what broke, as the callers of MCP tools read it."""
    if error.breakage is WireBreakage.CRUMBLED:
        return Breakage.FLOODED
    is_garbled = error.breakage in (WireBreakage.UNDECODABLE, WireBreakage.MALFORMED)
    return Breakage.UNDECODABLE if is_garbled else Breakage.LOST


def _lines_in(piece: bytes) -> int:
    return piece.count(b"\n") + (piece.count(b"\r") - piece.count(b"\r\n") if b"\r" in piece else 0)


def _without_haste(piece: bytes) -> bytes:
    """Return the piece without times to reconnect of less than a second: the SDK would ask again in a busy loop."""
    return _SOON.sub(b"", piece) if b"retry:" in piece else piece


def _messages_in(piece: bytes) -> tuple[int, int]:
    """Return the number of lines with data, and the bytes of these; comments and empty data are not counted."""
    lines = [line for line in piece.splitlines() if line.startswith(_DATA) and len(line) > _EMPTY_MAX_BYTES]
    return len(lines), sum(map(len, lines))


def _end_of_turn(events: bytes, start: int, ends: Sequence[bytes]) -> int:
    """Return the end of the events that one turn may pass on: a few lines, or one event."""
    at = start
    while at < len(events):
        found = [(place, place + len(end)) for end in ends if (place := events.find(end, at)) >= 0]
        after = min(found)[1] if found else len(events)
        if at > start and _lines_in(events[start:after]) > LINES_A_TURN:
            break
        at = after
    return at


def _end_of_lines(piece: bytes, start: int) -> int:
    """Return the end of the lines that one turn may parse."""
    at = start
    for _ in range(LINES_A_TURN):
        ends = [place for sign in (b"\n", b"\r") if (place := piece.find(sign, at)) >= 0]
        if not ends:
            return len(piece)
        at = min(ends) + 1
    return at


def _end_of_events(held: bytearray, start: int) -> int:
    """Return the end of the last whole event, searching from `start`; 0 when there is none."""
    found = ((held.rfind(end, start), len(end)) for end in _ENDS)
    return max(at + length if at >= 0 else 0 for at, length in found)


async def _repair_events(piece: bytes, ends: Sequence[bytes]) -> bytes:
    """Return the piece with the JSON of each event strict."""
    data = _data_of(piece)
    if not data or (is_strict(data) and data.count(b"\n") < data.count(b'"jsonrpc"')):
        return piece
    # Several events, of which each is looked at, or one that is to be repaired.
    events, at = list[bytes](), 0
    while at < len(piece):
        found = [(place, place + len(end)) for end in ends if (place := piece.find(end, at)) >= 0]
        after = min(found)[1] if found else len(piece)
        events.append(await _repair_event(piece[at:after]))
        at = after
    return b"".join(events)


async def _repair_event(event: bytes) -> bytes:
    data = _data_of(event)
    if data and _is_heartbeat(data):
        return b""
    mended = await repair_bytes(data) if data else data
    if mended == data:
        return event
    others = [line for line in event.splitlines() if line and not line.startswith(_DATA)]
    return b"\n".join([*others, _DATA + b" " + mended]) + b"\n\n"


def _is_heartbeat(data: bytes) -> bool:
    """Return whether it is JSON of that type and no message, as some servers send it to keep a stream open."""
    if len(data) > _HEARTBEAT_MAX_BYTES:
        return False
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and not found.keys() & _OF_MESSAGES and found.get("type") in _HEARTBEATS


def _data_of(event: bytes) -> bytes:
    return b"\n".join(line[len(_DATA) :].removeprefix(b" ") for line in event.splitlines() if line.startswith(_DATA))


def _failing_event(breakage: Breakage, facts: Facts | None = None) -> bytes:
    return b"event: message\ndata: " + failing_message(breakage, facts) + b"\n\n"


def failing_message(breakage: Breakage, facts: Facts | None = None) -> bytes:
    """Return a JSON-RPC error without an id, which fails the request that it answers."""
    return orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error_of(breakage, facts)})
