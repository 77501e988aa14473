"""Calls over a program's pipes: each gets its own answer, and none waits for one that cannot come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import ClientSession, MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import REQUEST_TIMEOUT, ClientCapabilities, Implementation

from toolhub_service.adapters.mcp.failures import Breakage, breakage_of, is_closed
from toolhub_service.adapters.mcp.requests import RequestSender
from toolhub_service.adapters.mcp.transports.inbox import SPARE_ANSWERS_MAX
from toolhub_service.adapters.mcp.transports.stdio import PipeProtocol

MAX_BYTES = 100_000


class FakePipe(PipeProtocol):
    """What was written to a program that is not there, and what it answers."""

    def __init__(self, way: str) -> None:
        super().__init__(MAX_BYTES, lambda _: None)
        self.dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(self.inbox, self.outbox)
        client = Implementation(name="hub", version="1")
        fast = self.calls if way == "short" else None
        self.requests = RequestSender(self.dispatcher, "2025-11-25", client, ClientCapabilities(), fast)
        self.lines: list[dict[str, Any]] = []
        self._more = asyncio.Event()

    async def sent(self, count: int) -> list[dict[str, Any]]:
        """Once so many lines were written."""
        async with asyncio.timeout(60):
            while len(self.lines) < count:
                self._more.clear()
                await self._more.wait()
        return self.lines

    def call(self, **more: Any) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.requests.send("tools/call", {"name": "echo"}, **more))

    def reply(self, **members: object) -> None:
        self.pipe_data_received(1, json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n")

    def progress(self, token: object, **params: object) -> None:
        self.reply(method="notifications/progress", params={"progressToken": token, **params})

    def _write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        self.lines.append(json.loads(data))
        self._more.set()


@pytest.fixture(params=["short", "sdk"])
async def pipe(request: pytest.FixtureRequest) -> AsyncIterator[FakePipe]:
    pipe, is_open, over = FakePipe(request.param), asyncio.Event(), asyncio.Event()

    async def own() -> None:
        """The SDK's session is left by the task that entered it."""
        async with ClientSession(dispatcher=pipe.dispatcher):
            is_open.set()
            await over.wait()

    owner = asyncio.create_task(own())
    await is_open.wait()
    yield pipe
    over.set()
    await owner


async def test_a_request_is_one_line_and_what_answers_it_is_its_result(pipe: FakePipe) -> None:
    calling = pipe.call()
    (line,) = await pipe.sent(1)
    assert (line["jsonrpc"], line["method"], line["params"]["name"]) == ("2.0", "tools/call", "echo")
    pipe.reply(id=line["id"], result={"content": []})
    assert await calling == {"content": []}


async def test_answers_in_any_order_reach_the_calls_they_answer(pipe: FakePipe) -> None:
    calls = [pipe.call() for _ in range(100)]
    numbers = [line["id"] for line in await pipe.sent(100)]
    for number in reversed(numbers):
        pipe.reply(id=str(number) if number % 2 else number, result={"n": number})  # some servers make text of numbers
    assert [(await call)["n"] for call in calls] == numbers
    assert len(set(numbers)) == 100


async def test_an_error_is_raised_as_the_server_sent_it(pipe: FakePipe) -> None:
    calling = pipe.call()
    (line,) = await pipe.sent(1)
    pipe.reply(id=line["id"], error={"code": -32602, "message": "no such tool", "data": [1]})
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
        {"error": {"code": "one", "message": "x"}},
        {"result": {}, "jsonrpc": "1.0"},
    ],
)
async def test_an_answer_that_is_none_fails_its_call_at_once(pipe: FakePipe, members: dict[str, object]) -> None:
    calling = pipe.call()
    (line,) = await pipe.sent(1)
    pipe.reply(**{"id": line["id"], **members})
    with pytest.raises(MCPError) as caught:
        await calling
    assert breakage_of(caught.value) is Breakage.UNDECODABLE


async def test_an_answer_that_is_too_large_fails_its_call_and_no_other(pipe: FakePipe) -> None:
    calling, other = pipe.call(), pipe.call()
    lines = await pipe.sent(2)
    pipe.reply(id=lines[0]["id"], result={"text": "x" * MAX_BYTES})
    with pytest.raises(MCPError) as caught:
        await calling
    assert breakage_of(caught.value) is Breakage.TOO_LARGE
    pipe.reply(id=lines[1]["id"], result={})
    assert await other == {}


