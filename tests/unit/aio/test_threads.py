"""Work on files beside the event loop: what takes long does not take the threads of what does not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from toolhub_service.aio.threads import INLINE_BYTES, LONG_BYTES, ByteProgress, to_thread_if_large
from toolhub_service.domain.result import Chunk, Progress

SHORT_BYTES = INLINE_BYTES + 1
MANY = 64
"""More than there are threads for either kind of work."""


async def test_short_work_goes_on_while_long_work_fills_its_threads() -> None:
    release = threading.Event()
    long_work = [asyncio.create_task(to_thread_if_large(LONG_BYTES, lambda _: release.wait(60))) for _ in range(MANY)]
    await asyncio.sleep(0)
    for _ in range(MANY):
        assert await to_thread_if_large(SHORT_BYTES, lambda _: "done") == "done"
    assert not any(task.done() for task in long_work)
    release.set()
    assert await asyncio.gather(*long_work) == [True] * MANY


async def test_long_work_that_is_cancelled_before_its_turn_ends_at_once_and_never_runs() -> None:
    release, ran = threading.Event(), []
    first = [asyncio.create_task(to_thread_if_large(LONG_BYTES, lambda _: release.wait(60))) for _ in range(MANY)]
    await asyncio.sleep(0)
    late = asyncio.create_task(to_thread_if_large(LONG_BYTES, lambda _: ran.append(1)))
    await asyncio.sleep(0)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert not any(task.done() for task in first)
    release.set()
    await asyncio.gather(*first)
    await to_thread_if_large(LONG_BYTES, lambda _: None)  # whatever waited before it has had its turn
    assert ran == []


async def test_cancelled_work_that_runs_is_stopped_and_awaited() -> None:
    begun, stopped = threading.Event(), threading.Event()

    def work(stop: threading.Event | None) -> None:
        assert stop is not None
        begun.set()
        stop.wait(60)
        stopped.set()

    task = asyncio.create_task(to_thread_if_large(SHORT_BYTES, work))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


class RecordingSink:
    def __init__(self) -> None:
        self.steps: list[float] = []

    def progress(self, progress: Progress) -> None:
        self.steps.append(progress.step)

    def chunk(self, chunk: Chunk) -> None:
        raise AssertionError(chunk)


async def test_the_end_is_reported_once_though_the_last_chunk_was_due_for_a_report() -> None:
    reports = RecordingSink()
    progress = ByteProgress(reports, 20, every_s=0.0)
    for _ in range(2):
        progress.advance(10)
    progress.finish()
    await asyncio.sleep(0)
    assert reports.steps == [10, 20]
