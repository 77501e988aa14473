"""Room for the calls of sessions: each session's own bounds, and the one over all of them."""

from __future__ import annotations

import asyncio

from toolhub_service.transport.session_outbox import HELD_MAX_BYTES, Outbox
from toolhub_service.transport.session_room import ARGS_MAX_BYTES, Crowd, Room


def a_room(crowd: Crowd, most: int = 4) -> Room:
    return Room(crowd, most, Outbox(lambda _: None))


def test_a_session_is_bound_by_number_and_by_bytes() -> None:
    room = a_room(Crowd(100))
    for _ in range(4):
        assert room.has_room()
        room.take(1)
    assert not room.has_room()
    room.give_back(1)
    assert room.has_room()
    room.take(ARGS_MAX_BYTES)
    room.give_back(1)
    assert not room.has_room()
    room.give_back(ARGS_MAX_BYTES)
    assert room.has_room()


def test_answers_that_nobody_reads_leave_no_room_even_for_a_first_call() -> None:
    outbox = Outbox(lambda _: None)
    room = Room(Crowd(1), 4, outbox)
    outbox.hold(HELD_MAX_BYTES + 1)
    assert not room.has_room()


def test_every_session_has_room_for_one_call_whatever_others_do() -> None:
    crowd = Crowd(2)
    busy, late = a_room(crowd), a_room(crowd)
    for _ in range(3):
        busy.take(0)
    assert crowd.is_full
    assert not busy.has_room()
    assert late.has_room()
    late.take(0)
    assert not late.has_room()
    assert crowd.count == 2


async def test_who_waited_longest_goes_on_first_and_what_a_session_leaves_is_free() -> None:
    crowd = Crowd(1)
    rooms = [a_room(crowd) for _ in range(4)]
    for room in rooms:
        room.take(0)
    rooms[0].take(0)
    went_on: list[int] = []

    async def waiting(at: int) -> None:
        await rooms[at].wait()
        went_on.append(at)
        rooms[at].take(0)

    tasks = []
    for at in (2, 1, 3):
        tasks.append(asyncio.create_task(waiting(at)))
        await asyncio.sleep(0)
    for ends in (0, 2, 1):
        rooms[ends].give_back(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert went_on == [2, 1, 3]
    assert crowd.count == 1
    rooms[3].close()
    rooms[3].close()
    assert crowd.count == 0
