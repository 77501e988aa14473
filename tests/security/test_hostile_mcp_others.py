"""While a server attacks, the hub's other calls go on: they are answered before the attack is over.

How long the loop is held meanwhile is measured by `tests.bench.hostile`; here nothing depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.security.hostile_harness import HostileHarness, hostile_hub

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHERS_AT_LEAST = 10
"""Of each kind, begun and answered while an attack was under way."""
ATTACKS_AT_MOST = 50
"""Many of them are over before two calls are answered; a hub that makes others wait for their end answers none."""
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostileHarness]:
    """The servers are processes of their own, so that the loop is the hub's alone."""
    sources: dict[str, dict[str, Any]] = {
        "good": {"over": "stdio", "hostile": ()},
        "bad": {"over": "stdio", "hostile": ("calls",)},
        "list": {"over": "stdio", "hostile": ("calls",), "may_become": True},
    }
    async with hostile_hub(tmp_path_factory.mktemp("others"), sources) as harness:
        yield harness


async def calls_answered_during(attack: Callable[[], Awaitable[object]], harness: HostileHarness) -> int:
    """Attack until enough calls elsewhere were answered meanwhile, each with success, or too often: how many were."""
    answered = attacks = 0
    while answered < OTHERS_AT_LEAST and attacks < ATTACKS_AT_MOST:
        attacks += 1
        attacking = asyncio.ensure_future(attack())
        while not attacking.done():
            assert (await harness.call("core/util.time.now")).ok
            assert (await harness.call("good/echo", {"text": "x"})).ok
            answered += not attacking.done()
        await attacking
    return answered


@pytest.mark.parametrize("tool", ATTACKS)
async def test_a_call_that_attacks_delays_no_other(harness: HostileHarness, tool: str) -> None:
    async def attack() -> None:
        for _ in range(2):
            await harness.call(f"bad/{tool.strip()}", ATTACKS[tool], 0.5)

    assert await calls_answered_during(attack, harness) >= OTHERS_AT_LEAST


@pytest.mark.parametrize("word", LISTS)
async def test_a_list_that_attacks_delays_no_other(harness: HostileHarness, word: str) -> None:
    calm = await harness.become("list", "calls")

    async def attack() -> None:
        attacked = await harness.become("list", "calls", word)
        assert word == "storm" or (attacked.state, attacked.tools) != (calm.state, calm.tools)
        assert (await harness.become("list", "calls")).tools == calm.tools

    assert await calls_answered_during(attack, harness) >= OTHERS_AT_LEAST
