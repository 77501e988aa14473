from __future__ import annotations

import asyncio

import pytest

from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.transport.tool_servicer import StreamSink


async def read(sink: StreamSink) -> list[Progress | Chunk]:
    return [event async for event in sink]


async def test_events_come_in_their_order_and_end_with_the_sink() -> None:
    sink = StreamSink()
    events: list[Progress | Chunk] = [Progress(1), Chunk(b"a"), Progress(2), Chunk(b"b")]
    for event in events:
        sink.progress(event) if isinstance(event, Progress) else sink.chunk(event)
    sink.close()
    assert await read(sink) == events


async def test_progress_that_nobody_read_yet_is_replaced_by_newer() -> None:
    sink = StreamSink()
    for step in range(1_000):
        sink.progress(Progress(step))
    sink.close()
    assert await read(sink) == [Progress(999)]


@pytest.mark.promise("stream.bounded")
async def test_reader_that_is_too_slow_loses_the_oldest_and_the_execution_never_waits() -> None:
    sink = StreamSink()
    for number in range(10_000):
        sink.chunk(Chunk(str(number).encode()))
    sink.close()
    kept = [event.data for event in await read(sink) if isinstance(event, Chunk)]
    assert len(kept) < 2_000
    assert kept == [str(number).encode() for number in range(10_000 - len(kept), 10_000)]


@pytest.mark.promise("stream.bounded")
async def test_output_that_waits_for_a_reader_is_bounded_in_bytes() -> None:
    sink = StreamSink()
    for _ in range(100):
        sink.chunk(Chunk(b"x" * 100_000))
    sink.close()
    assert sum(len(event.data) for event in await read(sink) if isinstance(event, Chunk)) <= 1024 * 1024


async def test_reader_is_woken_by_each_event() -> None:
    sink = StreamSink()
    reading = asyncio.create_task(read(sink))
    await asyncio.sleep(0)
    sink.chunk(Chunk(b"a"))
    await asyncio.sleep(0)
    sink.chunk(Chunk(b"b"))
    sink.close()
    assert await reading == [Chunk(b"a"), Chunk(b"b")]
