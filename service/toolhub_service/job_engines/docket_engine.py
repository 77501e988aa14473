"""The shared engine: jobs are delivered through Redis to any hub that serves the same docket (pydocket 0.27).

A delivery is a docket task without arguments, whose key names the job. A worker renews its claim on the message while
the job runs; a message that nobody has renewed for `redelivery_s` goes to another worker, so a killed one's jobs run
elsewhere a little later. docket's state of its tasks is not the state of jobs.

Lanes. docket accepts no second task with a key whose task waits or runs. For waiting tasks that is wanted: duplicates
collapse. For running ones it would lose jobs: a job that is approved, handed over or taken from a dead runner is
enqueued while docket still counts its last delivery as running. So each job has lanes, one docket key each: the first
lane that is not running takes it. A delivery that finds an earlier one in its own process makes that run the job again,
and ends: the earlier message covers both. In another process the store's state decides.

Detached. When Redis is lost the worker drops its messages, and with them its tasks; the runs themselves go on. When
Redis is back, the messages are delivered again, here or elsewhere, and find the run or its result.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from docket import Disposition, TaskKey, Worker
from redis.exceptions import RedisError

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.job_engines.hub_docket import HubDocket, Sessions, tame
from toolhub_service.job_engines.runs import Run, Runs

# How long an enqueue may take before Redis counts as lost.
_ENQUEUE_S = 3.0
_RETRY_S = 1.0
# How long an orderly disconnect from Redis may take.
_LEAVING_S = 5.0
# How soon a full worker notices free room.
_POLL_S = 0.05
_TASK = "job"


class DocketEngine:
    """A JobEngine for all processes that name the same docket on the same Redis."""

    def __init__(self, redis_url: str, name: str, max_running: int, redelivery_s: float = 5.0) -> None:
        """`name` is the prefix of all keys. `max_running`, at least 1, applies to this process."""
        tame()
        self._docket = HubDocket(name, redis_url)
        self._max_running = max_running
        self._redelivery = timedelta(seconds=redelivery_s)
        self._runs: Runs | None = None
        # Jobs with a delivery under way here.
        self._followed: set[str] = set()
        # Jobs that were delivered again meanwhile.
        self._again: set[str] = set()
        # By run: how many of its parts only wait for other jobs.
        self._parked: Counter[str] = Counter()
        self._worker: Worker | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._leaving = asyncio.Event()

    async def start(self, run: Run) -> None:
        """Start the worker without waiting for Redis: the worker itself waits for it."""
        self._runs = Runs(run)

        async def job(key: str = TaskKey()) -> None:
            await self._deliver(key.partition(":")[2])

        self._docket.register(job, [_TASK])
        ready = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(ready), name="docket")
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            await self._serving

    async def enqueue(self, job_id: str, tenant: str = "") -> None:
        """Enqueue a job. Raises ToolFailure TOOL_UNAVAILABLE when Redis does not answer; it may be delivered anyway."""
        try:
            async with asyncio.timeout(_ENQUEUE_S):
                await self._enqueue(job_id)
        except (RedisError, OSError) as lost:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                "Jobs cannot be handed out now: their queue does not answer. Try the same again in a moment.",
                retry_after_s=_RETRY_S,
            ) from lost

    @asynccontextmanager
    async def park(self, job_id: str) -> AsyncIterator[None]:
        """The worker takes one more message meanwhile, and one less once it has room: leaving the block never waits."""
        if self._runs is None or self._runs.get(job_id) is None:
            yield
            return
        self._parked[job_id] += 1
        self._set_room()
        try:
            yield
        finally:
            self._parked[job_id] -= 1
            if not self._parked[job_id]:
                del self._parked[job_id]
            self._set_room()

    def _set_room(self) -> None:
        if self._worker is not None and not self._closing.is_set():
            self._worker.concurrency = self._max_running + len(self._parked)

    @property
    def running(self) -> int:
        return len(self._runs) if self._runs is not None else 0

    @property
    def waiting(self) -> int:
        """Return the jobs that run here and will run again; jobs that wait in Redis wait in no process."""
        return len(self._again)

    async def close(self, grace_s: float) -> None:
        """As the port says; cancelled jobs are enqueued again, for another process."""
        self._closing.set()
        if self._worker is not None:
            self._worker.concurrency = 0
        if self._runs is not None:
            await self._runs.end(grace_s)
        self._leaving.set()
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=_LEAVING_S)
            self._serving.cancel()
            await asyncio.wait([self._serving])

    async def _enqueue(self, job_id: str) -> None:
        number = 0
        while True:
            key = f"{number}:{job_id}"
            execution = await self._docket.add(_TASK, key=key)()
            if execution.disposition is not Disposition.ALREADY_SCHEDULED:
                return
            async with self._docket.redis() as redis:
                state = await redis.hget(self._docket.runs_key(key), "state")
            if state in {b"queued", b"scheduled"}:
                return
            # docket refuses a second task with a key whose first one runs, so the next delivery uses another key. In
            # any other state the first one has ended meanwhile, and its key is free again.
            if state == b"running":
                number += 1

    async def _deliver(self, job_id: str) -> None:
        """One docket task. When cancelled, it leaves its message to be delivered again."""
        if self._closing.is_set():
            await self._hand_over(job_id)
            return
        if job_id in self._followed:
            self._again.add(job_id)
            return
        self._followed.add(job_id)
        try:
            await self._follow(job_id)
        finally:
            self._followed.remove(job_id)

    async def _follow(self, job_id: str) -> None:
        """Run the job until no delivery has arrived since its last run began."""
        runs, session = self._runs, self._docket.session
        assert runs is not None
        assert session is not None
        if (detached := runs.get(job_id)) is not None:
            await _either(detached, session)
        ran = False
        while not ran or job_id in self._again:
            if self._closing.is_set():
                await self._hand_over(job_id)
                return
            self._again.discard(job_id)
            run = runs.start(job_id)
            await _either(run, session)
            ran = not (run.cancelled() and self._closing.is_set())

    async def _hand_over(self, job_id: str) -> None:
        """Enqueue for another process; if that fails, the message is redelivered like a dead process's."""
        session = self._docket.session
        assert session is not None
        # Not before the last read of this process has ended, which would take it again.
        await asyncio.wait((session,), timeout=2 * _POLL_S)
        try:
            await self.enqueue(job_id)
        except ToolFailure:
            await asyncio.wait((session,))
            raise asyncio.CancelledError from None

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        """All of docket runs in this task, which its context variables require."""
        name = f"{platform.node()}#{os.getpid()}#{secrets.token_hex(4)}"
        async with self._docket, asyncio.TaskGroup() as tasks:
            worker = Worker(
                self._docket,
                name=name,
                concurrency=self._max_running,
                redelivery_timeout=self._redelivery,
                reconnection_delay=timedelta(seconds=_RETRY_S),
                minimum_check_interval=timedelta(seconds=_POLL_S),
                scheduling_resolution=self._redelivery,
                schedule_automatic_tasks=False,
                dependencies=[Sessions()],
            )
            async with worker:
                self._worker = worker
                tasks.create_task(self._work(worker))
                ready.set_result(None)
                await self._leaving.wait()

    async def _work(self, worker: Worker) -> None:
        """Run the worker.

        docket survives Redis failures itself; a message it cannot read must not end all deliveries.
        """
        while not self._leaving.is_set():
            try:
                await worker.run_forever()
            except Exception as crash:  # noqa: BLE001 - reported, and begun anew
                context = {"message": "the docket worker crashed", "exception": crash}
                asyncio.get_running_loop().call_exception_handler(context)
                with suppress(TimeoutError):  # a pause that closing the engine cuts short
                    await asyncio.wait_for(self._leaving.wait(), _RETRY_S)
                # Redis may still be unreachable; the next round retries.
                with suppress(RedisError):
                    await self._docket.drop_unreadable()


async def _either(run: asyncio.Task[None], session: asyncio.Future[None]) -> None:
    """Wait until the run has ended and may be started again. Raises CancelledError when the session has ended."""
    await asyncio.wait((run, session), return_when=asyncio.FIRST_COMPLETED)
    # Both may have ended at once; then `Runs` does not know of it yet.
    if session.done():
        raise asyncio.CancelledError
