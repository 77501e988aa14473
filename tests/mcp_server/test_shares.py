"""What each principal gets of the MCP endpoint's places."""

from __future__ import annotations

import asyncio

from toolhub_service.mcp_server.http.shares import Quota


def test_one_principal_gets_at_most_half_of_what_is_free() -> None:
    async def taken() -> list[bool]:
        room, got = Quota(8), []
        for name in ["a"] * 5 + ["b"] * 3:
            place = room.place(name)
            got.append(await place.__aenter__())
        return got

    assert asyncio.run(taken()) == [True] * 4 + [False] + [True, True, False]
