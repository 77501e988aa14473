"""What each principal gets of the MCP endpoint's places and turns."""

from __future__ import annotations

import asyncio

from toolhub_service.mcp_server.shares import Quota, Turns


def test_one_principal_gets_at_most_half_of_what_is_free() -> None:
    async def taken() -> list[bool]:
        room, got = Quota(8), []
        for name in ["a"] * 5 + ["b"] * 3:
            place = room.place(name)
            got.append(await place.__aenter__())
        return got

    assert asyncio.run(taken()) == [True] * 4 + [False] + [True, True, False]


async def test_of_many_requests_at_once_one_of_each_principal_begins_in_a_turn() -> None:
    turns, begun = Turns(), []

    async def begin(name: str) -> None:
        await turns.take(name)
        begun.append(name)

    hostile = [asyncio.create_task(begin("a")) for _ in range(5)]
    others = [asyncio.create_task(begin(name)) for name in ("b", "c")]
    hostile[1].cancel()
    await asyncio.wait({*hostile, *others})
    assert begun == ["a", "b", "c", "a", "a", "a"]
    await begin("a")
