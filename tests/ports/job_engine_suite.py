"""What every engine must do, alone or beside others. Inherit `JobEngineSuite` and give engines.

The fixture `engines` is the subclass's: it makes an engine with room for so many runs, and closes it at the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from toolhub_service.domain.job_ports import JobEngine

Engines = Callable[[int], JobEngine]
LONG_S = 60.0
"""Longer than anything here takes: an engine that does not deliver fails by name."""
AT_ONCE_S = 0.0


@dataclass(slots=True)
class FakeRunner:
    """What an engine delivers to: keeps each run until it is let go, and records its events."""

    held: bool = False
    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    under_way: Counter[str] = field(default_factory=Counter)
    most: int = 0
    crashes: frozenset[str] = frozenset()
    order: list[str] = field(default_factory=list)
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, job_id: str) -> None:
        self.under_way[job_id] += 1
        self.most = max(self.most, self.under_way.total())
        assert self.under_way[job_id] == 1, "one run of a job at a time in one process"
        await self._count(self.begun, job_id)
        self.order.append(job_id)
        try:
            if self.held:
                await self._go.wait()
            if job_id in self.crashes:
                raise RuntimeError(job_id)
        except asyncio.CancelledError:
            await self._count(self.cancelled, job_id)
            raise
        finally:
            self.under_way[job_id] -= 1
        await self._count(self.ended, job_id)

    def let_go(self) -> None:
        self._go.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG_S), self._news:
            await self._news.wait_for(holds)

    async def _count(self, counter: Counter[str], job_id: str) -> None:
        async with self._news:
            counter[job_id] += 1
            self._news.notify_all()


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


def ids(count: int, name: str = "job") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


class JobEngineSuite:
    async def test_job_is_delivered(self, engines: Engines, runner: FakeRunner) -> None:
        engine = engines(4)
        await engine.start(runner.run)
        await engine.enqueue("job-1")
        await runner.until(lambda: runner.ended["job-1"] == 1)
        assert runner.order == ["job-1"]

    @pytest.mark.promise("jobs.delivered")
    async def test_five_hundred_at_once_are_all_delivered_once(self, engines: Engines, runner: FakeRunner) -> None:
        engine = engines(16)
        await engine.start(runner.run)
        await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(500)))
        await runner.until(lambda: len(runner.ended) == 500)
        assert set(runner.begun.values()) == {1}

    async def test_no_more_run_at_once_than_there_is_room_for(self, engines: Engines, runner: FakeRunner) -> None:
        runner.held = True
        engine = engines(3)
        await engine.start(runner.run)
        await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(10)))
        await runner.until(lambda: len(runner.begun) == 3)
        assert engine.running == 3
        runner.let_go()
        await runner.until(lambda: len(runner.ended) == 10)
        assert runner.most == 3

    async def test_jobs_are_delivered_in_the_order_they_came(self, engines: Engines, runner: FakeRunner) -> None:
        engine = engines(1)
        await engine.start(runner.run)
        for job_id in ids(10):
            await engine.enqueue(job_id)
        await runner.until(lambda: len(runner.ended) == 10)
        assert runner.order == ids(10)

    async def test_job_enqueued_while_it_waits_is_delivered_once(self, engines: Engines, runner: FakeRunner) -> None:
        runner.held = True
        engine = engines(1)
        await engine.start(runner.run)
        await engine.enqueue("first")
        await runner.until(lambda: runner.begun["first"] == 1)
        await asyncio.gather(*(engine.enqueue("second") for _ in range(20)))
        await engine.enqueue("last")
        runner.let_go()
        await runner.until(lambda: runner.ended["last"] == 1)
        assert runner.begun["second"] == 1

    async def test_job_enqueued_while_it_runs_is_delivered_again_afterwards(
        self, engines: Engines, runner: FakeRunner
    ) -> None:
        runner.held = True
        engine = engines(4)
        await engine.start(runner.run)
        await engine.enqueue("job-1")
        await runner.until(lambda: runner.begun["job-1"] == 1)
        await asyncio.gather(*(engine.enqueue("job-1") for _ in range(20)))
        await engine.enqueue("job-2")
        await runner.until(lambda: runner.begun["job-2"] == 1)
        assert runner.begun["job-1"] == 1, "the first run has not ended"
        runner.let_go()
        await runner.until(lambda: runner.ended["job-1"] == 2)
        await engine.enqueue("job-3")
        await runner.until(lambda: runner.ended["job-3"] == 1)
        assert runner.begun["job-1"] == 2

    async def test_job_whose_run_has_ended_can_be_delivered_again(self, engines: Engines, runner: FakeRunner) -> None:
        engine = engines(4)
        await engine.start(runner.run)
        for number in range(1, 6):
            await engine.enqueue("job-1")
            await runner.until(lambda: runner.ended["job-1"] == number)  # noqa: B023 - awaited in its own turn
        assert runner.order == ["job-1"] * 5

    async def test_run_that_crashes_stops_no_other(self, engines: Engines, runner: FakeRunner) -> None:
        messages: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: messages.append(str(context["exception"])))
        runner.crashes = frozenset({"job-0", "job-3"})
        engine = engines(1)
        await engine.start(runner.run)
        for job_id in ids(6):
            await engine.enqueue(job_id)
        await runner.until(lambda: len(runner.ended) == 4)
        assert messages == ["job-0", "job-3"]

    async def test_run_that_is_cancelled_stops_no_other(self, engines: Engines, runner: FakeRunner) -> None:
        runner.held = True
        engine = engines(2)
        await engine.start(runner.run)
        await engine.enqueue("job-1")
        await runner.until(lambda: runner.begun["job-1"] == 1)
        task = next(task for task in asyncio.all_tasks() if task.get_name() == "job job-1")
        task.cancel()
        await runner.until(lambda: runner.cancelled["job-1"] == 1)
        runner.let_go()
        await engine.enqueue("job-2")
        await runner.until(lambda: runner.ended["job-2"] == 1)
        assert not runner.ended["job-1"]

    async def test_close_lets_running_jobs_end(self, engines: Engines, runner: FakeRunner) -> None:
        runner.held = True
        engine = engines(4)
        await engine.start(runner.run)
        await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(3)))
        await runner.until(lambda: len(runner.begun) == 3)
        closing = asyncio.create_task(engine.close(LONG_S))
        await asyncio.sleep(0)
        runner.let_go()
        await closing
        assert len(runner.ended) == 3
        assert not runner.cancelled
        assert engine.running == 0

    async def test_close_cancels_what_has_not_ended_within_the_grace(
        self, engines: Engines, runner: FakeRunner
    ) -> None:
        runner.held = True
        engine = engines(4)
        await engine.start(runner.run)
        await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(3)))
        await runner.until(lambda: len(runner.begun) == 3)
        await engine.close(AT_ONCE_S)
        assert len(runner.cancelled) == 3
        assert engine.running == 0

    async def test_closed_engine_delivers_nothing_more(self, engines: Engines, runner: FakeRunner) -> None:
        runner.held = True
        engine = engines(1)
        await engine.start(runner.run)
        await engine.enqueue("job-1")
        await runner.until(lambda: runner.begun["job-1"] == 1)
        await engine.enqueue("job-2")
        closing = asyncio.create_task(engine.close(LONG_S))
        await asyncio.sleep(0)
        runner.let_go()
        await closing
        assert runner.begun == Counter({"job-1": 1})

    async def test_a_run_that_waits_for_others_leaves_them_its_room(self, engines: Engines) -> None:
        engine = engines(1)
        waiting, may_go, went_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        runner = FakeRunner()

        async def run(job_id: str) -> None:
            if job_id != "parent":
                await runner.run(job_id)
                return
            async with engine.park(job_id), engine.park(job_id):
                waiting.set()
                await may_go.wait()
            went_on.set()

        await engine.start(run)
        async with asyncio.timeout(LONG_S):
            await engine.enqueue("parent")
            await waiting.wait()
            await engine.enqueue("child")
            await runner.until(lambda: runner.ended["child"] == 1)
            may_go.set()
            await went_on.wait()
            await engine.enqueue("later")
            await runner.until(lambda: runner.ended["later"] == 1)
        async with engine.park("unknown"):
            assert runner.most == 1

    async def test_idle_engine_closes_at_once(self, engines: Engines, runner: FakeRunner) -> None:
        engine = engines(4)
        await engine.start(runner.run)
        await engine.close(LONG_S)
        assert engine.waiting == 0
