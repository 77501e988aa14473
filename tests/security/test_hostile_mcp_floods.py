"""MCP servers that flood: only the call of the flood fails, typed; the loop stays with the others, the memory small."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes.mcp_servers.floods import HTTP, PIPES, flooding
from tests.security.hostile_harness import HostileHarness, hostile_hub
from tests.unit.adapters.mcp.links import ROOT, at, linked, program, soon, until
from toolhub.v1 import error_pb2, source_pb2
from toolhub_service.adapters.mcp.failures import Breakage

pytestmark = pytest.mark.asyncio(loop_scope="module")

GENERATIONS = ("modern", "legacy")
PACED = frozenset({"pings", "progress", "notices"})
"""Floods of what may be honest: they are slowed down until the call gives up, or the server is given up."""
UNKNOWN = error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
PACED_S = 2.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostileHarness]:
    async with AsyncExitStack() as stack:
        sources: dict[str, Any] = {}
        for generation in GENERATIONS:
            sources[f"http-{generation}"] = {"url": await stack.enter_async_context(flooding(generation))}
            args = ["-m", "tests.fakes.mcp_servers.floods", "stdio", generation]
            sources[f"stdio-{generation}"] = {"command": sys.executable, "args": args, "cwd": str(ROOT)}
        folder = tmp_path_factory.mktemp("floods")
        yield await stack.enter_async_context(hostile_hub(folder, sources))


@pytest.mark.parametrize(("over", "shape"), [("http", shape) for shape in HTTP] + [("stdio", shape) for shape in PIPES])
@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_flood_fails_its_own_call_typed_while_others_are_answered(
    harness: HostileHarness, over: str, shape: str, generation: str
) -> None:
    """Fails at 513ce725: others wait for seconds, or the flood is read until the deadline of its call."""
    within_s = PACED_S if shape in PACED else 60.0
    flood = asyncio.create_task(harness.call(f"{over}-{generation}/{shape}", {}, within_s))
    answered = 0
    while not flood.done():
        assert (await harness.call("core/util.time.now")).ok
        answered += 1
    result = await flood
    assert result.error.kind == UNKNOWN, result.error.message
    if shape not in PACED:
        assert "did not answer in time" not in result.error.message
    assert answered > 0
    # A program that was given up is started again.
    async with asyncio.timeout(60):
        while not (await harness.call(f"{over}-{generation}/echo", {"text": "x"}, 20.0)).ok:
            answered += 1


async def test_a_flooded_standalone_stream_costs_the_connection() -> None:
    """The GET stream of 2025-11-25, for which no call waits."""
    async with flooding("legacy", "standing") as url, linked(at(url)) as link:
        flooded = await link.session(soon())
        await until(lambda: any(Breakage.FLOODED.value in line for line in link.diagnostics()))
        assert await link.session(soon()) is not flooded


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_pings_that_nobody_takes_the_answers_of_start_a_bounded_number_of_tasks(over: str) -> None:
    """Fails at 513ce725: each has a task, until the memory is full."""
    async with AsyncExitStack() as stack:
        terms = program("-m", "tests.fakes.mcp_servers.floods", "stdio", "legacy")
        if over == "http":
            terms = at(await stack.enter_async_context(flooding("legacy")))
        link = await stack.enter_async_context(linked(terms))
        session = await link.session(soon())
        before, most = len(asyncio.all_tasks()), 0
        call = asyncio.create_task(session.requests.send("tools/call", {"name": "pings", "arguments": {}}))
        while not call.done():
            most = max(most, len(asyncio.all_tasks()) - before)
            await asyncio.sleep(0)
        assert call.exception() is not None
        assert most < 600


async def test_a_source_that_floods_stays_usable(harness: HostileHarness) -> None:
    for name in ("http-modern", "http-legacy"):
        assert (await harness.status(name)).state == source_pb2.SOURCE_STATE_READY
