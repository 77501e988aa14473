"""One delivery of a job: take it, walk its call through the pipeline, put its end down.

A delivery may come twice and to several processes at once: whoever takes the job has it. The end of a run is put down
until the store takes it; a process that is stopped hands over what can be run again. What was given to a remote side by
an earlier run is followed again: such a run is refused by nothing that passes, and gets a last look after its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job import Job, JobNews, RemoteMark
from toolhub_service.domain.job_machine import ForbiddenTransition, amended
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.plan import Plan
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.principal import Principal
from toolhub_service.domain.result import ToolResult
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.life import Life
from toolhub_service.runtime.jobs.live import LiveJob, Step, Superseded, not_ours
from toolhub_service.runtime.jobs.progress import JobSink
from toolhub_service.runtime.jobs.settle import Settling
from toolhub_service.runtime.jobs.take import RETRY_S, Taking
from toolhub_service.runtime.jobs.terms import JobTerms
from toolhub_service.schema.structure import has_many_values

_LAST_LOOK_S = 5.0
"""For work on a remote side whose deadline passed while nobody followed it: to be collected, or asked to stop."""
_PAUSE_MAX_S = 10.0
_MANY_VALUES_BYTES = 64 * 1024
"""About: of arguments that are walked beside other calls; a store does not tell."""


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
        self._redactor = redactor
        self._describe = describe
        self._clock = ledger.clock
        self._runner = life.runner
        self._taking = Taking(ledger, life, terms)
        self._settling = Settling(ledger, terms)
        self._delivered: dict[str, bool] = {}
        """Whether something was heard of the job before it was in our hands."""
        self._live: dict[str, LiveJob] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self.invoker: Invoker | None = None
        """The pipeline, which is made after this: its adapters need to know their jobs."""

    async def run(self, job_id: str) -> None:
        """Never raises but for cancellation, which hands the job over."""
        if job_id in self._delivered:
            return
        self._delivered[job_id] = False
        try:
            job = await self._taking.take(job_id)
            if job is not None:
                await self._run(job)
        except (ToolFailure, Superseded, ForbiddenTransition) as passing:
            self._ledger.observer.troubled(job_id, passing)  # the reconciler comes back to it
        except Exception as defect:  # noqa: BLE001 - one job's defect must not end the engine
            self._ledger.observer.troubled(job_id, defect)
        finally:
            del self._delivered[job_id]

    async def give_up(self, job: Job) -> bool:
        """As `Taking.give_up`: a job's end needs no room among those that run, for which it might wait long."""
        return job.job_id not in self._delivered and await self._taking.give_up(job)

    def heard(self, news: JobNews) -> None:
        """For the store's listener: cancellation may be asked for, and jobs be taken, in any process."""
        for job_id in [news.job_id] if news.job_id else list(self._delivered):
            live = self._live.get(job_id)
            if live is not None:
                self._tell(live, news)
            elif job_id in self._delivered and (news.status is None or news.status.state is JobState.CANCELLING):
                self._delivered[job_id] = True

    async def begins(self, job_id: str) -> None:
        await self._change(job_id, lambda job: amended(job, begun=True))

    async def asks(self, job_id: str) -> None:
        job = self._held(job_id).job
        if job.begun or job.remote is not None:
            await self._change(job_id, lambda job: amended(job, begun=False, remote=_taken(job.remote)))

    async def mark(self, job_id: str) -> RemoteMark | None:
        return self._held(job_id).job.remote

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        await self._change(job_id, lambda job: amended(job, remote=mark))

    def stopping(self, job_id: str) -> asyncio.Event:
        live = self._held(job_id)
        live.heeds_stop = True
        return live.stopping

    async def _change(self, job_id: str, step: Step) -> None:
        try:
            await self._held(job_id).change(step)
        except Superseded as over:
            raise not_ours() from over

    def _held(self, job_id: str) -> LiveJob:
        live = self._live.get(job_id)
        if live is None:
            raise not_ours()
        return live

    def _tell(self, live: LiveJob, news: JobNews) -> None:
        live.hears(news)
        job_id = live.job.job_id
        if live.is_behind and job_id not in self._looking:
            self._looking[job_id] = asyncio.create_task(self._catch_up(live))

    async def _catch_up(self, live: LiveJob) -> None:
        """As long as it takes: who asked for cancellation does not ask twice."""
        job_id = live.job.job_id
        try:
            while live.is_behind and self._live.get(job_id) is live:
                try:
                    await live.catch_up()
                except Superseded:
                    return
                except ToolFailure as unreachable:
                    self._ledger.observer.troubled(job_id, unreachable)
                    await asyncio.sleep(RETRY_S)
        finally:
            del self._looking[job_id]

    async def _run(self, job: Job) -> None:
        live = self._live[job.job_id] = LiveJob(job, self._runner, self._ledger)
        sink = JobSink(live, self._ledger, self._redactor, lambda: len(self._live))
        # A context of its own: nothing of the RPC that submitted it, such as its principal, may be seen by the run.
        live.work = asyncio.create_task(self._walk(live, sink), context=Context())
        try:
            if job.state is JobState.CANCELLING:
                live.stop()
            if self._delivered[job.job_id]:
                self._tell(live, JobNews(""))
            await asyncio.wait({live.work})
            await self._settling.settle(live, await sink.close())
        except asyncio.CancelledError:
            await self._settling.hand_over(live, sink)
            raise
        finally:
            del self._live[job.job_id]

    async def _walk(self, live: LiveJob, sink: JobSink) -> ToolResult | Plan:
        assert self.invoker is not None  # given by the composition before anything runs
        with self._ledger.observer.running(live.job):
            while True:
                answer = await self.invoker.invoke(self._call(live.job), sink)
                pause_s = self._pause_s(live.job, answer)
                if pause_s is None:
                    return answer
                await asyncio.sleep(pause_s)

    def _pause_s(self, job: Job, answer: ToolResult | Plan) -> float | None:
        """How long until work on a remote side is tried again that this run was not let to; None: it has its answer."""
        error = answer.error if isinstance(answer, ToolResult) else None
        is_refused = error is not None and error.is_retryable and isinstance(answer, ToolResult) and not answer.attempts
        if error is None or not is_refused or job.remote is None or self._clock.unix_ms() >= job.deadline_unix_ms:
            return None
        return min(error.retry_after_s or RETRY_S, _PAUSE_MAX_S)

    def _call(self, job: Job) -> Call:
        """Rights are those of now, and the deadline is the loop clock's again."""
        left_s = (job.deadline_unix_ms - self._clock.unix_ms()) / 1_000
        if job.remote is not None:
            left_s = max(left_s, _LAST_LOOK_S)
        principal = self._describe(job.call.principal.id)
        call = job.call._replace(principal=principal, deadline_s=self._clock.monotonic_s() + left_s)
        return call._replace(unread_bytes=_MANY_VALUES_BYTES) if has_many_values(call.args) else call


def _taken(mark: RemoteMark | None) -> RemoteMark | None:
    """A mark of what the remote side has; of what was never taken nothing is left to be found again."""
    return mark if mark is not None and mark.accepted else None
