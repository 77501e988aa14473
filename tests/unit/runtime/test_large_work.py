"""One large piece at a time, principals in turn, each within its share; no time is measured, all clocks go by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fakes.clock import ManualClock
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.runtime import large_work
from toolhub_service.runtime.large_work import ALLOWANCE_S, MAX_WAIT_S, MAX_WAITING_BYTES, SHARE, LargeWork

DEADLOCK_S = 60.0
"""A test that waits so long has failed."""


class Processor(threading.local):
    """Each thread's processor time, by hand."""

    had_s = 0.0

    def __call__(self) -> float:
        return self.had_s


class Stage:
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
async def stage() -> Stage:
    return Stage()


async def begun() -> None:
    """Every task that was made has come to where it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_piece_returns_what_it_returns_and_fails_as_it_fails(stage: Stage) -> None:
    assert await stage.large.run("a", 1, max, 3, 5) == 5
    with pytest.raises(ZeroDivisionError):
        await stage.large.run("a", 1, lambda: 1 // 0)
    assert await stage.read("a", "after a failure") == "after a failure"


async def test_pieces_run_one_at_a_time_and_principals_take_turns(stage: Stage) -> None:
    async with stage.held("a"):
        waiting = [stage.read("a", f"a{number}") for number in range(3)]
        await begun()
        waiting += [stage.read("b", f"b{number}") for number in range(2)] + [stage.read("c", "c0")]
        await begun()
        assert stage.done == []
    await asyncio.gather(*waiting)
    assert stage.done == ["held", "a0", "b0", "c0", "a1", "b1", "a2"]


async def test_a_piece_whose_caller_left_while_it_waited_is_never_run(stage: Stage) -> None:
    async with stage.held("a"):
        left, stays = stage.read("a", "left"), stage.read("a", "stays")
        await begun()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    await stays
    assert left.cancelled()
    assert stage.done == ["held", "stays"]


async def test_a_caller_that_leaves_in_the_moment_of_its_turn_passes_it_on(stage: Stage) -> None:
    def gives_up() -> None:
        asyncio.get_running_loop().call_soon(left.cancel)  # after the next turn was given, before it is taken
        raise PermissionError

    async with stage.held("a"):
        gives_up_first = stage.read("b", before=gives_up)
        left, stays = stage.read("c", "left"), stage.read("d", "stays")
        await begun()
    assert await stays == "stays"
    assert isinstance(gives_up_first.exception(), PermissionError)
    assert left.cancelled()
    assert stage.done == ["held", "stays"]


async def test_a_piece_whose_caller_left_while_it_ran_keeps_its_turn_to_the_end(stage: Stage) -> None:
    async with stage.held("a") as running:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        following = stage.read("b", "following")
        await begun()
        assert running.cancelled()
        assert stage.done == []
    await following
    assert stage.done == ["held", "following"]


async def test_a_piece_that_is_refused_at_its_turn_passes_it_on_and_costs_nothing(stage: Stage) -> None:
    def refuse() -> None:
        raise PermissionError

    refused = stage.read("a", "refused", cost_s=100.0, before=refuse)
    with pytest.raises(PermissionError):
        await refused
    assert await stage.read("a", "next") == "next"
    stage.large.admit("a", 1)


async def test_a_principal_is_asked_to_wait_once_its_allowance_and_what_it_may_wait_for_are_used_up(
    stage: Stage,
) -> None:
    await stage.read("a", cost_s=ALLOWANCE_S + MAX_WAIT_S * SHARE)
    stage.large.admit("a", 1)
    await stage.read("b", cost_s=ALLOWANCE_S + MAX_WAIT_S * SHARE + 1.0)
    with pytest.raises(ToolFailure) as refused:
        stage.large.admit("b", 1)
    error = refused.value.error
    assert error.kind is ErrorKind.RATE_LIMITED
    assert error.retry_after_s == pytest.approx(MAX_WAIT_S + 1.0 / SHARE)
    assert error.details["limit"] == "large-arguments"
    assert "Wait 4.0 seconds" in error.message
    stage.clock.advance(1.0 / SHARE)
    stage.large.admit("b", 1)


async def test_a_piece_beyond_the_share_waits_until_it_is_due_and_holds_nobody_else_up(stage: Stage) -> None:
    await stage.read("a", "a0", cost_s=ALLOWANCE_S + 0.005)
    waiting = stage.read("a", "a1")
    await begun()
    for number in range(5):
        await stage.read("b", f"b{number}")
    assert not waiting.done()
    stage.clock.advance(0.005 / SHARE)
    await waiting
    assert stage.done == ["a0", "b0", "b1", "b2", "b3", "b4", "a1"]


async def test_what_fails_and_what_nobody_waits_for_any_more_is_charged_too(stage: Stage) -> None:
    def failing() -> None:
        stage.processor.had_s += 100.0
        raise KeyError

    with pytest.raises(KeyError):
        await stage.large.run("a", 1, failing)
    with pytest.raises(ToolFailure):
        stage.large.admit("a", 1)


async def test_no_more_bytes_of_a_principal_wait_than_their_bound(stage: Stage) -> None:
    async with stage.held("a"):
        half = MAX_WAITING_BYTES // 2
        waiting = [stage.read("a", size_bytes=half) for _ in range(2)]
        await begun()
        with pytest.raises(ToolFailure) as refused:
            stage.large.admit("a", 1)
        assert refused.value.error.kind is ErrorKind.RATE_LIMITED
        assert refused.value.error.retry_after_s == 1.0
        stage.large.admit("b", half)
        waiting[0].cancel()
        await begun()
        stage.large.admit("a", half)  # what nobody waits for any more counts no longer
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_one_piece_may_be_larger_than_the_bound_where_nothing_waits(stage: Stage) -> None:
    stage.large.admit("a", MAX_WAITING_BYTES + 1)
    async with stage.held("a"):
        stage.read("a", size_bytes=1)
        await begun()
        with pytest.raises(ToolFailure):
            stage.large.admit("a", MAX_WAITING_BYTES)


async def test_shares_are_kept_for_so_many_principals_and_the_oldest_goes_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_work, "_MAX_PRINCIPALS", 3)
    for number in range(4):
        await stage.read(f"principal-{number}", cost_s=100.0)
    stage.large.admit("principal-0", 1)
    for number in range(1, 4):
        with pytest.raises(ToolFailure):
            stage.large.admit(f"principal-{number}", 1)
