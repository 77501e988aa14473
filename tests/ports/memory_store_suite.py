"""What every `MemoryStore` must do, for all processes. Inherit `MemoryStoreSuite` and give an empty store.

Fixtures of the subclass: `store` (not started), `other` (a second instance on the same storage, as another process has
it, not started either; None where nothing is shared), `kept` (every column of everything that is stored, as text).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.memory import MemoryItem, MemoryQuota, MemoryStore, Scope

T0 = 1_700_000_000_000
AMPLE = MemoryQuota(10_000, 10_000_000)
ALICE, BOB = Scope("alice"), Scope("bob")
Kept = Callable[[], Awaitable[str]]
_NUMBERS = count(1)


def an_item(text: str = "the invoice is due on friday", owner: str = "alice", **changes: Any) -> MemoryItem:
    return replace(MemoryItem(f"mem_{next(_NUMBERS)}", owner, text, T0), **changes)


async def write(store: MemoryStore, *items: MemoryItem) -> tuple[MemoryItem, ...]:
    """One after the other, so that the last is the newest."""
    for item in items:
        await store.write(item, AMPLE)
    return items


async def found(
    store: MemoryStore, query: str, caller: Scope = ALICE, *, tags: Sequence[str] = (), limit: int = 10, now: int = T0
) -> list[str]:
    """Ids, best first."""
    hits = await store.search(caller, query, tags=tags, limit=limit, now_unix_ms=now)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(score > 0 for score in scores)
    return [hit.item.item_id for hit in hits]


async def listed(
    store: MemoryStore, caller: Scope = ALICE, *, tags: Sequence[str] = (), limit: int = 3, now: int = T0
) -> list[str]:
    """Ids, newest first, page after page."""
    ids: list[str] = []
    place = 0
    while True:
        page = await store.page(caller, tags=tags, place=place, limit=limit, now_unix_ms=now)
        ids += [item.item_id for item in page.items]
        assert len(page.items) == limit or not page.next_place
        if not page.next_place:
            return ids
        place = page.next_place


class MemoryStoreSuite:
    @pytest.fixture(autouse=True)
    async def opened(self, store: MemoryStore, other: MemoryStore | None) -> AsyncIterator[None]:
        both = [each for each in (store, other) if each is not None]
        for each in both:
            await each.start()
        yield
        for each in both:
            await each.close()

    @pytest.fixture
    def another(self, store: MemoryStore, other: MemoryStore | None) -> MemoryStore:
        """The second instance, or the first once more where nothing is shared."""
        return other or store

    async def test_empty_store_has_nothing(self, store: MemoryStore) -> None:
        assert await found(store, "invoice") == []
        assert await listed(store) == []
        assert await store.read(ALICE, "mem_none", now_unix_ms=T0) is None
        assert await store.forget(ALICE, "mem_none") == await store.forget_tagged(ALICE, ["x"]) == 0
        assert await store.sweep(T0) == 0

    async def test_written_item_is_found_listed_and_read_by_everyone(
        self, store: MemoryStore, another: MemoryStore
    ) -> None:
        item = an_item(
            "Rechnungen — 发票 — are paid on Fridays\0", tags=("billing", "发票"), source="https://a.example"
        )
        await write(store, item)
        assert await found(another, "paying invoices on friday") == [item.item_id]
        assert await found(another, "发票") == [item.item_id]
        assert await listed(another, tags=("发票",)) == [item.item_id]
        assert await another.read(ALICE, item.item_id, now_unix_ms=T0) == item

    async def test_best_comes_first_and_stems_and_tags_count(self, store: MemoryStore) -> None:
        both, one, tagged, _ = await write(
            store,
            an_item("deploying the billing service needs the staging token"),
            an_item("the billing contact is Zoe"),
            an_item("nothing else", tags=("deployments",)),
            an_item("the cat sleeps"),
        )
        assert await found(store, "billing deployment") == [both.item_id, tagged.item_id, one.item_id]
        assert await found(store, "billing deployment", limit=1) == [both.item_id]
        assert await found(store, "the of and") == []

    async def test_chinese_is_found_by_pairs_and_single_characters(self, store: MemoryStore) -> None:
        tea, moving, _ = await write(
            store, an_item("用户喜欢喝绿茶，不喜欢咖啡"), an_item("下个月搬到新家"), an_item("服务器在上海机房")
        )
        assert (await found(store, "他爱喝什么茶"))[0] == tea.item_id
        assert (await found(store, "搬家"))[0] == moving.item_id
        assert await found(store, "茶") == [tea.item_id]

    async def test_one_principal_never_sees_anothers(self, store: MemoryStore, another: MemoryStore) -> None:
        (hers,) = await write(store, an_item(tags=("billing",)))
        words_alone = [hit.score for hit in await store.search(ALICE, "invoice", tags=(), limit=5, now_unix_ms=T0)]
        await write(another, *(an_item(owner="bob") for _ in range(3)))
        for owner in ("bob", "Alice", "alice ", "", "alic", "alice', ''"):
            caller = Scope(owner, "alice", "alice")
            assert hers.item_id not in await found(another, hers.text, caller)
            assert hers.item_id not in await found(another, hers.text, caller, tags=("billing",))
            assert hers.item_id not in await listed(another, caller, limit=50)
            assert await another.read(caller, hers.item_id, now_unix_ms=T0) is None
            assert await another.forget(caller, hers.item_id) == 0
            assert await another.forget_tagged(caller, ["billing"]) == 0
        assert await found(store, "invoice") == [hers.item_id]
        # Not even by what words weigh.
        assert [
            hit.score for hit in await store.search(ALICE, "invoice", tags=(), limit=5, now_unix_ms=T0)
        ] == words_alone

    async def test_items_of_an_agent_or_user_are_seen_under_the_same_only(self, store: MemoryStore) -> None:
        everyones, agents, users, boths = await write(
            store,
            an_item("plan a"),
            an_item("plan b", agent_id="coder"),
            an_item("plan c", user_id="zoe"),
            an_item("plan d", agent_id="coder", user_id="zoe"),
        )
        seen = {
            ("", ""): {everyones},
            ("coder", ""): {everyones, agents},
            ("", "zoe"): {everyones, users},
            ("coder", "zoe"): {everyones, agents, users, boths},
            ("writer", "zoe"): {everyones, users},
            ("zoe", "coder"): {everyones},
        }
        for (agent, user), items in seen.items():
            caller, ids = Scope("alice", agent, user), {item.item_id for item in items}
            assert set(await found(store, "plan", caller)) == set(await listed(store, caller)) == ids
            for item in (everyones, agents, users, boths):
                is_seen = await store.read(caller, item.item_id, now_unix_ms=T0) is not None
                assert is_seen is (item in items)
        assert await store.forget(ALICE, boths.item_id) == 0
        assert await store.forget(Scope("alice", "coder", "zoe"), boths.item_id) == 1

    async def test_tags_must_all_be_there(self, store: MemoryStore) -> None:
        a, ab, b = await write(
            store, an_item("lamp", tags=("a",)), an_item("lamp", tags=("a", "b")), an_item("lamp", tags=("b",))
        )
        assert set(await found(store, "lamp", tags=("a",))) == {a.item_id, ab.item_id}
        assert await found(store, "lamp", tags=("b", "a")) == [ab.item_id]
        assert await found(store, "lamp", tags=("A",)) == await found(store, "desk", tags=("a",)) == []
        assert await listed(store, tags=("b",)) == [b.item_id, ab.item_id]
        assert await listed(store, tags=("b", "a")) == [ab.item_id]
        assert await listed(store, tags=("a", "c")) == []

    async def test_pages_are_newest_first_and_whole(self, store: MemoryStore) -> None:
        items = [
            an_item(f"number {n}", agent_id="x" if n % 3 else "", tags=("even",) * (n % 2 == 0)) for n in range(10)
        ]
        await write(store, *items)
        caller = Scope("alice", "x")
        newest_first = [item.item_id for item in reversed(items)]
        for limit in (1, 3, 5, 10, 50):
            assert await listed(store, caller, limit=limit) == newest_first
        assert await listed(store, caller, tags=("even",)) == newest_first[1::2]

    async def test_expired_items_are_gone_before_and_after_the_sweep(
        self, store: MemoryStore, another: MemoryStore, kept: Kept
    ) -> None:
        over = T0 + 5_000
        brief, lasting = await write(
            store, an_item("quokka tea", tags=("t",), expires_at_unix_ms=over), an_item("tea", tags=("t",))
        )
        assert await found(store, "tea", now=over - 1) == [lasting.item_id, brief.item_id]
        assert await found(another, "tea", now=over) == await listed(another, now=over) == [lasting.item_id]
        assert await another.read(ALICE, brief.item_id, now_unix_ms=over) is None
        assert await store.sweep(over - 1) == 0
        assert "quokka" in await kept()
        assert await store.sweep(over) == 1
        assert "quokka" not in await kept()
        assert await found(another, "tea", now=T0) == [lasting.item_id]

    async def test_forgotten_items_leave_nothing_behind(
        self, store: MemoryStore, another: MemoryStore, kept: Kept
    ) -> None:
        before = await kept()
        items = await write(store, *(an_item(f"zyzzyva {n} 秘密会议", tags=("s", f"n{n}")) for n in range(7)))
        assert await another.forget(ALICE, items[0].item_id) == 1
        assert await another.forget(ALICE, items[0].item_id) == 0
        assert await store.forget_tagged(ALICE, ["s", "n1"]) == 1
        assert set(await listed(another)) == {item.item_id for item in items[2:]}
        assert await store.forget_tagged(ALICE, ["s"]) == 5
        assert await found(another, "zyzzyva 秘密会议") == await listed(another) == []
        await store.sweep(T0)
        assert await kept() == before
        await write(store, an_item("zyzzyva once more"))
        assert len(await found(another, "zyzzyva")) == 1

    async def test_quota_of_items_and_bytes_refuses_what_is_beyond(
        self, store: MemoryStore, another: MemoryStore
    ) -> None:
        two = MemoryQuota(2, 1_000_000)
        done = await asyncio.gather(
            *((store, another)[n % 2].write(an_item(f"n {n}"), two) for n in range(6)), return_exceptions=True
        )
        refused = [each for each in done if not isinstance(each, int)]
        assert len(refused) == 4
        assert all(isinstance(each, ToolFailure) and each.error.kind is ErrorKind.BUDGET_EXCEEDED for each in refused)
        await store.write(an_item("his own", owner="bob"), two)
        assert await store.forget(ALICE, (await listed(store))[0]) == 1
        await store.write(an_item("room again"), two)
        with pytest.raises(ToolFailure) as full:
            await store.write(an_item("x" * 5_000), MemoryQuota(100, 4_000))
        assert full.value.error.details["quota_bytes"] == 4_000
        assert len(await listed(store)) == 2

    async def test_usage_counts_the_bytes_of_one_owner_and_of_several_together(self, store: MemoryStore) -> None:
        assert await store.usage("alice") == 0
        assert await store.usage_of(lambda _: True) == 0
        written = await store.write(an_item("hers"), AMPLE)
        his = await store.write(an_item("his own", owner="bob"), AMPLE)
        assert await store.usage("alice") == written > 0
        assert await store.usage("nobody") == 0
        assert await store.usage_of(lambda owner: owner == "bob") == his
        assert await store.usage_of(lambda _: True) == written + his
        await store.forget(ALICE, (await listed(store))[0])
        assert await store.usage("alice") == 0
