"""The upkeep of the audit log: one process has the turn, what fails is tried again later, and it ends when told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from toolhub_service.stores.audit import upkeep
from toolhub_service.stores.audit.upkeep import AuditUpkeep, UpkeepTask

AWAY = ConnectionError("away")


class FakeTurn:
    def __init__(self) -> None:
        self.is_closed = False

    def is_held(self) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True


class FakeTurns:
    """In the place of the store: hands out these, one each time it is asked, and the last one ever again."""

    def __init__(self, *answers: FakeTurn | Exception | None) -> None:
        self._answers = list(answers)

    def take_turn(self) -> FakeTurn | None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class RecordingUpkeepObserver:
    def __init__(self) -> None:
        self.failures: list[tuple[str, Exception]] = []

    def upkeep_failed(self, task: str, problem: Exception) -> None:
        self.failures.append((task, problem))


class CountedRests(AuditUpkeep):
    """Writes down how long it would rest, and leaves when it has rested so often."""

    def __init__(self, turns: Any, step: Callable[[], bool], *, leaves_after: int = 0) -> None:
        self.observer = RecordingUpkeepObserver()
        super().__init__(turns, [UpkeepTask("task", step, every_s=0.5)], self.observer)
        self.rests_s: list[float] = []
        self._leaves_after = leaves_after

    async def _rest(self, seconds: float) -> None:
        self.rests_s.append(seconds)
        if len(self.rests_s) == self._leaves_after:
            self._leaving.set()

    async def finished(self) -> None:
        assert self._running is not None
        async with asyncio.timeout(60):
            await self._running


async def test_process_without_the_turn_asks_for_it_again_and_works_once_it_has_it() -> None:
    turn, steps = FakeTurn(), list[str]()

    def step() -> bool:
        steps.append("step")
        return False

    running = CountedRests(FakeTurns(AWAY, None, turn), step, leaves_after=3)
    running.start()
    await running.finished()
    assert running.observer.failures == [("turn", AWAY)]
    assert (running.rests_s, len(steps), turn.is_closed) == ([5.0, 5.0, 0.5], 1, True)


async def test_what_fails_is_reported_and_tried_again_after_a_pause_that_doubles_up_to_a_minute() -> None:
    def step() -> bool:
        raise AWAY

    running = CountedRests(FakeTurns(FakeTurn()), step, leaves_after=8)
    running.start()
    await running.finished()
    assert running.rests_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert running.observer.failures == [("task", AWAY)] * 8


async def test_close_waits_for_no_step_that_hangs_and_gives_the_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LEAVE_S", 0.01)
    begun, let_go, turn = threading.Event(), threading.Event(), FakeTurn()

    def step() -> bool:
        begun.set()
        return not let_go.wait(60)

    running = CountedRests(FakeTurns(turn), step)
    running.start()
    try:
        await asyncio.to_thread(begun.wait, 60)
        async with asyncio.timeout(20):
            await running.close()
        assert turn.is_closed
    finally:
        let_go.set()
