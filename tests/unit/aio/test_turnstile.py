"""One piece of an upstream's flood runs per turn of the event loop, however many upstreams flood."""

from __future__ import annotations

import asyncio

from toolhub_service.aio.turnstile import Turnstile, pass_turnstile


async def test_one_waiter_passes_per_turn_in_order_of_arrival() -> None:
    turnstile, passed = Turnstile(), list[tuple[int, int]]()
    turn = 0

    async def wait(name: int) -> None:
        for _ in range(3):
            await turnstile.pass_through()
            passed.append((turn, name))

    waiting = [asyncio.create_task(wait(name)) for name in range(5)]
    while not all(task.done() for task in waiting):
        await asyncio.sleep(0)
        turn += 1
    turns = [at for at, _ in passed]
    assert len(set(turns)) == len(turns) == 15
    assert [name for _, name in passed[:5]] == [0, 1, 2, 3, 4]


async def test_a_cancelled_waiter_holds_up_nobody() -> None:
    turnstile = Turnstile()
    first, second, third = (asyncio.create_task(turnstile.pass_through()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(first, third)
    assert second.cancelled()


async def test_others_run_between_the_pieces_of_all_floods() -> None:
    others = 0

    async def flood() -> None:
        for _ in range(10):
            await pass_turnstile()

    floods = [asyncio.create_task(flood()) for _ in range(20)]
    while not all(task.done() for task in floods):
        await asyncio.sleep(0)
        others += 1
    assert others >= 200
