"""The upkeep of the audit log: one process holds the lock, a failure is tried again later, and `close` ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from toolhub_service.stores.audit import upkeep
from toolhub_service.stores.audit.upkeep import AuditUpkeep, UpkeepTask

AWAY = ConnectionError("away")


class FakeLock:
    def __init__(self) -> None:
        self.is_closed = False

    def is_held(self) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True


class FakeLocks:
    """In the place of the store: these are its answers, one for each request, and the last one for all further ones."""

    def __init__(self, *answers: FakeLock | Exception | None) -> None:
        self._answers = list(answers)

    def take_upkeep_lock(self) -> FakeLock | None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class RecordingUpkeepObserver:
    def __init__(self) -> None:
        self.failures: list[tuple[str, Exception]] = []

    def upkeep_failed(self, task: str, problem: Exception) -> None:
        self.failures.append((task, problem))


class CountedPauses(AuditUpkeep):
    """Records its pauses instead of waiting, and leaves after so many."""

    def __init__(self, locks: Any, step: Callable[[], bool], *, leaves_after: int = 0) -> None:
        self.observer = RecordingUpkeepObserver()
        super().__init__(locks, [UpkeepTask("task", step, every_s=0.5)], self.observer)
        self.pauses_s: list[float] = []
        self._leaves_after = leaves_after

    async def _pause(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        if len(self.pauses_s) == self._leaves_after:
            self._leaving.set()

    async def finished(self) -> None:
        assert self._running is not None
        async with asyncio.timeout(60):
            await self._running


async def test_process_without_the_lock_asks_for_it_again_and_works_once_it_holds_it() -> None:
    lock, steps = FakeLock(), list[str]()

    def step() -> bool:
        steps.append("step")
        return False

    running = CountedPauses(FakeLocks(AWAY, None, lock), step, leaves_after=3)
    running.start()
    await running.finished()
    assert running.observer.failures == [("turn", AWAY)]
    assert (running.pauses_s, len(steps), lock.is_closed) == ([5.0, 5.0, 0.5], 1, True)


async def test_failed_step_is_reported_and_tried_again_after_a_pause_that_doubles_up_to_a_minute() -> None:
    def step() -> bool:
        raise AWAY

    running = CountedPauses(FakeLocks(FakeLock()), step, leaves_after=8)
    running.start()
    await running.finished()
    assert running.pauses_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert running.observer.failures == [("task", AWAY)] * 8


async def test_close_waits_for_no_step_that_hangs_and_releases_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LEAVE_S", 0.01)
    begun, let_go, lock = threading.Event(), threading.Event(), FakeLock()

    def step() -> bool:
        begun.set()
        return not let_go.wait(60)

    running = CountedPauses(FakeLocks(lock), step)
    running.start()
    try:
        await asyncio.to_thread(begun.wait, 60)
        async with asyncio.timeout(20):
            await running.close()
        assert lock.is_closed
    finally:
        let_go.set()
