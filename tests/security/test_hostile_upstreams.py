"""HTTP servers that frame and fill their answers so that reading them holds everybody up: refused, or read in turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fakes.http_server import RawServer, RecordedRequest, serving
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import error_pb2, result_pb2

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
TEXT, VALUE = "core/http.fetchText", "core/http.fetchJson"


def counted(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


ANSWERS: dict[str, Callable[[], bytes]] = {
    "crumbs": lambda: CHUNKED + b"1\r\nx\r\n" * 100_000 + END,
    "small-chunks": lambda: CHUNKED + b"4\r\nword\r\n" * 10_000 + END,
    "extensions": lambda: CHUNKED + (b"1;" + b"a" * 2_000 + b"\r\nx\r\n") * 1_000 + END,
    "deep": lambda: counted(b"[" + b",".join([b"[" * 50 + b"]" * 50] * 40_000) + b"]"),
    "wide": lambda: counted(b"{" + b",".join(b'"k%d":0' % number for number in range(350_000)) + b"}"),
    "empty-lists": lambda: counted(b"[" + b",".join([b"[]"] * 1_000_000) + b"]"),
    "rows": lambda: counted(json.dumps([{"id": number, "name": "somebody"} for number in range(60_000)]).encode()),
    "brackets": lambda: counted(b"[" * 4_000_000),
}


class UpstreamHarness(NamedTuple):
    hub: RunningHub
    server: RawServer
    sent: asyncio.Event

    async def attacked(self, tool: str, answer: str) -> tuple[result_pb2.ToolResult, int]:
        """The result of the call, and how many turns others had of the event loop once all had been sent."""
        self.sent.clear()
        call = asyncio.create_task(self.hub.invoke(tool, {"url": self.server.url(f"/{answer}")}))
        await asyncio.wait({call, asyncio.create_task(self.sent.wait())}, return_when=asyncio.FIRST_COMPLETED)
        turns = 0
        while not call.done():
            turns += 1
            await asyncio.sleep(0)
        return await call, turns


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[UpstreamHarness]:
    sent = asyncio.Event()

    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(ANSWERS[asked.target.removeprefix("/")]())
        sent.set()
        with suppress(OSError):
            await writer.drain()
        return False

    async with serving(answer) as server:
        egress = f"egress: [{{hosts: [127.0.0.1], ports: [{server.port}], cidrs: [127.0.0.0/8]}}]\n"
        async with running_hub(tmp_path, policy=OPEN_POLICY + egress) as hub:
            yield UpstreamHarness(hub, server, sent)


@pytest.mark.parametrize("answer", ["crumbs", "extensions"])
async def test_an_answer_of_far_more_framing_than_content_is_refused(harness: UpstreamHarness, answer: str) -> None:
    """Fails at befa727: the answer is read to its end, 64 KiB of chunks of a byte without a turn for anybody."""
    result, _ = await harness.attacked(TEXT, answer)
    assert result.error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR
    assert "more framing" in result.error.message


async def test_small_chunks_are_read_in_turns_with_others(harness: UpstreamHarness) -> None:
    """Fails at befa727: others have a turn after thousands of chunks, not after 64."""
    result, turns = await harness.attacked(TEXT, "small-chunks")
    assert result.ok
    assert json.loads(result.result_json)["text"] == "word" * 10_000
    assert turns >= 10_000 / 64


@pytest.mark.parametrize("answer", ["deep", "wide", "empty-lists"])
async def test_json_of_too_many_values_is_refused_before_it_is_parsed(harness: UpstreamHarness, answer: str) -> None:
    """Fails at befa727: each is parsed and checked on the event loop, a tenth of a second to seconds at a time."""
    result, _ = await harness.attacked(VALUE, answer)
    assert result.error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR
    assert "too many small parts" in result.error.message


async def test_endless_nesting_is_refused_as_no_json(harness: UpstreamHarness) -> None:
    result, _ = await harness.attacked(VALUE, "brackets")
    assert result.error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR


async def test_a_large_json_answer_of_an_honest_server_is_read_whole(harness: UpstreamHarness) -> None:
    result, _ = await harness.attacked(VALUE, "rows")
    assert result.ok
    assert json.loads(result.result_json)["json"][0] == {"id": 0, "name": "somebody"}