async def test_progress_is_reported_in_order_and_the_newest_of_much_arrives(pipe: FakePipe) -> None:
    reports: list[tuple[float, float | None, str | None]] = []
    newest = asyncio.Event()

    async def on_progress(step: float, total: float | None, message: str | None) -> None:
        reports.append((step, total, message))
        if step == 9_999:
            newest.set()

    calling = pipe.call(on_progress=on_progress)
    (line,) = await pipe.sent(1)
    assert line["params"]["_meta"] == {"progressToken": line["id"]}
    pipe.progress(line["id"], progress=1, total=3, message="one")
    pipe.progress(line["id"], progress="two")
    pipe.progress(7_777, progress=1)
    for step in range(2, 10_000):
        pipe.progress(line["id"], progress=step)
    async with asyncio.timeout(60):
        await newest.wait()
    pipe.reply(id=line["id"], result={})
    await calling
    assert reports[:1] == [(1, 3, "one")]
    assert [step for step, _, _ in reports] == sorted(step for step, _, _ in reports)


async def test_a_cancelled_call_is_cancelled_upstream(pipe: FakePipe) -> None:
    calling = pipe.call()
    (line,) = await pipe.sent(1)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    cancelled = (await pipe.sent(2))[1]
    assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", line["id"])
    pipe.reply(id=line["id"], result={})


async def test_a_call_whose_time_is_up_is_cancelled_upstream(pipe: FakePipe) -> None:
    with pytest.raises(MCPError) as caught:
        await pipe.call(timeout_s=0.01)
    assert caught.value.error.code == REQUEST_TIMEOUT
    assert [line["method"] for line in await pipe.sent(2)] == ["tools/call", "notifications/cancelled"]


async def test_a_call_with_progress_for_ever_ends_when_its_time_is_up(pipe: FakePipe) -> None:
    async def on_progress(step: float, total: float | None, message: str | None) -> None:
        asyncio.get_running_loop().call_soon(lambda: pipe.progress(pipe.lines[0]["id"], progress=step + 1))

    calling = pipe.call(on_progress=on_progress, timeout_s=0.01)
    (line,) = await pipe.sent(1)
    pipe.progress(line["id"], progress=0)
    with pytest.raises(MCPError) as caught:
        await calling
    assert caught.value.error.code == REQUEST_TIMEOUT


async def test_a_program_that_reads_nothing_holds_a_call_no_longer_than_its_time(pipe: FakePipe) -> None:
    pipe.outbox.set_full(True)
    with pytest.raises(MCPError) as caught:
        await pipe.call(timeout_s=0.01)
    assert caught.value.error.code == REQUEST_TIMEOUT
    assert pipe.lines == []


async def test_the_end_of_the_pipes_fails_calls_under_way_and_those_that_come_later(pipe: FakePipe) -> None:
    calling = pipe.call()
    await pipe.sent(1)
    pipe.end("")
    for each in (calling, pipe.call()):
        with pytest.raises(MCPError) as caught:
            await each
        assert is_closed(caught.value)


async def test_an_answer_that_came_before_the_end_counts(pipe: FakePipe) -> None:
    calling = pipe.call()
    (line,) = await pipe.sent(1)
    pipe.reply(id=line["id"], result={"content": []})
    pipe.end("")
    assert await calling == {"content": []}


async def test_answers_that_come_too_late_are_no_flood(pipe: FakePipe) -> None:
    for _ in range(SPARE_ANSWERS_MAX + 10):
        before = len(pipe.lines)
        calling = pipe.call()
        line = (await pipe.sent(before + 1))[-1]
        calling.cancel()
        await asyncio.wait({calling})
        pipe.reply(id=line["id"], result={})
    before = len(pipe.lines)
    calling = pipe.call()
    line = (await pipe.sent(before + 1))[-1]
    pipe.reply(id=line["id"], result={"content": []})
    assert await calling == {"content": []}


async def test_other_messages_pass_by_a_call_to_the_sdk_and_back(pipe: FakePipe) -> None:
    calling = pipe.call()
    listing = asyncio.create_task(pipe.requests.send("tools/list", {}))
    numbers = {line["method"]: line["id"] for line in await pipe.sent(2)}
    pipe.reply(id="theirs", method="ping")
    answer = (await pipe.sent(3))[2]
    assert (answer["id"], answer["result"]) == ("theirs", {})
    pipe.reply(id=numbers["tools/list"], result={"tools": []})
    pipe.reply(id=numbers["tools/call"], result={"content": []})
    assert await listing == {"tools": []}
    assert await calling == {"content": []}


async def test_an_answer_with_a_result_and_an_error_is_the_error_where_that_is_one(pipe: FakePipe) -> None:
    failing, other = pipe.call(), pipe.call()
    lines = await pipe.sent(2)
    pipe.reply(result={}, id=lines[0]["id"], error={"code": 1, "message": "x"})
    with pytest.raises(MCPError) as caught:
        await failing
    assert caught.value.error.code == 1
    pipe.reply(result={"content": []}, id=lines[1]["id"], error="x")
    assert await other == {"content": []}
