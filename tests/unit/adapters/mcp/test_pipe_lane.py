"""Calls over pipes past the SDK's dispatcher: each hears its own answer, and nobody waits for one that cannot come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from mcp import MCPError

from toolhub_service.adapters.mcp.breakage import Breakage, breakage_of
from toolhub_service.adapters.mcp.failures import REQUEST_TIMEOUT, is_closed
from toolhub_service.adapters.mcp.pipe_lane import FIRST_ID, PipeLane
from toolhub_service.adapters.mcp.streams import Outbox


class Pipe:
    """What was written to a program, and its lane."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.outbox = Outbox(self._written)
        self.lane = PipeLane(self.outbox)
        self._more = asyncio.Event()

    async def sent(self, count: int) -> list[dict[str, Any]]:
        """Once so many lines were written."""
        async with asyncio.timeout(60):
            while len(self.lines) < count:
                self._more.clear()
                await self._more.wait()
        return self.lines

    def call(self, **more: Any) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.lane.ask("tools/call", {"name": "echo"}, {}, **more))

    def hear(self, number: object, **members: object) -> bool | None:
        return self.lane.heard({"jsonrpc": "2.0", "id": number, **members})

    def progress(self, token: object, **params: object) -> bool | None:
        params["progressToken"] = token
        return self.lane.heard({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def _written(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        self.lines.append(json.loads(data))
        self._more.set()


@pytest.fixture
async def pipe() -> Pipe:
    return Pipe()


async def test_a_request_is_one_line_and_what_answers_it_is_its_result(pipe: Pipe) -> None:
    calling = pipe.call()
    (line,) = await pipe.sent(1)
    assert line == {"jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call", "params": {"name": "echo"}}
    assert pipe.hear(FIRST_ID, result={"content": []}) is True
    assert await calling == {"content": []}


async def test_answers_in_any_order_reach_the_calls_they_answer(pipe: Pipe) -> None:
    calls = [pipe.call() for _ in range(100)]
    numbers = [line["id"] for line in await pipe.sent(100)]
    for number in reversed(numbers):
        pipe.hear(str(number) if number % 2 else number, result={"n": number})  # some servers make text of numbers
    assert [(await call)["n"] for call in calls] == numbers
    assert len(set(numbers)) == 100


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": FIRST_ID, "method": "ping"},
        {"jsonrpc": "2.0", "id": [FIRST_ID], "result": {}},
        {"jsonrpc": "2.0", "id": True, "result": {}},
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 1}},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": [1]},
        [{"jsonrpc": "2.0", "id": FIRST_ID, "result": {}}],
        "text",
        None,
    ],
)
async def test_what_is_for_somebody_else_is_left_to_them(pipe: Pipe, message: object) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    assert pipe.lane.heard(message) is None
    pipe.hear(FIRST_ID, result={})
    assert await calling == {}


async def test_an_error_is_raised_as_the_server_said_it(pipe: Pipe) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    assert pipe.hear(FIRST_ID, error={"code": -32602, "message": "no such tool", "data": [1]}) is True
    with pytest.raises(MCPError) as caught:
        await calling
    error = caught.value.error
    assert (error.code, error.message, error.data) == (-32602, "no such tool", [1])


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"result": [1]},
        {"result": None},
        {"error": "it broke"},
        {"error": {"code": "1", "message": "x"}},
        {"error": {"code": 1}, "result": {}},
        {"result": {}, "jsonrpc": "1.0"},
    ],
)
async def test_an_answer_that_is_none_fails_its_call_at_once(pipe: Pipe, members: dict[str, object]) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    assert pipe.lane.heard({"jsonrpc": "2.0", "id": FIRST_ID, **members}) is False
    with pytest.raises(MCPError) as caught:
        await calling
    assert breakage_of(caught.value) is Breakage.UNDECODABLE


