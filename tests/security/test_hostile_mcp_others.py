"""While a server attacks, the hub's other calls go on: the event loop is never held for long.

What is measured is the processor time that one turn of the loop takes, not the time on the wall: on a busy machine the
one says what the hub does, and the other what its neighbours do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.security.hostile_stage import Stage, hostile_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOLD_MAX_S = 0.25
"""Of processor time, in one turn. The worst that is left is a text of 8 MB, on a slow machine with tracing of tests."""
ATTACKS: dict[str, dict[str, Any]] = {
    "huge_result": {},
    "huge_result ": {"megabytes": 7},
    "huge_error": {},
    "crowded_result": {"megabytes": 7},
    "deep_result": {},
    "endless_progress": {},
    "never": {},
    "stderr_flood": {},
    "tool_error": {},
    "asks_forever": {},
    "garbage": {"kind": "not-json"},
}
LISTS = ("many", "huge-description", "exponential", "cyclic", "heavy-schemas", "hidden", "storm")


class Holds:
    """How much processor time this thread had between two turns of the loop, at most."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_s = max(self.longest_s, now_s - before_s)
            before_s = now_s


@asynccontextmanager
async def watched() -> AsyncIterator[Holds]:
    holds = Holds()
    watching = asyncio.create_task(holds.watch())
    try:
        yield holds
    finally:
        watching.cancel()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The servers are processes of their own, so that the loop is the hub's alone."""
    sources = {
        "good": {"over": "stdio", "hostile": ()},
        "bad": {"over": "stdio", "hostile": ("calls",)},
        "list": {"over": "stdio", "hostile": ("calls",)},
    }
    async with hostile_stage(tmp_path_factory.mktemp("others"), sources) as stage:
        yield stage


async def others_during(stage: Stage, attack: Callable[[], Awaitable[object]]) -> tuple[int, float]:
    """Calls elsewhere that worked while the attack ran, and the longest hold."""
    done = 0
    async with watched() as holds:
        attacking = asyncio.ensure_future(attack())
        while not attacking.done() or not done:
            assert (await stage.call("core/util.time.now")).ok
            assert (await stage.call("good/echo", {"text": "x"})).ok
            done += 1
        await attacking
    return done, holds.longest_s


@pytest.mark.parametrize("tool", ATTACKS)
async def test_a_call_that_attacks_holds_up_no_other(stage: Stage, tool: str) -> None:
    async def attack() -> None:
        for _ in range(2):
            await stage.call(f"bad/{tool.strip()}", ATTACKS[tool], 0.5)

    done, longest_s = await others_during(stage, attack)
    assert done
    assert longest_s < HOLD_MAX_S


@pytest.mark.parametrize("word", LISTS)
async def test_a_list_that_attacks_holds_up_no_other(stage: Stage, word: str) -> None:
    async def attack() -> None:
        for words in (["calls", word], ["calls"]):
            await stage.call("list/become", {"words": words})
            await stage.read("list")

    done, longest_s = await others_during(stage, attack)
    assert done
    assert longest_s < HOLD_MAX_S
