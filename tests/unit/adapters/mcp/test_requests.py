"""Requests as plain JSON: how each identifies the hub, and how its progress is reported."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, Implementation

from tests.fakes.mcp_harness import over_http, stage_of, started
from tests.fakes.mcp_servers.hostile import hostile_http, stdio_command
from tests.fakes.mcp_servers.scripted import EXTENSION, Script, serving
from tests.unit.adapters.mcp.links import at, call, descriptors, linked, soon, text_of, until
from toolhub_service import __version__
from toolhub_service.adapters.mcp.kind import Elicitation, HttpTerms, McpTerms, StdioTerms
from toolhub_service.adapters.mcp.progress import PAUSE_S, Reporter
from toolhub_service.domain.result import Chunk, Progress

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


async def test_an_extension_is_declared_with_its_own_request_alone() -> None:
    async with over_http(Script()) as harness:
        requests = (await harness.link.session(float("inf"))).requests
        for extension in (EXTENSION, ""):
            call: dict[str, Any] = {"name": "echo", "arguments": {"text": "x"}}
            await requests.send("tools/call", call, extension=extension)
    with_it, without = (call["_meta"][CAPABILITIES] for call in harness.script.calls)
    assert with_it["extensions"] == {EXTENSION: {}}
    assert "extensions" not in without


async def never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError


@pytest.mark.parametrize("elicitation", ["decline", "ask"])
async def test_a_request_describes_its_client_as_the_sdk_does(elicitation: Elicitation) -> None:
    script = Script()
    async with serving(script) as url:
        async with started(stage_of(HttpTerms(url), script=script, elicitation=elicitation)) as harness:
            session = await harness.link.session(float("inf"))
            await session.requests.send("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        own = Implementation(name="tool-hub", version=__version__)
        callback = never if elicitation == "ask" else None
        async with Client(url, client_info=own, elicitation_callback=callback) as client:
            await client.call_tool("echo", {"text": "x"})
    hub, sdk = ({name: fields[name] for name in fields if name.startswith("mcp-")} for fields in script.headers)
    assert hub == sdk
    assert script.calls[0]["_meta"] == script.calls[1]["_meta"]
    assert ("elicitation" in script.calls[0]["_meta"][CAPABILITIES]) == (elicitation == "ask")


class CountingSink:
    """`EventSink` that keeps progress, and notifies of the last."""

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
    sink = CountingSink(10_000)
    reporter = Reporter(sink)
    began_s = asyncio.get_running_loop().time()
    for step in range(1, 10_001):
        await reporter(step, None, None)
    await asyncio.wait_for(sink.came.wait(), 60)
    took_s = asyncio.get_running_loop().time() - began_s
    assert len(sink.seen) <= took_s / PAUSE_S + 2


@pytest.mark.parametrize("step", [float("nan"), float("inf"), 10**400])
async def test_progress_that_is_no_number_is_left_out(step: float) -> None:
    sink = CountingSink(0)
    reporter = Reporter(sink)
    await reporter(step, None, None)
    await reporter(1, float("inf"), "one\nline\x07" + "x" * 10_000)
    reporter.close()
    (report,) = sink.seen
    assert (report.step, report.total) == (1, None)
    assert len(report.message) <= 500
    assert "\n" not in report.message


@pytest.mark.parametrize("generation", ["legacy", "modern"])
@pytest.mark.parametrize("words", [("calls",), ("calls", "deaf"), ("calls", "json")])
async def test_calls_that_are_cancelled_leave_no_socket_and_no_task(generation: str, words: tuple[str, ...]) -> None:
    async with hostile_http(*words, generation=generation) as (server, url), linked(at(url)) as link:
        session = await link.session(soon())
        await call(session, "echo", text="hi")
        tasks, files = len(asyncio.all_tasks()), descriptors()
        calls = [asyncio.ensure_future(call(session, "never")) for _ in range(20)]
        await until(lambda: len(server.called) == 21)
        for each in calls:
            each.cancel()
        await asyncio.wait(calls)
        if "deaf" not in words:  # that one holds on to its own end of each
            await until(lambda: len(asyncio.all_tasks()) <= tasks and descriptors() <= files)
        else:
            await until(lambda: descriptors() <= files + 20)
        assert text_of(await call(session, "echo", text="still there")) == "still there"
        assert link.connects == 1


LARGE = 2**90 + 1


@pytest.mark.parametrize("generation", ["legacy", "modern"])
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_large_integers_arrive_and_come_back_exact(generation: str, over: str) -> None:
    async with hostile_http(generation=generation) as (_, url):
        words = stdio_command(generation=generation)
        pipe = McpTerms("harness", StdioTerms(sys.executable, tuple(words[1:])))
        async with linked(at(url) if over == "http" else pipe) as link:
            session = await link.session(soon())
            params = {"name": "add", "arguments": {"a": LARGE, "b": 1}}
            result = await session.requests.send("tools/call", params)
            assert result["structuredContent"] == {"sum": LARGE + 1}
