"""`until_deadline` behaves as `asyncio.timeout_at` and differs by its price alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from toolhub_service.aio.waits import until_deadline


def at(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_work_that_never_waits_sets_no_timer() -> None:
    loop: Any = asyncio.get_running_loop()

    async def work() -> int:
        return 5

    before = len(loop._scheduled)
    assert await until_deadline(at(60), work()) == 5
    assert len(loop._scheduled) == before


async def test_work_that_waits_returns_what_it_found() -> None:
    gate = asyncio.Event()

    async def work() -> list[str]:
        found = []
        for turn in ("one", "two", "three"):
            await asyncio.sleep(0)
            found.append(turn)
        await gate.wait()
        return found

    running = asyncio.create_task(until_deadline(at(60), work()))
    await asyncio.sleep(0)
    gate.set()
    assert await running == ["one", "two", "three"]


async def test_work_that_still_waits_at_the_deadline_is_cancelled_and_reported_as_a_timeout() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            await never()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        await until_deadline(at(0.01), work())
    assert seen == ["cancelled"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_deadline_that_has_passed_ends_work_at_its_first_wait() -> None:
    with pytest.raises(TimeoutError):
        await until_deadline(at(-1), never())


async def test_cancellation_from_outside_stays_a_cancellation() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await never()
        finally:
            seen.append("cleared up")

    running = asyncio.create_task(until_deadline(at(60), work()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["cleared up"]


async def test_work_may_clear_up_with_waits_of_its_own_and_answer_in_spite_of_being_cancelled() -> None:
    async def work() -> str:
        try:
            await never()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "still answered"

    running = asyncio.create_task(until_deadline(at(60), work()))
    await asyncio.sleep(0)
    running.cancel()
    assert await running == "still answered"


@pytest.mark.parametrize("waits", [False, True])
async def test_an_exception_of_the_work_is_raised(waits: bool) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        await until_deadline(at(60), work())


@pytest.mark.parametrize("waits", [False, True])
async def test_a_timeout_raised_by_the_work_stays_its_own(waits: bool) -> None:
    """A TimeoutError that the work raises itself passes, before and after its first wait."""

    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        async with asyncio.timeout(0.01):
            await never()

    with pytest.raises(TimeoutError):
        await until_deadline(at(60), work())


async def test_work_runs_in_the_task_and_the_context_of_its_caller() -> None:
    tasks = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        tasks.append(asyncio.current_task())

    await until_deadline(at(60), work())
    assert set(tasks) == {asyncio.current_task()}


async def test_deadline_reaches_through_timeouts_inside() -> None:
    async def work() -> None:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await never()

    with pytest.raises(TimeoutError):
        await until_deadline(at(0.01), work())


async def test_work_that_is_dropped_is_closed() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await never()
        except GeneratorExit:
            seen.append("closed")
            raise

    begun = until_deadline(at(60), work())
    begun.send(None)
    begun.close()
    assert seen == ["closed"]


@pytest.mark.parametrize("wait", [lambda: asyncio.sleep(0), lambda: asyncio.to_thread(int)])
async def test_many_waits_lose_no_result(wait: Callable[[], Awaitable[object]]) -> None:
    async def work() -> int:
        for _ in range(20):
            await wait()
        return 7

    assert await until_deadline(at(60), work()) == 7
