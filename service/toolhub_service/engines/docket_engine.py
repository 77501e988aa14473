"""The shared engine: jobs are delivered through Redis to any hub that serves the same docket (pydocket 0.27).

A delivery is a docket task without arguments, whose key names the job. A worker renews its claim on the message while
the job runs; a message that nobody has renewed for `redelivery_s` goes to another worker, so a killed one's jobs run
elsewhere a little later. What docket knows of its tasks says nothing about jobs.

Lanes. docket takes no second task under a key whose task waits or runs. The first is wanted: duplicates collapse. The
second would lose a job: one that is approved, handed over or taken from a dead runner is enqueued while docket still
counts its last delivery as running. So each job has lanes, one docket key each: the first that is not running takes
it. A delivery that meets an earlier one in its own process makes it run the job again and ends: the message of the
earlier one stands for both. In another process it meets what the store says.

Detached. When Redis is lost the worker lets go of its messages, and with them of its tasks; the runs themselves go on.
When it is back, the messages come again, here or elsewhere, and find the run or its result.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
from contextlib import suppress
from datetime import timedelta

from docket import Disposition, TaskKey, Worker
from redis.exceptions import RedisError

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.engines.hub_docket import HubDocket, Sessions, tame
from toolhub_service.engines.runs import Run, Runs

_ENQUEUE_S = 3.0
"""How long an enqueue may take before Redis counts as lost."""
_RETRY_S = 1.0
_LEAVING_S = 5.0
"""How long leaving Redis in good order may take."""
_POLL_S = 0.05
"""How soon a worker without room sees that it has some again."""
_TASK = "job"


class DocketEngine:
    """A JobEngine for all processes that name the same docket on the same Redis."""

    def __init__(self, redis_url: str, name: str, max_running: int, redelivery_s: float = 5.0) -> None:
        """`name` is the prefix of all keys. `max_running` is at least 1, of this process."""
        tame()
        self._docket = HubDocket(name, redis_url)
        self._max_running = max_running
        self._redelivery = timedelta(seconds=redelivery_s)
        self._runs: Runs | None = None
        self._followed: set[str] = set()
        """Jobs of which a delivery is under way here."""
        self._again: set[str] = set()
        """Jobs of which another one has come meanwhile."""
        self._worker: Worker | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._leaving = asyncio.Event()

    async def start(self, run: Run) -> None:
        """Returns whether Redis answers or not: the worker waits for it by itself."""
        self._runs = Runs(run)

        async def job(key: str = TaskKey()) -> None:
            await self._deliver(key.partition(":")[2])

        self._docket.register(job, [_TASK])
        ready = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(ready), name="docket")
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            await self._serving

    async def enqueue(self, job_id: str) -> None:
        """Raises ToolFailure TOOL_UNAVAILABLE when Redis does not answer; the job may be delivered all the same."""
        try:
            async with asyncio.timeout(_ENQUEUE_S):
                await self._enqueue(job_id)
        except (RedisError, OSError) as lost:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                "Jobs cannot be handed out now: their queue does not answer. Try the same again in a moment.",
                retry_after_s=_RETRY_S,
            ) from lost

    @property
    def running(self) -> int:
        return len(self._runs) if self._runs is not None else 0

    @property
    def waiting(self) -> int:
        """Jobs that run here and will run again; what waits in Redis waits in no process."""
        return len(self._again)

    async def close(self, grace_s: float) -> None:
        """As the port says; what had to be cancelled is enqueued again, for another process."""
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
        lane = 0
        while True:
            key = f"{lane}:{job_id}"
            execution = await self._docket.add(_TASK, key=key)()
            if execution.disposition is not Disposition.ALREADY_SCHEDULED:
                return
            async with self._docket.redis() as redis:
                state = await redis.hget(self._docket.runs_key(key), "state")
            if state in {b"queued", b"scheduled"}:
                return
            # Else the delivery that stood in the way has ended meanwhile, and there is room in this lane.
            if state == b"running":
                lane += 1

    async def _deliver(self, job_id: str) -> None:
        """One docket task. Cancelled, it leaves its message to be delivered again."""
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
        """Run the job until no delivery has come since its last run began."""
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
        """Enqueue for another process; when that fails, the message is redelivered as that of a dead one."""
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
        """Everything of docket's own happens in this task, which its context variables require."""
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
        """Redis failures docket survives by itself. A message that it cannot read must not end all deliveries."""
        while not self._leaving.is_set():
            try:
                await worker.run_forever()
            except Exception as crash:  # noqa: BLE001 - told, and begun anew
                told = {"message": "the docket worker crashed", "exception": crash}
                asyncio.get_running_loop().call_exception_handler(told)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._leaving.wait(), _RETRY_S)
                with suppress(RedisError):
                    await self._docket.drop_unreadable()


async def _either(run: asyncio.Task[None], session: asyncio.Future[None]) -> None:
    """Until the run has ended and may be started again. Ends as cancelled when the session has ended."""
    await asyncio.wait((run, session), return_when=asyncio.FIRST_COMPLETED)
    # Both may have ended at once; then `Runs` has not yet heard of it.
    if session.done():
        raise asyncio.CancelledError
