"""Worker processes and their pool, with workers that start in milliseconds."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import frame_worker
from tests.fakes.langchain_source import gone
from tests.kills import KILLS
from toolhub_service.adapters.langchain.frames import FrameTooLarge, encode
from toolhub_service.adapters.langchain.worker_pool import PoolClosed, WorkerPool
from toolhub_service.adapters.langchain.worker_process import WorkerFailed, WorkerProcess, WorkerTerms, start_worker

PROGRAM = frame_worker.__file__


class WorkerStarts:
    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.started: list[int] = []
        self.greeting = {"do": "greet"}
        self.ready = asyncio.Event()

    async def start(self) -> WorkerProcess:
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        terms = WorkerTerms(
            [sys.executable, PROGRAM], environment, encode(self.greeting), start_timeout_s=30, max_frame_bytes=1000
        )
        worker = await start_worker(terms, self.lines.put_nowait)
        self.started.append(worker.pid)
        self.ready.set()
        return worker

    async def reported(self, word: str) -> str:
        while not (line := await asyncio.wait_for(self.lines.get(), 60)).startswith(word):
            pass
        return line


@pytest.fixture
def workers() -> WorkerStarts:
    return WorkerStarts()


@pytest.fixture
async def pool(workers: WorkerStarts) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(workers.start, size=2)
    yield pool
    await pool.close()


async def asked(pool: WorkerPool, do: str = "echo", **more: Any) -> Any:
    return await pool.ask(encode({"do": do, **more}))


async def test_no_worker_is_started_before_it_is_needed_and_one_serves_calls_in_turn(
    pool: WorkerPool, workers: WorkerStarts
) -> None:
    assert pool.pids == ()
    pids = {(await asked(pool, n=n))["pid"] for n in range(5)}
    assert pids == set(workers.started)
    assert len(pids) == 1
    assert os.getpgid(pids.pop()) != os.getpgid(0)


async def test_a_warm_pool_has_one_worker_ready_before_the_first_call(pool: WorkerPool, workers: WorkerStarts) -> None:
    pool.warm()
    pool.warm()
    await asyncio.wait_for(workers.ready.wait(), 60)
    assert (await asked(pool))["pid"] == pool.pids[0]
    pool.warm()
    assert len(workers.started) == 1
    await pool.close()
    pool.warm()
    assert pool.pids == ()


async def test_calls_at_the_same_time_share_the_workers_and_are_not_mixed(
    pool: WorkerPool, workers: WorkerStarts
) -> None:
    answers = await asyncio.gather(*(asked(pool, n=n) for n in range(20)))
    assert [answer["n"] for answer in answers] == list(range(20))
    assert {answer["pid"] for answer in answers} <= set(workers.started)
    assert len(workers.started) <= 2


async def test_a_cancelled_call_takes_its_worker_with_it_and_a_fresh_one_takes_its_place(
    pool: WorkerPool, workers: WorkerStarts
) -> None:
    await asked(pool)
    (pid,) = pool.pids
    workers.ready.clear()
    call = asyncio.create_task(asked(pool, "sleep"))
    await workers.reported("sleeping")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(pid, within_s=0)
    await asyncio.wait_for(workers.ready.wait(), 60)
    assert (await asked(pool))["pid"] == workers.started[-1] != pid


@pytest.mark.promise("langchain.timeout-kills")
async def test_a_daemon_that_a_call_has_started_ends_with_it(pool: WorkerPool, workers: WorkerStarts) -> None:
    call = asyncio.create_task(asked(pool, "leave a child behind"))
    left = int((await workers.reported("left")).split()[1])
    assert os.getsid(left) != os.getsid(pool.pids[0])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(left)


@pytest.mark.promise("langchain.timeout-kills")
async def test_a_daemon_that_a_call_has_started_ends_with_the_source(pool: WorkerPool, workers: WorkerStarts) -> None:
    call = asyncio.create_task(asked(pool, "leave a child behind"))
    left = int((await workers.reported("left")).split()[1])
    await pool.close()
    with pytest.raises(PoolClosed):
        await call
    assert await gone(left)


async def test_a_worker_that_ignores_sigterm_is_killed(pool: WorkerPool, workers: WorkerStarts) -> None:
    call = asyncio.create_task(asked(pool, "ignore SIGTERM"))
    await workers.reported("ignoring")
    (pid,) = pool.pids
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(pid, within_s=0)


async def test_a_worker_that_dies_fails_its_own_call_only(pool: WorkerPool, workers: WorkerStarts) -> None:
    living = asyncio.create_task(asked(pool))
    with pytest.raises(WorkerFailed) as failed:
        await asked(pool, "exit")
    assert failed.value.was_asked
    assert (await living)["do"] == "echo"
    assert (await asked(pool))["do"] == "echo"


async def test_a_worker_that_dies_between_calls_is_replaced_without_a_failed_call(
    pool: WorkerPool, workers: WorkerStarts
) -> None:
    first = (await asked(pool))["pid"]
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(60):
        while pool.pids:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0)
    assert (await asked(pool))["pid"] != first


async def test_an_unrequested_message_of_a_worker_answers_no_call(pool: WorkerPool, workers: WorkerStarts) -> None:
    assert (await asked(pool, n=1, times=2))["n"] == 1
    assert [(await asked(pool, n=n))["n"] for n in (2, 3)] == [2, 3]
    assert len(workers.started) == 2  # the first one was cut off


async def test_an_answer_beyond_the_bound_is_not_read(pool: WorkerPool, workers: WorkerStarts) -> None:
    with pytest.raises(FrameTooLarge):
        await asked(pool, "large", size=2000)
    assert await asked(pool, "large", size=900) == "x" * 900


async def test_a_worker_that_cannot_start_is_reported_and_retried(pool: WorkerPool, workers: WorkerStarts) -> None:
    workers.greeting = {"do": "refuse to start"}
    with pytest.raises(WorkerFailed) as failed:
        await asked(pool)
    assert not failed.value.was_asked
    workers.greeting = {"do": "greet"}
    assert (await asked(pool))["do"] == "echo"


async def test_closing_ends_the_workers_and_the_calls_that_run(pool: WorkerPool, workers: WorkerStarts) -> None:
    await asked(pool)
    calls = [asyncio.create_task(asked(pool, "ignore SIGTERM")) for _ in range(3)]
    await workers.reported("ignoring")
    await workers.reported("ignoring")
    pids = pool.pids
    await pool.close()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [PoolClosed] * 3
    assert all([await gone(pid, within_s=0) for pid in pids])
    with pytest.raises(PoolClosed):
        await asked(pool)


async def test_many_kills_leave_no_descriptor_no_process_and_no_task(pool: WorkerPool, workers: WorkerStarts) -> None:
    await asked(pool)
    before, tasks, threads = _descriptors(), len(asyncio.all_tasks()), _threads()
    for _ in range(KILLS):
        call = asyncio.create_task(asked(pool, "ignore SIGTERM" if _ == 0 else "sleep"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asked(pool)
    assert len(pool.pids) <= 2
    assert len(workers.started) >= KILLS * 4 // 5
    assert all([await gone(pid, within_s=0) for pid in workers.started if pid not in pool.pids])
    assert _descriptors() <= before + 6  # the second worker
    assert len(asyncio.all_tasks()) <= tasks + 1
    async with asyncio.timeout(60):
        while _threads() > threads + 2:  # noqa: ASYNC110 - asyncio has one for each process that runs; it ends untold
            await asyncio.sleep(0)
    gc.collect()
    assert sum(isinstance(thing, WorkerProcess) for thing in gc.get_objects()) <= 2


@pytest.mark.promise("langchain.timeout-kills")
@pytest.mark.slow
async def test_a_killed_hub_takes_its_workers_and_their_children_even_where_python_is_held(tmp_path: Path) -> None:
    hub = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HUB, PROGRAM),
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert hub.stdout is not None
    pids: list[int] = []
    async with asyncio.timeout(60):
        while len(pids) < 2:
            pids.append(int((await hub.stdout.readline()).split()[-1]))
    hub.kill()
    await hub.wait()
    assert all([await gone(pid) for pid in pids])


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - asked at every step of the loop


def _threads() -> int:
    """But for those of the loop's own pool, which come as a machine happens to schedule them."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


_HUB = """
import asyncio, os, sys
from toolhub_service.adapters.langchain.worker import encode
from toolhub_service.adapters.langchain.worker_process import WorkerTerms, start_worker

async def main():
    terms = WorkerTerms([sys.executable, sys.argv[1]], dict(os.environ), encode({"do": "greet"}))
    worker = await start_worker(terms, lambda line: print(line, flush=True))
    await worker.ask(encode({"do": "hold the interpreter"}))

asyncio.run(main())
"""
