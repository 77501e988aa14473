"""Event streams: counted, cut into turns, repaired, and passed on unchanged where they are honest."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx2
import pytest

from toolhub_service.adapters.mcp.failures import Breakage
from toolhub_service.adapters.mcp.messages.exchanges import Exchange
from toolhub_service.adapters.mcp.messages.http import Answer
from toolhub_service.adapters.mcp.transports.events import LINES_A_TURN, BoundedEvents
from toolhub_service.adapters.mcp.transports.repairs import take_remarks
from toolhub_service.adapters.mcp.transports.sdk_transport import response_of
from toolhub_service.egress.bodies import decoder_of
from toolhub_service.egress.framing import Pace

ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 100}}


def event(message: Any, end: str = "\n") -> bytes:
    return f"event: message{end}data: {json.dumps(message)}{end}{end}".encode()


class StreamHarness:
    """A stream whose bytes arrive in pieces of that size."""

    def __init__(self, raw: bytes, size: int = 65_536, encoding: str = "", pace: Pace | None = None) -> None:
        pieces = iter([raw[start : start + size] for start in range(0, len(raw), size)])
        self.pulled = 0
        self.floods = 0

        async def pull() -> bytes:
            self.pulled += 1
            return next(pieces, b"")

        def close() -> None: ...

        def flooded() -> None:
            self.floods += 1

        self.events = BoundedEvents(
            decoder_of(encoding, pull), close, 1_000_000, Exchange(), pace=pace, on_flood=flooded
        )

    async def pieces(self) -> list[bytes]:
        return [piece async for piece in self.events]

    async def messages(self) -> list[Any]:
        """The messages as the SDK's own parser reads them."""
        response = response_of(Answer(200, [(b"content-type", b"text/event-stream")], events=self.events))
        response.request = httpx2.Request("POST", "http://a.example")
        return [json.loads(each.data) async for each in httpx2.EventSource(response, max_event_size=None) if each.data]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 1_000, 65_536])
async def test_honest_events_arrive_unchanged_in_pieces_of_any_size(end: str, size: int) -> None:
    sent = [{"n": number, "text": "é" * number} for number in range(100)]
    raw = f": hello{end}{end}".encode() + b"".join(event(message, end) for message in sent)
    assert b"".join(await StreamHarness(raw, size).pieces()) == raw
    assert await StreamHarness(raw, size).messages() == sent


async def test_an_event_of_many_lines_is_one_message_and_takes_several_turns() -> None:
    lines = json.dumps(list(range(1_000)), indent=8).splitlines()
    raw = b"".join(b"data: " + line.encode() + b"\n" for line in lines) + b"\n"
    pieces = await StreamHarness(raw).pieces()
    assert len(pieces) >= len(lines) / LINES_A_TURN
    assert await StreamHarness(raw).messages() == [list(range(1_000))]


FLOODS = {
    "empty events": b"data:\n\n",
    "events of a blank": b"data: \n\n",
    "comments": b":\n\n",
    "long comments": b": " + b"x" * 500 + b"\n\n",
    "names": b"event: message\n\n",
    "ids": b"id: 1\nevent: message\n\n",
    "line ends": b"\n",
    "carriage returns": b"\r",
    "lines of one event": b"data:x\n",
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_a_stream_that_carries_nothing_is_given_up_after_a_bounded_number_of_pieces(
    flood: bytes, encoding: str
) -> None:
    """Fails at 513ce725: each is read to its end, thousands of events in one turn of the loop."""
    raw = flood * (8_000_000 // len(flood))
    harness = StreamHarness(gzip.compress(raw, 1) if encoding else raw, encoding=encoding)
    pieces = await harness.pieces()
    assert Breakage.FLOODED.value.encode() in pieces[-1]
    assert harness.floods == 1
    assert harness.pulled < 40, "the rest was not read"
    assert max(piece.count(b"\n") + piece.count(b"\r") for piece in pieces) <= LINES_A_TURN + 4


async def test_messages_beyond_a_burst_are_read_at_a_pace_and_none_is_lost() -> None:
    now_s = 0.0
    pace = Pace(10, 1_000_000.0, now_s=lambda: now_s)
    sent = [{"n": number} for number in range(200)]
    assert await StreamHarness(b"".join(map(event, sent)), 100, pace=pace).messages() == sent


async def test_others_run_between_the_pieces_of_a_large_burst() -> None:
    reading = asyncio.create_task(StreamHarness(event(ANSWER) * 4_000).pieces())
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 4_000 * 3 / LINES_A_TURN


HALF = rb'{"jsonrpc":"2.0","id":1,"result":{"text":"bad \ud83d half"}}'


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (HALF, "bad \ufffd half"),
        (HALF.replace(b"\\ud83d", b"\xff"), "bad \ufffd half"),
        (HALF.replace(b"\\ud83d", b"\x01"), "bad \x01 half"),
        (HALF.replace(rb'"bad \ud83d half"', b"NaN"), None),
        (HALF.replace(rb'"bad \ud83d half"', b"9" * 5_000), "9" * 5_000),
    ],
)
@pytest.mark.parametrize("before", [b"", b": hello\n\n", event({"jsonrpc": "2.0", "method": "x"})])
async def test_json_that_strict_parsers_refuse_is_repaired_with_a_remark(
    data: bytes, text: str | None, before: bytes
) -> None:
    raw = before + b"id: 7\nevent: message\ndata: " + data + b"\n\n" + event(ANSWER)
    *_, mended, last = await StreamHarness(raw).messages()
    result, remarks = take_remarks(mended["result"])
    assert (result["text"], len(remarks)) == (text, 1)
    assert last == ANSWER


async def test_a_data_line_that_is_no_json_at_all_is_left_to_the_parser() -> None:
    raw = b"data: {not json\n\n" + event(ANSWER)
    assert b"".join(await StreamHarness(raw).pieces()) == raw


@pytest.mark.parametrize("retry", [b"retry: 0", b"retry:999", b"retry: 000"])
async def test_a_server_cannot_have_the_hub_reconnect_in_a_busy_loop(retry: bytes) -> None:
    raw = retry + b"\n" + event(ANSWER) + b"retry: 5000\n" + event(ANSWER)
    read = b"".join(await StreamHarness(raw).pieces())
    assert retry not in read
    assert b"retry: 5000\n" in read
