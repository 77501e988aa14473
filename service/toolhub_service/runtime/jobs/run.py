"""One delivery of a job: take it, walk its call through the pipeline, put its end down.

    QUEUED                       take it and run
    its runner lives             somebody else's: nothing to do
    its runner is dead
        before its effect, safe to repeat, or marked on a remote side    run it again, or re-attach
        otherwise                                                        LOST, with the reason

A delivery may come twice and to several processes at once: whoever puts RUNNING down first has it. The end of a run
is put down until the store takes it; a process that is stopped hands over what can be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.job import Job, JobNews, RemoteMark
from toolhub_service.domain.job_machine import ForbiddenTransition, amended, moved
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.plan import Plan
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.principal import Principal
from toolhub_service.domain.progress import Progress
from toolhub_service.domain.result import ToolResult
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.failures import crash
from toolhub_service.runtime.jobs.ending import (
    ended,
    final_state,
    hub_stopped,
    never_ran,
    out_of_reach,
    runner_died,
    stopped,
    too_late,
    without_answer,
)
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.life import Life
from toolhub_service.runtime.jobs.live import LiveJob, Superseded, not_ours
from toolhub_service.runtime.jobs.progress import JobSink
from toolhub_service.runtime.jobs.terms import JobTerms

_RETRY_S = 1.0
"""Between attempts to put down how a job ended, while the store is away."""


class JobRuns:
    """Implements `RunningJobs`; `run` is what engines deliver to."""

    def __init__(
        self,
        ledger: JobLedger,
        life: Life,
        redactor: Redactor,
        terms: JobTerms,
        describe: Callable[[str], Principal],
    ) -> None:
        """`describe`: roles and rights of a principal under the policy in force."""
        self._ledger = ledger
        self._life = life
        self._redactor = redactor
        self._terms = terms
        self._describe = describe
        self._clock = ledger.clock
        self._delivered: set[str] = set()
        self._live: dict[str, LiveJob] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self.invoker: Invoker | None = None
        """The pipeline, which is made after this: its adapters need to know their jobs."""

    async def run(self, job_id: str) -> None:
        """Never raises but for cancellation, which hands the job over."""
        if job_id in self._delivered:
            return
        self._delivered.add(job_id)
        try:
            job = await self._take(job_id)
            if job is not None:
                await self._run(job)
        except (ToolFailure, Superseded, ForbiddenTransition) as passing:
            self._ledger.observer.troubled(job_id, passing)  # the reconciler comes back to it
        except Exception as defect:  # noqa: BLE001 - one job's defect must not end the engine
            self._ledger.observer.troubled(job_id, defect)
        finally:
            self._delivered.discard(job_id)

    async def give_up(self, job: Job) -> bool:
        """Put down the end of a job that nobody runs and of which nothing is left to be run: an end needs no room
        among those that run. False: it is somebody's, or must be delivered. Raises ToolFailure."""
        if job.job_id in self._delivered or (job.runner and await self._is_held(job)):
            return False
        after = self._taken(job)
        return after.state.is_final and await self._ledger.put(job, after)

    def heard(self, news: JobNews) -> None:
        """For the store's listener: cancellation may be asked for in any process."""
        for live in self._concerned(news):
            state = None if news.status is None else news.status.state
            if state is None or state is JobState.CANCELLING:
                looking = asyncio.get_running_loop().create_task(self._look(live, state))
                self._looking.add(looking)
                looking.add_done_callback(self._looking.discard)

    async def begins(self, job_id: str) -> None:
        await self._change(job_id, lambda job: amended(job, begun=True))

    async def mark(self, job_id: str) -> RemoteMark | None:
        return self._held(job_id).job.remote

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        await self._change(job_id, lambda job: amended(job, remote=mark))

    def stopping(self, job_id: str) -> asyncio.Event:
        live = self._held(job_id)
        live.heeds_stop = True
        return live.stopping

    async def _change(self, job_id: str, step: Callable[[Job], Job]) -> None:
        try:
            await self._held(job_id).change(step)
        except Superseded as over:
            raise not_ours() from over

    def _held(self, job_id: str) -> LiveJob:
        live = self._live.get(job_id)
        if live is None:
            raise not_ours()
        return live

    def _concerned(self, news: JobNews) -> list[LiveJob]:
        if not news.job_id:
            return list(self._live.values())
        live = self._live.get(news.job_id)
        return [] if live is None or news.sequence <= live.job.status.sequence else [live]

    async def _look(self, live: LiveJob, state: JobState | None) -> None:
        try:
            await live.heard(state)
        except Superseded:
            return
        except ToolFailure as unreachable:
            self._ledger.observer.troubled(live.job.job_id, unreachable)

    async def _take(self, job_id: str) -> Job | None:
        """The job, now this process's; None when there is nothing to run."""
        while True:
            job = await self._ledger.store.get(job_id)
            if job is None or job.state.is_final or job.state is JobState.AWAITING_APPROVAL:
                return None
            if job.runner and await self._is_held(job):
                return None
            after = self._taken(job)
            if await self._ledger.put(job, after):
                if after.state.is_final:
                    return None
                if job.runner:
                    self._ledger.observer.taken_over(after)
                return after

    async def _is_held(self, job: Job) -> bool:
        """Whether somebody runs it, as far as this process may judge; of its own it knows."""
        if job.runner == self._life.runner:
            return False
        is_alive = await self._ledger.store.is_alive(job.runner, self._clock.unix_ms())
        return is_alive or not self._life.may_judge

    def _taken(self, job: Job) -> Job:
        """The record after the one in the store, of a job that nobody runs."""
        now_unix_ms = self._clock.unix_ms()
        is_over = now_unix_ms >= job.deadline_unix_ms
        if job.begun and job.remote is None:
            return self._ended(job, JobState.LOST, runner_died(job))
        if job.state is JobState.CANCELLING and job.remote is None:
            return self._ended(job, JobState.CANCELLED, stopped(job) if job.begun else never_ran())
        if is_over and job.remote is None:
            return self._ended(job, JobState.TIMED_OUT, too_late(job))
        state = job.state if job.state is JobState.CANCELLING else JobState.RUNNING
        return moved(job, state, now_unix_ms, runner=self._life.runner, runs=job.runs + 1)

    async def _run(self, job: Job) -> None:
        live = self._live[job.job_id] = LiveJob(job, self._life.runner, self._ledger)
        sink = JobSink(live, self._ledger, self._redactor, lambda: len(self._live))
        # A context of its own: nothing of the RPC that submitted it, such as its principal, may be seen by the run.
        live.work = asyncio.create_task(self._walk(live, sink), context=Context())
        try:
            if job.state is JobState.CANCELLING:
                live.stop()
            await asyncio.wait({live.work})
            await self._settle(live, await sink.close())
        except asyncio.CancelledError:
            await self._hand_over(live, sink)
            raise
        finally:
            del self._live[job.job_id]

    async def _walk(self, live: LiveJob, sink: JobSink) -> ToolResult | Plan:
        assert self.invoker is not None  # given by the composition before anything runs
        with self._ledger.observer.running(live.job):
            return await self.invoker.invoke(self._call(live.job), sink)

    def _call(self, job: Job) -> Call:
        """Rights are those of now, and the deadline is the loop clock's again."""
        left_s = (job.deadline_unix_ms - self._clock.unix_ms()) / 1_000
        principal = self._describe(job.call.principal.id)
        return job.call._replace(principal=principal, deadline_s=self._clock.monotonic_s() + left_s)

    async def _settle(self, live: LiveJob, progress: Progress | None) -> None:
        """Put down how it ended, for as long as it takes."""
        result = self._result(live)
        if result.error is not None and result.error.kind is ErrorKind.APPROVAL_REQUIRED:
            await self._put_down(live, lambda job: self._waiting(job, result))
            return
        if live.job.remote is not None and result.error is not None and result.attempts == 0:
            await self._put_down(live, lambda job: self._not_reached(job, result))
            return

        try:
            await self._put_down(live, lambda job: self._done(job, result, progress))
        except Exception as defect:  # noqa: BLE001 - a result that no store can keep must not leave the job RUNNING
            self._ledger.observer.troubled(live.job.job_id, defect)
            unkept = without_answer(live.job, crash(live.job.call.call_id), self._clock.unix_ms())
            await self._put_down(live, lambda job: self._done(job, unkept, progress))

    def _done(self, job: Job, result: ToolResult, progress: Progress | None) -> Job:
        now_unix_ms = self._clock.unix_ms()
        state = final_state(job, result, now_unix_ms)
        return ended(job, state, result, now_unix_ms, self._terms.keep_ms, progress)

    def _result(self, live: LiveJob) -> ToolResult:
        work, now_unix_ms = live.work, self._clock.unix_ms()
        assert work is not None  # it has been waited for
        if work.cancelled():
            return without_answer(live.job, stopped(live.job), now_unix_ms)
        problem = work.exception()
        if problem is None and isinstance(answer := work.result(), ToolResult):
            return answer
        self._ledger.observer.troubled(live.job.job_id, problem or TypeError("a job was answered with a plan"))
        return without_answer(live.job, crash(live.job.call.call_id), now_unix_ms)

    def _waiting(self, job: Job, result: ToolResult) -> Job:
        """Policy has changed since it was accepted: a person must be asked now."""
        assert result.error is not None  # it says so
        approval_id = str(result.error.details.get("approval_id", ""))
        if not approval_id or job.state is not JobState.RUNNING:
            now_unix_ms = self._clock.unix_ms()
            return ended(job, JobState.FAILED, result, now_unix_ms, self._terms.keep_ms)
        call = job.call._replace(approval_id=approval_id)
        now_unix_ms = self._clock.unix_ms()
        return moved(job, JobState.AWAITING_APPROVAL, now_unix_ms, call=call, approval_id=approval_id, runner="")

    def _not_reached(self, job: Job, result: ToolResult) -> Job:
        """Its work goes on elsewhere and this run was refused before it could look: later, or never."""
        assert result.error is not None  # it was refused
        if result.error.is_retryable and job.state is JobState.RUNNING:
            return moved(job, JobState.QUEUED, self._clock.unix_ms(), runner="")
        return self._ended(job, JobState.LOST, out_of_reach(job, result.error))

    async def _put_down(self, live: LiveJob, step: Callable[[Job], Job]) -> None:
        while True:
            try:
                await live.change(step)
                return
            except ToolFailure as unreachable:
                self._ledger.observer.troubled(live.job.job_id, unreachable)
                await asyncio.sleep(_RETRY_S)
            except Superseded:
                return

    async def _hand_over(self, live: LiveJob, sink: JobSink) -> None:
        """This process stops: what can be run again goes back, what cannot is told as what it is."""
        work = live.work
        assert work is not None  # it runs
        work.cancel()
        await asyncio.wait({work})
        await sink.close()
        if not work.cancelled() and work.exception() is None:
            await self._settle(live, None)  # it ended just then
            return

        def step(job: Job) -> Job:
            if job.begun and job.remote is None:
                return self._ended(job, JobState.LOST, hub_stopped(job))
            if job.state is JobState.CANCELLING:
                is_remote = job.remote is not None
                return amended(job, runner="") if is_remote else self._ended(job, JobState.CANCELLED, stopped(job))
            return moved(job, JobState.QUEUED, self._clock.unix_ms(), runner="")

        try:
            await live.change(step)
        except (ToolFailure, Superseded) as unreachable:  # it is taken once this process's beats have lapsed
            self._ledger.observer.troubled(live.job.job_id, unreachable)

    def _ended(self, job: Job, state: JobState, error: ToolError) -> Job:
        now_unix_ms = self._clock.unix_ms()
        return ended(job, state, without_answer(job, error, now_unix_ms), now_unix_ms, self._terms.keep_ms)
