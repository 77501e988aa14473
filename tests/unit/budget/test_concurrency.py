"""Slots: handed over in turn, and none lost however a wait ends."""

from __future__ import annotations

import asyncio

import pytest

from toolhub_service.budget.concurrency import Slots


async def waiting(slots: Slots, count: int) -> None:
    """A turn of the loop for each call that is to stand in the queue."""
    for _ in range(count + 1):
        await asyncio.sleep(0)
    assert slots.waiting == count


async def test_slots_are_handed_over_first_come_first_served() -> None:
    slots, order = Slots(1), []
    slots.take()

    async def call(name: str) -> None:
        await slots.wait(60.0)
        order.append(name)
        slots.give_back()

    async with asyncio.TaskGroup() as group:
        for index, name in enumerate("abc"):
            group.create_task(call(name))
            await waiting(slots, index + 1)
        slots.give_back()
    assert order == ["a", "b", "c"]
    assert slots.is_idle


async def test_a_new_call_does_not_overtake_the_queue() -> None:
    slots = Slots(1)
    slots.take()
    waiter = asyncio.create_task(slots.wait(60.0))
    await waiting(slots, 1)
    assert not slots.has_room()
    slots.give_back()
    assert not slots.has_room()
    await waiter
    slots.give_back()
    assert slots.has_room()


async def test_a_wait_beyond_its_time_takes_nothing() -> None:
    slots = Slots(1)
    slots.take()
    with pytest.raises(TimeoutError):
        await slots.wait(0.001)
    assert (slots.in_use, slots.waiting) == (1, 0)


async def test_a_cancelled_wait_takes_nothing() -> None:
    slots = Slots(1)
    slots.take()
    waiter = asyncio.create_task(slots.wait(60.0))
    await waiting(slots, 1)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    slots.give_back()
    assert slots.is_idle


async def test_a_wait_cancelled_just_as_its_turn_comes_passes_the_slot_on() -> None:
    slots = Slots(1)
    slots.take()
    first = asyncio.create_task(slots.wait(60.0))
    second = asyncio.create_task(slots.wait(60.0))
    await waiting(slots, 2)
    slots.give_back()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert slots.in_use == 1
    slots.give_back()
    assert slots.is_idle


async def test_a_slot_that_came_free_meanwhile_is_taken_at_once() -> None:
    slots = Slots(1)
    await slots.wait(60.0)
    assert slots.in_use == 1


def test_a_lowered_limit_takes_effect_as_calls_end() -> None:
    slots = Slots(3)
    for _ in range(3):
        slots.take()
    slots.limit = 1
    slots.give_back()
    slots.give_back()
    assert not slots.has_room()
    slots.give_back()
    assert slots.has_room()


async def test_a_lowered_limit_hands_no_slot_over_above_it() -> None:
    slots = Slots(2)
    slots.take()
    slots.take()
    waiter = asyncio.create_task(slots.wait(60.0))
    await waiting(slots, 1)
    slots.limit = 1
    slots.give_back()
    assert slots.in_use == 1
    assert not waiter.done()
    slots.give_back()
    await waiter
    assert slots.in_use == 1


def test_the_expected_wait_follows_the_pace() -> None:
    slots = Slots(2)
    assert slots.expected_wait_s() == 0
    slots.take()
    slots.give_back(4.0)
    assert slots.expected_wait_s() == pytest.approx(2.0)
    slots.take()
    slots.give_back()
    assert slots.expected_wait_s() == pytest.approx(2.0)


async def test_slots_go_to_tenants_in_turn_however_many_of_one_wait() -> None:
    slots, order = Slots(1), list[str]()
    slots.take()

    async def call(tenant: str, name: str) -> None:
        await slots.wait(60.0, tenant)
        order.append(name)
        slots.give_back(1.0)

    flood = [asyncio.create_task(call("acme", f"acme {number}")) for number in range(4)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(call("globex", f"globex {number}")) for number in range(2)]
    await asyncio.sleep(0)
    gives_up = asyncio.create_task(slots.wait(60.0, "initech"))
    await asyncio.sleep(0)
    assert (slots.waiting, slots.waiting_of("acme"), slots.waiting_of("globex")) == (7, 4, 2)
    gives_up.cancel()
    slots.give_back(1.0)
    await asyncio.gather(*flood, *others)
    assert order == ["acme 0", "globex 0", "acme 1", "globex 1", "acme 2", "acme 3"]
    assert slots.is_idle


async def test_a_tenant_waits_for_its_own_and_for_one_of_each_other_a_round() -> None:
    slots = Slots(2)
    for _ in range(2):
        slots.take()
    slots.give_back(4.0)
    slots.take()
    waiting = [asyncio.create_task(slots.wait(60.0, "acme")) for _ in range(5)]
    await asyncio.sleep(0)
    assert slots.expected_wait_s("acme") == 6 * 4.0 / 2
    assert slots.expected_wait_s("globex") == 2 * 4.0 / 2
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
