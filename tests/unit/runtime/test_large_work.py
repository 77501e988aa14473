"""One large piece at a time, principals in turn, each within its share; no time is measured, all clocks go by run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fakes.clock import ManualClock
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.runtime import large_work
from toolhub_service.runtime.large_work import ALLOWANCE_S, MAX_WAIT_S, MAX_WAITING_BYTES, SHARE, LargeWork

DEADLOCK_S = 60.0
"""A test that waits so long has failed."""


class Processor(threading.local):
    """Each thread's processor time, by run."""

    had_s = 0.0

    def __call__(self) -> float:
        return self.had_s


class LargeWorkHarness:
    """Large work whose pieces say in `done` when they were read, and may be held by a gate."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.processor = Processor()
        self.large = LargeWork(self.clock, self.processor)
        self.done: list[str] = []

    def read(
        self,
        principal_id: str,
        name: str = "",
        *,
        cost_s: float = 0.0,
        size_bytes: int = 1,
        before: Callable[[], None] | None = None,
    ) -> asyncio.Task[str]:
        def work() -> str:
            self.processor.had_s += cost_s
            self.done.append(name)
            return name

        return asyncio.create_task(self.large.run(principal_id, size_bytes, work, before=before))

    @asynccontextmanager
    async def held(self, principal_id: str) -> AsyncIterator[asyncio.Task[None]]:
        """A piece that runs until the block ends."""
        began, may_end = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            assert may_end.wait(DEADLOCK_S)
            self.done.append("held")

        running = asyncio.create_task(self.large.run(principal_id, 1, work))
        assert await asyncio.to_thread(began.wait, DEADLOCK_S)
        try:
            yield running
        finally:
            may_end.set()


@pytest.fixture
async def harness() -> LargeWorkHarness:
    return LargeWorkHarness()


async def begun() -> None:
    """Every task that was made has come to where it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_piece_returns_what_it_returns_and_fails_as_it_fails(harness: LargeWorkHarness) -> None:
    assert await harness.large.run("a", 1, max, 3, 5) == 5
    with pytest.raises(ZeroDivisionError):
        await harness.large.run("a", 1, lambda: 1 // 0)
    assert await harness.read("a", "after a failure") == "after a failure"


async def test_pieces_run_one_at_a_time_and_principals_take_turns(harness: LargeWorkHarness) -> None:
    async with harness.held("a"):
        waiting = [harness.read("a", f"a{number}") for number in range(3)]
        await begun()
        waiting += [harness.read("b", f"b{number}") for number in range(2)] + [harness.read("c", "c0")]
        await begun()
        assert harness.done == []
    await asyncio.gather(*waiting)
    assert harness.done == ["held", "a0", "b0", "c0", "a1", "b1", "a2"]


async def test_a_piece_whose_caller_left_while_it_waited_is_never_run(harness: LargeWorkHarness) -> None:
    async with harness.held("a"):
        left, stays = harness.read("a", "left"), harness.read("a", "stays")
        await begun()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    await stays
    assert left.cancelled()
    assert harness.done == ["held", "stays"]


async def test_a_caller_that_leaves_in_the_moment_of_its_turn_passes_it_on(harness: LargeWorkHarness) -> None:
    def gives_up() -> None:
        asyncio.get_running_loop().call_soon(left.cancel)  # after the next turn was given, before it is taken
        raise PermissionError

    async with harness.held("a"):
        gives_up_first = harness.read("b", before=gives_up)
        left, stays = harness.read("c", "left"), harness.read("d", "stays")
        await begun()
    assert await stays == "stays"
    assert isinstance(gives_up_first.exception(), PermissionError)
    assert left.cancelled()
    assert harness.done == ["held", "stays"]


async def test_a_piece_whose_caller_left_while_it_ran_keeps_its_turn_to_the_end(harness: LargeWorkHarness) -> None:
    async with harness.held("a") as running:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        following = harness.read("b", "following")
        await begun()
        assert running.cancelled()
        assert harness.done == []
    await following
    assert harness.done == ["held", "following"]


async def test_a_piece_that_is_refused_at_its_turn_passes_it_on_and_is_not_charged(harness: LargeWorkHarness) -> None:
    def refuse() -> None:
        raise PermissionError

    refused = harness.read("a", "refused", cost_s=100.0, before=refuse)
    with pytest.raises(PermissionError):
        await refused
    assert await harness.read("a", "next") == "next"
    harness.large.admit("a", 1)


async def test_a_principal_is_asked_to_wait_once_its_allowance_and_what_it_may_wait_for_are_used_up(
    harness: LargeWorkHarness,
) -> None:
    await harness.read("a", cost_s=ALLOWANCE_S + MAX_WAIT_S * SHARE)
    harness.large.admit("a", 1)
    await harness.read("b", cost_s=ALLOWANCE_S + MAX_WAIT_S * SHARE + 1.0)
    with pytest.raises(ToolFailure) as refused:
        harness.large.admit("b", 1)
    error = refused.value.error
    assert error.kind is ErrorKind.RATE_LIMITED
    assert error.retry_after_s == pytest.approx(MAX_WAIT_S + 1.0 / SHARE)
    assert error.details["limit"] == "large-arguments"
    assert "Wait 4.0 seconds" in error.message
    harness.clock.advance(1.0 / SHARE)
    harness.large.admit("b", 1)


async def test_a_piece_beyond_the_share_waits_until_it_is_due_and_delays_nobody_else(
    harness: LargeWorkHarness,
) -> None:
    await harness.read("a", "a0", cost_s=ALLOWANCE_S + 0.005)
    waiting = harness.read("a", "a1")
    await begun()
    for number in range(5):
        await harness.read("b", f"b{number}")
    assert not waiting.done()
    harness.clock.advance(0.005 / SHARE)
    await waiting
    assert harness.done == ["a0", "b0", "b1", "b2", "b3", "b4", "a1"]


async def test_failed_and_abandoned_work_is_charged_too(harness: LargeWorkHarness) -> None:
    def failing() -> None:
        harness.processor.had_s += 100.0
        raise KeyError

    with pytest.raises(KeyError):
        await harness.large.run("a", 1, failing)
    with pytest.raises(ToolFailure):
        harness.large.admit("a", 1)


async def test_no_more_bytes_of_a_principal_wait_than_their_bound(harness: LargeWorkHarness) -> None:
    async with harness.held("a"):
        half = MAX_WAITING_BYTES // 2
        waiting = [harness.read("a", size_bytes=half) for _ in range(2)]
        await begun()
        with pytest.raises(ToolFailure) as refused:
            harness.large.admit("a", 1)
        assert refused.value.error.kind is ErrorKind.RATE_LIMITED
        assert refused.value.error.retry_after_s == 1.0
        harness.large.admit("b", half)
        waiting[0].cancel()
        await begun()
        harness.large.admit("a", half)  # what nobody waits for any more counts no longer
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_one_piece_may_be_larger_than_the_bound_where_nothing_waits(harness: LargeWorkHarness) -> None:
    harness.large.admit("a", MAX_WAITING_BYTES + 1)
    async with harness.held("a"):
        harness.read("a", size_bytes=1)
        await begun()
        with pytest.raises(ToolFailure):
            harness.large.admit("a", MAX_WAITING_BYTES)


async def test_shares_are_kept_for_so_many_principals_and_the_oldest_goes_first(
    harness: LargeWorkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_work, "_MAX_PRINCIPALS", 3)
    for number in range(4):
        await harness.read(f"principal-{number}", cost_s=100.0)
    harness.large.admit("principal-0", 1)
    for number in range(1, 4):
        with pytest.raises(ToolFailure):
            harness.large.admit(f"principal-{number}", 1)
