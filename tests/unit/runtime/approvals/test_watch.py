"""Following approvals: what is pending first, then every newest state, and no watcher holds anything up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.unit.runtime.approvals.approval_harness import (
    APPROVED,
    EXPIRES_S,
    POLICY,
    REJECTED,
    ApprovalHarness,
    an_approval_harness,
)
from tests.unit.runtime.pipeline_harness import a_tool
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.spec import Code
from toolhub_service.runtime.approvals import watch as approval_watch
from toolhub_service.runtime.approvals.watch import ApprovalNews, ApprovalTail
from toolhub_service.stores.memory.records import MemoryApprovals

ERASE = a_tool("test/other.erase", capability="write:fs")
ALL = ApprovalFilter()


class LostConnectionStore(MemoryApprovals):
    """The store in memory, whose connection can be lost."""

    lost = False
    read = 0

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        if self.lost:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The store cannot be reached.")
        page, count = await super().page(where, after=after, limit=limit)
        self.read += len(page)
        return page, count


class WatchHarness:
    """A harness, its news, and watchers of it."""

    def __init__(self) -> None:
        store = LostConnectionStore()
        self.store = store
        self.news = ApprovalNews(store)
        self.harness: ApprovalHarness = an_approval_harness(store=store, tools=(ERASE,), policy=POLICY)

    @asynccontextmanager
    async def watching(self, where: ApprovalFilter = ALL, since_unix_ms: int = 0) -> AsyncIterator[ApprovalTail]:
        async with aclosing(self.news.watch(where, since_unix_ms)) as tail:
            yield tail


@pytest.fixture
def watched() -> WatchHarness:
    return WatchHarness()


async def taken(tail: ApprovalTail, count: int) -> list[tuple[str, ApprovalState]]:
    return [(approval.approval_id, approval.state) for approval in [await anext(tail) for _ in range(count)]]


async def is_idle(tail: ApprovalTail) -> bool:
    """Whether nothing is left to be sent. Ends the watch."""
    waiting = asyncio.create_task(_next(tail))
    for _ in range(20):
        await asyncio.sleep(0)
    idle = not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    return idle


async def _next(tail: ApprovalTail) -> Approval:
    return await anext(tail)


async def test_a_watch_sends_what_is_pending_and_then_each_change(watched: WatchHarness) -> None:
    harness = watched.harness
    old, granted = await harness.ask("old"), await harness.grant("granted")
    async with watched.watching() as tail:
        assert await taken(tail, 1) == [(old, ApprovalState.PENDING)]
        new = await harness.ask("new")
        assert await taken(tail, 1) == [(new, ApprovalState.PENDING)]
        await harness.decide(old)
        assert await taken(tail, 1) == [(old, APPROVED)]
        await harness.call("granted", number=2, approval_id=granted)
        assert await taken(tail, 1) == [(granted, ApprovalState.USED)]
        assert await is_idle(tail)


async def test_pending_approvals_of_several_pages_are_read_once_each(
    watched: WatchHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_watch, "_PAGE", 2)
    ids = []
    for number in range(5):
        watched.harness.parts.clock.advance(1.0)
        ids.append(await watched.harness.ask(str(number)))
    watched.store.read = 0
    async with watched.watching() as tail:
        assert {approval_id for approval_id, _ in await taken(tail, 5)} == set(ids)
        assert watched.store.read == 5


async def test_a_waiting_watcher_is_notified_of_a_new_question(watched: WatchHarness) -> None:
    async with watched.watching() as tail:
        waiting = asyncio.create_task(taken(tail, 1))
        await asyncio.sleep(0)
        approval_id = await watched.harness.ask()
        assert await waiting == [(approval_id, ApprovalState.PENDING)]


async def test_change_while_pending_ones_are_listed_is_reported_after_them(watched: WatchHarness) -> None:
    ids = [await watched.harness.ask(str(number)) for number in range(3)]
    async with watched.watching() as tail:
        first = await taken(tail, 1)
        await watched.harness.decide(ids[0])
        await watched.harness.decide(ids[2], REJECTED)
        seen = first + await taken(tail, 4)
        assert [state for id, state in seen if id == ids[0]][-1] is APPROVED
        assert [state for id, state in seen if id == ids[2]] == [ApprovalState.PENDING, REJECTED]
        assert await is_idle(tail)


async def test_slow_watcher_finds_the_newest_state_of_each(watched: WatchHarness) -> None:
    harness = watched.harness
    async with watched.watching() as tail:
        first = await harness.grant("a")
        second = await harness.ask("b")
        await harness.call("a", number=2, approval_id=first)
        assert await taken(tail, 2) == [(second, ApprovalState.PENDING), (first, ApprovalState.USED)]
        assert await is_idle(tail)


async def test_a_repeated_change_is_reported_once(watched: WatchHarness) -> None:
    approval_id = await watched.harness.ask()
    async with watched.watching() as tail:
        await taken(tail, 1)
        approval = await watched.store.get(approval_id)
        assert approval is not None
        tail.offer(approval)  # a store may send a change twice
        tail.offer(None)
        assert await is_idle(tail)


async def test_filter_shows_one_principal_and_tools_by_glob(watched: WatchHarness) -> None:
    harness = watched.harness
    async with (
        watched.watching(ApprovalFilter(principal="other")) as others,
        watched.watching(ApprovalFilter(tool="test/other.*")) as erasing,
    ):
        await harness.ask("a")
        theirs = await harness.ask("b", principal="other")
        erase = await harness.ask("c", spec=ERASE)
        assert await taken(others, 1) == [(theirs, ApprovalState.PENDING)]
        assert await taken(erasing, 1) == [(erase, ApprovalState.PENDING)]
        assert await is_idle(others)
        assert await is_idle(erasing)


async def test_after_a_gap_everything_open_is_looked_at_again(watched: WatchHarness) -> None:
    harness, store = watched.harness, watched.store
    pending, granted, decided = await harness.ask("a"), await harness.ask("b"), await harness.ask("c")
    async with watched.watching() as tail:
        assert len(await taken(tail, 3)) == 3
        tails, watched.news._tails = watched.news._tails, set()
        await harness.decide(granted)
        await harness.decide(decided, REJECTED)
        new = await harness.ask("d")
        watched.news._tails = tails
        watched.news._on_event(None)
        seen = await taken(tail, 3)
        assert set(seen) == {(granted, APPROVED), (decided, REJECTED), (new, ApprovalState.PENDING)}
        assert await is_idle(tail)
    assert (await store.get(pending)) is not None


async def test_a_reopened_watch_is_notified_of_what_expired_meanwhile(watched: WatchHarness) -> None:
    harness = watched.harness
    approval_id = await harness.ask()
    async with watched.watching() as tail:
        await taken(tail, 1)
        seen_unix_ms = tail.seen_unix_ms
    assert seen_unix_ms == harness.parts.clock.unix_ms()
    harness.parts.clock.advance(EXPIRES_S)
    await harness.approvals.sweep()
    async with watched.watching(since_unix_ms=seen_unix_ms) as resumed:
        assert await taken(resumed, 1) == [(approval_id, ApprovalState.EXPIRED)]
        assert await is_idle(resumed)


async def test_store_that_cannot_be_reached_ends_the_watch(watched: WatchHarness) -> None:
    async with watched.watching() as tail:
        watched.store.lost = True
        tail.offer(None)
        with pytest.raises(ToolFailure) as refused:
            await anext(tail)
        assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE


async def test_watcher_that_never_looks_is_ended_and_may_come_again(
    watched: WatchHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_watch, "WAITING_MAX", 5)
    async with watched.watching() as slow:
        for number in range(6):
            await watched.harness.ask(str(number))
        assert await failure_of(slow) == (Code.RESOURCE_EXHAUSTED, "WATCH_LAGGED")
    async with watched.watching() as again:
        assert len(await taken(again, 6)) == 6


async def test_hub_that_leaves_ends_every_watch_and_takes_no_new_one(watched: WatchHarness) -> None:
    await watched.harness.ask()
    async with watched.watching() as idle, watched.watching() as waiting:
        await taken(idle, 1)
        task = asyncio.create_task(failure_of(idle))
        await asyncio.sleep(0)
        watched.news.close()
        assert await task == await failure_of(waiting) == (Code.UNAVAILABLE, "DRAINING")
    with pytest.raises(HubFailure):
        watched.news.watch(ALL)


async def test_watch_that_is_cancelled_leaves_nothing_behind(watched: WatchHarness) -> None:
    async def follow() -> None:
        async with watched.watching() as tail:
            async for _ in tail:
                pass

    tasks = [asyncio.create_task(follow()) for _ in range(10)]
    await asyncio.sleep(0)
    assert watched.news.watchers == 10
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), "never swallowed"
    assert watched.news.watchers == 0


async def test_memory_of_a_watch_is_bounded(watched: WatchHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_watch, "_REMEMBERED_MAX", 3)
    async with watched.watching() as tail:
        for number in range(9):
            await watched.harness.ask(str(number))
            await taken(tail, 1)
        assert len(tail._sent) == 3


async def test_a_listener_is_notified_of_every_change_and_of_gaps(watched: WatchHarness) -> None:
    changes: list[Approval | None] = []
    watched.news.listen(changes.append)
    approval_id = await watched.harness.grant()
    watched.news._on_event(None)
    states: Sequence[ApprovalState | None] = [approval.state if approval else None for approval in changes]
    assert states == [ApprovalState.PENDING, APPROVED, None]
    assert {approval.approval_id for approval in changes if approval} == {approval_id}


async def failure_of(tail: ApprovalTail) -> tuple[Code, str]:
    with pytest.raises(HubFailure) as failure:
        async for _ in tail:
            pass
    return failure.value.reason.code, failure.value.reason.name
