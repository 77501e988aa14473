"""Turns on the event loop: in which order those begin who are ready at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from toolhub_service.aio import turns as turns_module
from toolhub_service.aio.turns import Turns


async def _begun(turns: Turns, wanted: Iterable[tuple[str, int]], cancelled: Iterable[int] = ()) -> list[str]:
    """Whose turns come, in their order, where all want theirs at once."""
    begun: list[str] = []

    async def begin(share: str, calls: int) -> None:
        await turns.take(share, calls)
        begun.append(share)

    tasks = [asyncio.create_task(begin(*each)) for each in wanted]
    await asyncio.sleep(0)
    for place in cancelled:
        tasks[place].cancel()
    await asyncio.wait(tasks)
    return begun


async def _of_two(*others: str) -> Turns:
    """Turns of a loop on which `a` and `b` have called, and which is quiet."""
    turns = Turns()
    for share in ("a", "b", *others):
        await turns.take(share)
    return turns


async def test_without_a_second_tenant_all_begin_at_once() -> None:
    turns = Turns()
    assert await _begun(turns, [("a", 1)] * 3) == ["a"] * 3
    assert (turns.is_shared, turns.waiting) == (False, 0)


async def test_the_next_turn_goes_to_the_tenant_with_the_least_service_and_shares_are_equal() -> None:
    turns = await _of_two()
    assert "".join(await _begun(turns, [("a", 1)] * 6 + [("b", 1)] * 2 + [("c", 1)])) == "acbabaaaa"


async def test_a_turn_of_many_calls_counts_as_many() -> None:
    turns = await _of_two()
    assert "".join(await _begun(turns, [("a", 4)] * 3 + [("b", 1)] * 6)) == "abbbabbba"


async def test_a_turn_that_is_given_up_goes_to_nobody() -> None:
    turns = await _of_two()
    assert "".join(await _begun(turns, [("a", 1)] * 4 + [("b", 1)] * 3, cancelled=[1, 2, 5])) == "abab"
    assert turns.waiting == 0
    assert "".join(await _begun(turns, [("a", 1), ("a", 1)], cancelled=[1])) == "a"


async def test_a_tenant_takes_at_most_half_of_the_places_that_it_leaves_free() -> None:
    turns = Turns(8)
    await turns.take("a")
    await turns.take("b")
    asked: list[asyncio.Task[None]] = []

    def wait(share: str) -> bool:
        may = turns.may_wait(share)
        if may:
            asked.append(asyncio.create_task(turns.take(share)))
        return may

    got = []
    for share in "aaaaabbb":
        got.append(wait(share))
        turns.arrivals += 1  # so that the loop is not quiet
        await asyncio.sleep(0)
    assert got == [True] * 4 + [False] + [True, True, False]
    await asyncio.wait(asked)


async def test_arrivals_put_a_turn_off_but_not_for_ever() -> None:
    turns, begun = await _of_two(), asyncio.Event()

    async def begin() -> None:
        await turns.take("a")
        begun.set()

    tasks = [asyncio.create_task(begin()) for _ in range(2)]
    rounds = 0
    while not begun.is_set() or turns.waiting:
        turns.arrivals += 1
        rounds += 1
        await asyncio.sleep(0)
    await asyncio.wait(tasks)
    # Each of the two is put off for so many rounds, and for the quiet ones that follow.
    assert 2 * turns_module._BUSY_ROUNDS_MAX < rounds < 4 * turns_module._BUSY_ROUNDS_MAX


async def test_principals_that_call_once_each_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "REMEMBERED_MAX", 8)
    turns = Turns()
    for number in range(20):
        await turns.take(f"stranger-{number}")
    assert turns.remembered_tenants == 8