async def test_an_answer_that_was_not_read_fails_its_call_and_no_other(pipe: Pipe) -> None:
    calling, other = pipe.call(), pipe.call()
    await pipe.sent(2)
    assert pipe.lane.failed(FIRST_ID, Breakage.TOO_LARGE) is True
    assert pipe.lane.failed(3, Breakage.TOO_LARGE) is False
    with pytest.raises(MCPError) as caught:
        await calling
    assert breakage_of(caught.value) is Breakage.TOO_LARGE
    pipe.hear(FIRST_ID + 1, result={})
    assert await other == {}


async def test_progress_is_told_in_order_before_the_call_ends(pipe: Pipe) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(step: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0)
        told.append((step, total, message))

    calling = pipe.call(on_progress=on_progress)
    (line,) = await pipe.sent(1)
    assert line["params"]["_meta"] == {"progressToken": FIRST_ID}
    assert pipe.progress(FIRST_ID, progress=1, total=3, message="one") is True
    assert pipe.progress(FIRST_ID, progress="two") is True
    assert pipe.progress(FIRST_ID, progress=True) is True
    assert pipe.progress(FIRST_ID, progress=2.5, total="many", message=7) is True
    pipe.hear(FIRST_ID, result={})
    await calling
    assert told == [(1, 3, "one"), (2.5, None, None)]
    assert pipe.progress(FIRST_ID, progress=3) is None


async def test_progress_without_end_fills_no_memory_and_the_newest_is_kept(pipe: Pipe) -> None:
    told: list[float] = []

    async def on_progress(step: float, *_: object) -> None:
        told.append(step)

    calling = pipe.call(on_progress=on_progress)
    await pipe.sent(1)
    for step in range(10_000):
        pipe.progress(FIRST_ID, progress=step)
    pipe.hear(FIRST_ID, result={})
    await calling
    assert len(told) < 100
    assert told[-1] == 9_999


async def test_a_call_that_is_cancelled_is_cancelled_over_there(pipe: Pipe) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    cancelled = pipe.lines[1]
    assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", FIRST_ID)
    assert pipe.hear(FIRST_ID, result={}) is None


async def test_a_call_whose_time_is_up_is_cancelled_over_there(pipe: Pipe) -> None:
    with pytest.raises(MCPError) as caught:
        await pipe.call(timeout_s=0.01)
    assert caught.value.error.code == REQUEST_TIMEOUT
    assert [line["method"] for line in pipe.lines] == ["tools/call", "notifications/cancelled"]


async def test_a_call_that_hears_of_progress_for_ever_ends_when_its_time_is_up(pipe: Pipe) -> None:
    async def on_progress(step: float, total: float | None, message: str | None) -> None:
        asyncio.get_running_loop().call_soon(lambda: pipe.progress(FIRST_ID, progress=step + 1))

    calling = pipe.call(on_progress=on_progress, timeout_s=0.01)
    await pipe.sent(1)
    pipe.progress(FIRST_ID, progress=0)
    with pytest.raises(MCPError) as caught:
        await calling
    assert caught.value.error.code == REQUEST_TIMEOUT


async def test_a_program_that_reads_nothing_holds_a_call_no_longer_than_its_time(pipe: Pipe) -> None:
    pipe.outbox.hold(True)
    with pytest.raises(MCPError) as caught:
        await pipe.call(timeout_s=0.01)
    assert caught.value.error.code == REQUEST_TIMEOUT
    assert pipe.lines == []


async def test_the_end_of_the_pipes_fails_calls_under_way_and_those_that_come_later(pipe: Pipe) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    pipe.outbox.end()
    pipe.lane.end()
    for each in (calling, pipe.call()):
        with pytest.raises(MCPError) as caught:
            await each
        assert is_closed(caught.value)
    assert not pipe.lane.is_open


async def test_an_answer_that_came_before_the_end_counts(pipe: Pipe) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    pipe.hear(FIRST_ID, result={"content": []})
    pipe.lane.end()
    assert await calling == {"content": []}
