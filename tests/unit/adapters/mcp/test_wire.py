"""Requests as plain JSON: what they need of the SDK, and what they take along."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.client.session import ClientSession, _make_handshake_stamp, _make_modern_stamp

from tests.fakes.mcp_servers.scripted import EXTENSION, Script
from tests.fakes.mcp_stage import over_http
from toolhub_service.adapters.mcp import wire
from toolhub_service.adapters.mcp.pipe_lane import FIRST_ID, PipeLane
from toolhub_service.adapters.mcp.reporting import PAUSE_S, Reporter
from toolhub_service.adapters.mcp.streams import Outbox
from toolhub_service.domain.progress import Chunk, Progress

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


async def test_the_private_names_of_the_sdk_are_still_there() -> None:
    async with over_http(Script()) as stage:
        session = (await stage.link.session(float("inf"))).client.session
        assert isinstance(session, ClientSession)
        assert callable(session._stamp)
        assert callable(session._dispatcher.send_raw_request)


async def test_an_extension_is_declared_with_its_own_request_alone() -> None:
    async with over_http(Script()) as stage:
        session = (await stage.link.session(float("inf"))).client.session
        for extension in (EXTENSION, ""):
            call: dict[str, Any] = {"name": "echo", "arguments": {"text": "x"}}
            await wire.ask(session, "tools/call", call, extension=extension)
    with_it, without = (call["_meta"][CAPABILITIES] for call in stage.script.calls)
    assert with_it["extensions"] == {EXTENSION: {}}
    assert "extensions" not in without


LEGACY: Any = _make_handshake_stamp("2025-11-25")
MODERN: Any = _make_modern_stamp("2026-07-28", {"name": "tool-hub"}, {"elicitation": {}}, lambda _name, _args: {})


@pytest.mark.parametrize("stamp", [LEGACY, MODERN], ids=["legacy", "modern"])
async def test_each_call_over_pipes_takes_along_what_its_session_stamps(stamp: Any) -> None:
    session: Any = SimpleNamespace(_stamp=stamp)
    sent: list[dict[str, Any]] = []
    lane = PipeLane(Outbox(lambda line: sent.append(json.loads(line)["params"])))
    for own in ({"_meta": {"key": "k"}}, {}, {"_meta": {"key": "l"}}):
        stamped: dict[str, Any] = {"method": "tools/call", "params": {"name": "echo", **deepcopy(own)}}
        stamp(stamped, {})
        asking = asyncio.create_task(wire.ask(session, "tools/call", {"name": "echo", **own}, lane=lane))
        await asyncio.sleep(0)
        assert sent[-1] == stamped["params"]
        lane.heard({"jsonrpc": "2.0", "id": FIRST_ID + len(sent) - 1, "result": {}})
        assert await asking == {}


class Counting:
    """`EventSink` that keeps progress, and tells of the last."""

    def __init__(self, last: float) -> None:
        self.seen: list[Progress] = []
        self.came = asyncio.Event()
        self._last = last

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)
        if progress.step == self._last:
            self.came.set()

    def chunk(self, chunk: Chunk) -> None: ...


async def test_endless_progress_is_thinned_out_and_what_waits_comes_by_itself() -> None:
    sink = Counting(10_000)
    reporter = Reporter(sink)
    began_s = asyncio.get_running_loop().time()
    for step in range(1, 10_001):
        await reporter(step, None, None)
    await asyncio.wait_for(sink.came.wait(), 60)
    took_s = asyncio.get_running_loop().time() - began_s
    assert len(sink.seen) <= took_s / PAUSE_S + 2


@pytest.mark.parametrize("step", [float("nan"), float("inf")])
async def test_progress_that_is_no_number_is_left_out(step: float) -> None:
    sink = Counting(0)
    reporter = Reporter(sink)
    await reporter(step, None, None)
    await reporter(1, float("inf"), "one\nline\x07" + "x" * 10_000)
    reporter.close()
    (told,) = sink.seen
    assert (told.step, told.total) == (1, None)
    assert len(told.message) <= 500
    assert "\n" not in told.message
