"""What every store of uses must do, for all processes. Inherit `UsageStoreSuite` and give an empty store that keeps
`KEEP` uses of each tenant and tool.

Fixtures of the subclass: `store` (not started), `other` (a second instance on the same storage, as another process has
it, not started either; None where nothing is shared).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from toolhub_service.domain.tool import ToolUse, UsageStore

T0 = 1_700_000_000_000
KEEP = 4


def a_use(purpose: str = "tidying up", **changes: Any) -> ToolUse:
    return replace(ToolUse("agent-a", "notes/read", "sub-agent", purpose, T0), **changes)


def numbered(count: int, **changes: Any) -> list[ToolUse]:
    return [a_use(f"purpose {number}", **changes) for number in range(count)]


async def everything(store: UsageStore, limit: int = 1_000) -> list[ToolUse]:
    """Page after page."""
    read: list[ToolUse] = []
    cursor = 0
    while True:
        uses, after = await store.after(cursor, limit)
        read += uses
        if not uses:
            assert after == cursor
            return read
        assert after > cursor
        cursor = after


class UsageStoreSuite:
    @pytest.fixture
    async def started(self, store: UsageStore) -> AsyncIterator[UsageStore]:
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def another(self, other: UsageStore | None, started: UsageStore) -> AsyncIterator[UsageStore]:
        """The second instance, or the first once more where nothing is shared."""
        if other is None:
            yield started
        else:
            await other.start()
            yield other
            await other.close()

    async def test_use_comes_back_exactly_to_everyone(self, started: UsageStore, another: UsageStore) -> None:
        uses = [a_use("é😀\x00 \u202e"), a_use("", tenant="two words", agent=""), a_use(tool="time/now", at_unix_ms=0)]
        await started.add(uses)
        assert await another.after(0, 10) == (uses, (await started.after(0, 10))[1])

    async def test_uses_come_in_the_order_they_were_added(self, started: UsageStore, another: UsageStore) -> None:
        uses = [a_use(str(n), tool=f"notes/t{n}", at_unix_ms=T0 - n) for n in range(30)]
        for number in range(0, 30, 3):
            await (started, another)[number % 2].add(uses[number : number + 3])
        for limit in (1, 7, 30, 100):
            assert await everything(another, limit) == uses

    async def test_a_cursor_reads_what_is_new_from_any_writer(self, started: UsageStore, another: UsageStore) -> None:
        await started.add(numbered(3))
        _, cursor = await started.after(0, 10)
        assert await started.after(cursor, 10) == ([], cursor)
        await another.add([a_use("of another")])
        await started.add([a_use("own", tool="time/now")])
        news, after = await started.after(cursor, 10)
        assert [use.purpose for use in news] == ["of another", "own"]
        assert await another.after(cursor, 10) == (news, after)
        assert await another.after(after, 10) == ([], after)

    async def test_many_writers_at_once_lose_and_repeat_nothing(self, started: UsageStore, another: UsageStore) -> None:
        uses = [a_use(str(n), tool=f"notes/t{n}") for n in range(60)]
        await asyncio.gather(*((started, another)[n % 2].add([use]) for n, use in enumerate(uses)))
        read = await everything(started)
        assert sorted(read, key=astuple) == sorted(uses, key=astuple)
        assert await everything(another) == read

    async def test_only_the_newest_uses_of_one_tenant_and_tool_stay(
        self, started: UsageStore, another: UsageStore
    ) -> None:
        await started.add([a_use("of another tool", tool="time/now"), a_use("of another tenant", tenant="agent-b")])
        many = numbered(3 * KEEP)
        await started.add(many[:KEEP])
        await another.add(many[KEEP : KEEP + 1])
        assert [use.purpose for use in await everything(started)][2:] == [use.purpose for use in many[1 : KEEP + 1]]
        await started.add(many[KEEP + 1 :])
        read = await everything(another)
        assert [use.purpose for use in read[:2]] == ["of another tool", "of another tenant"]
        assert read[2:] == many[-KEEP:]

    async def test_tenant_and_tool_do_not_run_into_one_another(self, started: UsageStore) -> None:
        pairs = [
            ("b c", "notes/a"),
            ("c", "notes/a"),
            ("", "notes/a"),
            ("notes/a", "notes/a"),
            ("notes/a c", "notes/a"),
        ]
        uses = [use for tenant, tool in pairs for use in numbered(KEEP, tenant=tenant, tool=tool)]
        await started.add(uses)
        assert await everything(started) == uses

    async def test_trimmed_and_forgotten_uses_leave_the_cursor_where_it_was(self, started: UsageStore) -> None:
        await started.add(numbered(KEEP))
        _, cursor = await started.after(0, 2)
        await started.add(numbered(2 * KEEP, tool="time/now"))
        assert await started.forget(T0 + 1, 100) == 2 * KEEP
        assert (await started.after(cursor, 10))[0] == []
        await started.add([fresh := a_use("fresh")])
        news, after = await started.after(cursor, 10)
        assert news == [fresh]
        assert after > cursor + 2 * KEEP

    async def test_oldest_are_forgotten_first_and_only_as_many_as_asked(
        self, started: UsageStore, another: UsageStore
    ) -> None:
        ages = [5, 1, 4, 2, 3, 9, 9]
        uses = [a_use(str(age), tool=f"notes/t{place}", at_unix_ms=T0 + age) for place, age in enumerate(ages)]
        await started.add(uses)
        assert await started.forget(T0 + 1, 10) == 0
        assert await started.forget(T0 + 4, 2) == 2
        assert [use.purpose for use in await everything(another)] == ["5", "4", "3", "9", "9"]
        assert await another.forget(T0 + 9, 10) == 3
        assert await everything(started) == uses[-2:]

    async def test_an_empty_batch_stores_nothing(self, started: UsageStore) -> None:
        await started.add([])
        assert await started.after(0, 10) == ([], 0)
        assert await started.forget(T0, 10) == 0
