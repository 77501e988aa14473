"""The runs of jobs in one process, at most one of each job.

A run starts in the context in which the engine was started, not in that of the enqueuing RPC: it belongs to no RPC,
and keeps none alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial

Run = Callable[[str], Awaitable[None]]


class Runs:
    def __init__(self, run: Run, on_end: Callable[[str], None] = lambda _: None) -> None:
        """`on_end` is called with each run that is over for any reason, when the job may run again."""
        self._run = run
        self._on_end = on_end
        self._context: Context = copy_context()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, job_id: str) -> asyncio.Task[None] | None:
        """Return the current run of the job."""
        return self._tasks.get(job_id)

    def start(self, job_id: str) -> asyncio.Task[None]:
        """Run a job that is not running.

        A crash is reported to the loop's exception handler and has no other effect.
        """
        task = asyncio.create_task(self._run_job(job_id), name=f"job {job_id}", context=self._context.copy())
        self._tasks[job_id] = task
        task.add_done_callback(partial(self._finish_run, job_id))
        return task

    async def end(self, grace_s: float) -> None:
        """Wait for `grace_s`, cancel the remaining runs and wait until they have ended.

        Nothing may be started meanwhile.
        """
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        if late := list(self._tasks.values()):
            for task in late:
                task.cancel()
            await asyncio.wait(late)

    async def _run_job(self, job_id: str) -> None:
        await self._run(job_id)

    def _finish_run(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[job_id]
        if not task.cancelled() and (crash := task.exception()) is not None:
            context = {"message": f"the run of job {job_id} crashed", "exception": crash, "task": task}
            task.get_loop().call_exception_handler(context)
        self._on_end(job_id)
