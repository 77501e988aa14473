"""Lines of a pipe are passed on a few per turn, in order, and not at all once the server is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolhub_service.adapters.mcp.transports.lines import Lines
from toolhub_service.adapters.mcp.transports.pump import LINES_A_TURN, WAITING_MAX_BYTES, LinePump
from toolhub_service.adapters.mcp.transports.stdio import GARBAGE_MAX, PipeProtocol


class PumpHarness:
    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.paused: list[bool] = []
        self.pump = LinePump(Lines(1_000), self.taken.append, self.paused.append)

    async def turns_until(self, count: int) -> list[int]:
        """How many lines were taken in each turn until so many were."""
        sizes = []
        while len(self.taken) < count:
            before = len(self.taken)
            await asyncio.sleep(0)
            sizes.append(len(self.taken) - before)
        return sizes


async def test_a_few_lines_are_passed_on_at_once() -> None:
    harness = PumpHarness()
    harness.pump.feed(b"one\ntwo\nthr")
    harness.pump.feed(b"ee\n")
    assert harness.taken == [b"one", b"two", b"three"]


async def test_many_lines_take_many_turns_and_keep_their_order() -> None:
    harness, lines = PumpHarness(), [b"%d" % number for number in range(5_000)]
    harness.pump.feed(b"\n".join(lines[:4_000]) + b"\n")
    harness.pump.feed(b"\n".join(lines[4_000:]) + b"\n")
    sizes = await harness.turns_until(5_000)
    assert max(sizes) <= LINES_A_TURN
    assert harness.taken == lines


async def test_nothing_is_passed_on_while_it_is_held_and_all_of_it_afterwards() -> None:
    harness = PumpHarness()
    harness.pump.hold("full")
    harness.pump.hold("pace")
    harness.pump.feed(b"x\n" * 100)
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.taken == []
    harness.pump.release("full")
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.taken == []
    harness.pump.release("pace")
    await harness.turns_until(100)
    assert harness.paused == [True, False]


async def test_the_pipe_is_not_read_while_much_waits() -> None:
    harness = PumpHarness()
    size = 64 * 1024
    for _ in range(WAITING_MAX_BYTES // size + 1):
        harness.pump.feed(b"x\n" * (size // 2))
    assert harness.paused == [True]
    await harness.turns_until((WAITING_MAX_BYTES // size + 1) * size // 2)
    assert harness.paused == [True, False]


async def test_a_stopped_pump_drops_what_waits_and_what_comes() -> None:
    harness = PumpHarness()
    harness.pump.feed(b"x\n" * 10_000)
    await harness.turns_until(LINES_A_TURN)
    harness.pump.stop()
    taken = len(harness.taken)
    harness.pump.feed(b"x\n" * 10)
    for _ in range(500):
        await asyncio.sleep(0)
    assert len(harness.taken) == taken


async def test_the_end_comes_after_the_lines_that_were_read() -> None:
    harness, ended = PumpHarness(), asyncio.Event()
    harness.pump.feed(b"x\n" * 1_000)
    harness.pump.finish(ended.set)
    assert not ended.is_set()
    harness.pump.feed(b"too late\n")
    async with asyncio.timeout(60):
        await ended.wait()
    assert harness.taken == [b"x"] * 1_000


@pytest.mark.parametrize("line", [b"{}", b"[]", b"1", b'{"jsonrpc":"2.0"}', b'{"id":4,"method":7}'])
async def test_of_a_flood_of_lines_that_are_no_messages_hardly_more_is_parsed_than_gives_it_up(line: bytes) -> None:
    """Fails at 513ce725: all twenty thousand are parsed, in one turn of the loop."""
    ended: list[str] = []
    wire = PipeProtocol(1_000_000, ended.append)
    wire.pipe_data_received(1, (line + b"\n") * 20_000)
    turns = 0
    while not ended:
        await asyncio.sleep(0)
        turns += 1
    wire.pipe_data_received(1, (line + b"\n") * 20_000)
    for _ in range(200):
        await asyncio.sleep(0)
    assert wire._garbage <= GARBAGE_MAX + LINES_A_TURN
    assert turns >= GARBAGE_MAX / LINES_A_TURN


async def test_an_answer_that_a_program_wrote_before_it_ended_reaches_its_call() -> None:
    ended: list[str] = []
    wire = PipeProtocol(1_000_000, ended.append)
    wire.pipe_data_received(1, b"log\n" * 500 + b'{"jsonrpc":"2.0","id":7,"result":{}}\n')
    wire.pipe_connection_lost(1, None)
    async with asyncio.timeout(60):
        item: Any = await wire.inbox.receive()
    assert item.message.id == 7
