"""Hostile MCP clients, again and again: what they leave behind is nothing, and who is beside them is answered."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.mcp_server.mcp_hub import ERAS, HeldTool, McpHub, mcp_hub
from tests.security.mcp_attackers import ATTACKS, connected, posted, session, status_of

ROUNDS = 10
WARM = 2
COUNT = 8
# Caches that are bounded, pages of the audit log: a hundredth of what one object left for each connection would be.
SPARE_OBJECTS = 1_500
# gRPC and other tests of this process open some meanwhile; fewer than one each round.
SPARE_DESCRIPTORS = 4


class HeldResources(NamedTuple):
    tasks: int
    descriptors: int
    objects: int


# The SDK does not close the streams of a session that is cut off; they are collected.
@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
@pytest.mark.promise("mcpserver.nothing-leaks")
async def test_ten_rounds_of_every_attack_leave_no_task_no_descriptor_and_no_memory(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path) as hub:
        port = urlsplit(hub.url).port
        assert port is not None
        levels: list[HeldResources] = []
        for _ in range(ROUNDS):
            for attack in ATTACKS.values():
                await attack(port, "", COUNT)
            await beside(hub)
            levels.append(await held(levels[WARM - 1] if len(levels) >= WARM else None))
        assert levels[-1].tasks <= levels[WARM - 1].tasks, levels
        assert levels[-1].descriptors <= levels[WARM - 1].descriptors + SPARE_DESCRIPTORS, levels
        assert levels[-1].objects <= levels[WARM - 1].objects + SPARE_OBJECTS, levels


async def beside(hub: McpHub) -> None:
    async with hub.client(ERAS[1]) as client:  # of the older one a session would be left, until it is idle for too long
        assert not (await client.call_tool("core__util_time_now", {})).is_error


async def held(level: HeldResources | None) -> HeldResources:
    """What this process holds, once it is as little as it was or does not change any more."""
    seen = HeldResources(-1, -1, -1)
    async with asyncio.timeout(60):
        while True:
            gc.collect()
            now = HeldResources(len(asyncio.all_tasks()), descriptors(), len(gc.get_objects()))
            is_level = level is not None and now.tasks <= level.tasks and now.descriptors <= level.descriptors
            if is_level or now[:2] == seen[:2]:
                return now
            seen = now
            await asyncio.sleep(0.2)  # what a connection leaves ends in turns of the loop without an event


async def test_an_id_that_is_used_again_while_its_request_runs_leaves_no_caller_waiting(tmp_path: Path) -> None:
    working = HeldTool()
    async with mcp_hub(tmp_path, tools=[working]) as hub:
        port = urlsplit(hub.url).port
        assert port is not None
        params: dict[str, object] = {"name": "held__work_on", "arguments": {}}
        async with session(port, "") as lines:
            asked = posted({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}, "", lines)
            async with connected(port) as (first, sends), connected(port) as (second, sends_again):
                sends.write(asked)
                await working.begun.wait()
                sends_again.write(asked)
                assert await status_of(second) == 400
                working.go_on.set()
                assert await status_of(first) == 200
                assert b'"done":true' in await first.readuntil(b"0\r\n\r\n")
                sends_again.write(asked)
                assert await status_of(second) == 200


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])
