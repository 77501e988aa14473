"""Long work that lets others run, and the cost that is charged for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from toolhub_service.aio.cooperative import CpuMeter, in_thread, run_in_slices
from toolhub_service.aio.cpu_share import CpuShare


class Processor(threading.local):
    """Each thread's processor time, by hand."""

    had_s = 0.0

    def __call__(self) -> float:
        return self.had_s


@pytest.fixture
def processor() -> Processor:
    return Processor()


async def test_work_in_turns_returns_what_it_returns() -> None:
    def work() -> Generator[None, None, int]:
        yield
        yield
        return 7

    assert await run_in_slices(work()) == 7


async def test_the_steps_of_others_are_not_counted(processor: Processor) -> None:
    """Two pieces of work that alternate on one loop cost each what they did themselves."""

    async def working(step_s: float) -> None:
        for _ in range(3):
            processor.had_s += step_s
            await asyncio.sleep(0)

    meters = CpuMeter(processor), CpuMeter(processor)
    await asyncio.gather(meters[0].run(working(1.0)), meters[1].run(working(100.0)))
    assert [meter.used_s for meter in meters] == [3.0, 300.0]


async def test_work_in_a_thread_is_counted(processor: Processor) -> None:
    def work(step_s: float) -> str:
        processor.had_s += step_s
        return "done"

    meter = CpuMeter(processor)
    assert await meter.run(in_thread(work, 2.0)) == "done"
    assert meter.used_s == 2.0
    assert await in_thread(work, 2.0) == "done"
    assert meter.used_s == 2.0


async def test_work_that_fails_is_counted_and_fails_as_it_does(processor: Processor) -> None:
    async def failing() -> None:
        processor.had_s += 1.0
        await asyncio.sleep(0)
        processor.had_s += 1.0
        raise KeyError("x")

    meter = CpuMeter(processor)
    with pytest.raises(KeyError):
        await meter.run(failing())
    assert meter.used_s == 2.0


async def test_a_cancellation_reaches_the_work(processor: Processor) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def waiting() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            processor.had_s += 1.0
            ended.set()

    meter = CpuMeter(processor)
    task = asyncio.create_task(meter.run(waiting()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert meter.used_s == 1.0


async def test_work_may_catch_what_is_thrown_into_it_and_go_on(processor: Processor) -> None:
    async def bounded() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
        return "went on"

    assert await CpuMeter(processor).run(bounded()) == "went on"


def made(*charges: tuple[float, float]) -> CpuShare:
    """With a tenth of a processor and an allowance of one second, charged (cost, at)."""
    share = CpuShare(share=0.1, allowance_s=1.0)
    for cpu_s, now_s in charges:
        share.charge(cpu_s, now_s)
    return share


def test_readings_within_the_allowance_wait_for_nothing() -> None:
    assert made((0.4, 10.0), (0.5, 10.0)).due_s == 10.0


def test_the_cost_of_a_reading_beyond_the_allowance_is_waited_off() -> None:
    assert made((3.0, 10.0)).due_s == pytest.approx(10.0 + 20.0)


def test_a_waited_off_cost_is_owed_no_longer() -> None:
    assert made((3.0, 10.0), (0.0, 30.0)).due_s == pytest.approx(30.0)
    assert made((3.0, 10.0), (0.0, 20.0)).due_s == pytest.approx(30.0)


def test_a_long_quiet_time_earns_no_more_than_the_allowance() -> None:
    assert made((0.1, 0.0), (2.0, 1_000_000.0)).due_s == pytest.approx(1_000_000.0 + 10.0)


def test_a_source_takes_no_more_than_its_share_however_often_it_is_read() -> None:
    share, now_s, used_s = made(), 0.0, 0.0
    for _ in range(1_000):
        now_s = max(now_s, share.due_s) + 0.05
        share.charge(0.05, now_s)
        used_s += 0.05
    assert used_s <= 1.0 + 0.1 * now_s + 0.05
