"""One delivery of a job: claim it, run its call through the pipeline, store how it ended.

A delivery may come twice and to several processes at once: the claim decides by compare-and-set. The end of a run is
retried until the store has it; a process that is stopped requeues what can be run again. Work that an earlier run gave
to a remote side is followed again: a passing refusal does not end such a run, and it gets a last look after its
deadline.

A job that is taken up right after a start waits for the first reading of the sources that it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context

from toolhub_service.aio.turns import Turns
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.job import ForbiddenTransition, Job, JobNews, RemoteMark, amend_job
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.result import JobState, Plan, ToolResult
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.jobs.claims import JobClaims
from toolhub_service.runtime.jobs.heartbeat import Heartbeat
from toolhub_service.runtime.jobs.ledger import RETRY_S, JobLedger
from toolhub_service.runtime.jobs.live_job import LiveJob, Superseded, Transition, not_ours
from toolhub_service.runtime.jobs.reports import JobSink
from toolhub_service.runtime.jobs.settle import JobSettlement
from toolhub_service.schema.json_structure import has_many_values


async def all_read(_tool: str) -> None:
    """`JobRuns.await_readings_for` where nothing has to be read."""


# Seconds to collect or stop work on a remote side whose deadline passed while nobody followed it.
_LAST_POLL_S = 5.0
_PAUSE_MAX_S = 10.0
# Assumed size of arguments with many values, which are processed beside other calls: the store does not report the real
# one.
_MANY_VALUES_BYTES = 64 * 1024


class JobRuns:
    """Implements `RunningJobs`; engines deliver to `run`."""

    def __init__(
        self,
        ledger: JobLedger,
        heartbeat: Heartbeat,
        redactor: Redactor,
        turns: Turns,
        again: Callable[[Principal], Principal],
    ) -> None:
        """`again` returns a verified principal with its roles and rights under the policy in force."""
        self._ledger = ledger
        self._redactor = redactor
        self._turns = turns
        self._again = again
        self._clock = ledger.clock
        self._runner = heartbeat.runner
        self._claims = JobClaims(ledger, heartbeat)
        self._settlement = JobSettlement(ledger)
        # Delivered jobs, and whether an event of the job came before it was claimed.
        self._delivered: dict[str, bool] = {}
        self._live: dict[str, LiveJob] = {}
        self._catching_up: dict[str, asyncio.Task[None]] = {}
        self.invoker: Invoker | None = None
        """The pipeline, set later: its adapters are created before it and need to know their jobs."""
        self.await_readings_for: Callable[[str], Awaitable[None]] = all_read
        """Returns once the sources that a tool of that full name needs have been read for the first time in this
        process, or have failed; set later, like the pipeline."""

    async def run(self, job_id: str) -> None:
        """Run one delivery. Raises only cancellation, which hands the job over."""
        if job_id in self._delivered:
            return
        self._delivered[job_id] = False
        try:
            job = await self._claims.claim(job_id)
            if job is not None:
                await self._run(job)
        except (ToolFailure, Superseded, ForbiddenTransition) as passing:
            self._ledger.observer.on_problem(job_id, passing)  # the reconciler retries
        except Exception as defect:  # noqa: BLE001 - one job's defect must not end the engine
            self._ledger.observer.on_problem(job_id, defect)
        finally:
            del self._delivered[job_id]

    async def give_up(self, job: Job) -> bool:
        """As `JobClaims.give_up`: ending a job takes no place among the running ones, for which it might wait long."""
        return job.job_id not in self._delivered and await self._claims.give_up(job)

    def on_event(self, news: JobNews) -> None:
        """Listener of the store: any process may request cancellation or take a job over."""
        for job_id in [news.job_id] if news.job_id else list(self._delivered):
            live = self._live.get(job_id)
            if live is not None:
                self._notify(live, news)
            elif job_id in self._delivered and (news.status is None or news.status.state is JobState.CANCELLING):
                self._delivered[job_id] = True

    async def begins(self, job_id: str) -> None:
        await self._change(job_id, lambda job: amend_job(job, begun=True))

    async def asks(self, job_id: str) -> None:
        job = self._held_job(job_id).job
        if job.begun or job.remote is not None:
            await self._change(job_id, lambda job: amend_job(job, begun=False, remote=accepted_mark(job.remote)))

    async def mark(self, job_id: str) -> RemoteMark | None:
        return self._held_job(job_id).job.remote

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        await self._change(job_id, lambda job: amend_job(job, remote=mark))

    def suspends(self, job_id: str, approval_id: str) -> None:
        self._held_job(job_id).waits_within = approval_id

    def continues_elsewhere(self, job_id: str) -> bool:
        live = self._live.get(job_id)
        return live is not None and live.is_cancelled and (live.is_superseded or not live.stopping.is_set())

    def stopping(self, job_id: str) -> asyncio.Event:
        live = self._held_job(job_id)
        live.stops_itself = True
        return live.stopping

    async def _change(self, job_id: str, transition: Transition) -> None:
        try:
            await self._held_job(job_id).change(transition)
        except Superseded as over:
            raise not_ours() from over

    def _held_job(self, job_id: str) -> LiveJob:
        live = self._live.get(job_id)
        if live is None:
            raise not_ours()
        return live

    def _notify(self, live: LiveJob, news: JobNews) -> None:
        live.on_event(news)
        job_id = live.job.job_id
        if live.is_behind and job_id not in self._catching_up:
            self._catching_up[job_id] = asyncio.create_task(self._catch_up(live))

    async def _catch_up(self, live: LiveJob) -> None:
        """Read the record, retrying while the store is unreachable: a request to cancel is not repeated."""
        job_id = live.job.job_id
        try:
            while live.is_behind and self._live.get(job_id) is live:
                try:
                    await live.catch_up()
                except Superseded:
                    return
                except ToolFailure as unreachable:
                    self._ledger.observer.on_problem(job_id, unreachable)
                    await asyncio.sleep(RETRY_S)
        finally:
            del self._catching_up[job_id]

    async def _run(self, job: Job) -> None:
        live = self._live[job.job_id] = LiveJob(job, self._runner, self._ledger)
        sink = JobSink(live, self._ledger, self._redactor, lambda: len(self._live))
        # A new context: the run must see nothing of the RPC that submitted it, such as its principal.
        live.work = asyncio.create_task(self._invoke(live, sink), context=Context())
        try:
            if job.state is JobState.CANCELLING:
                live.stop()
            if self._delivered[job.job_id]:
                self._notify(live, JobNews(""))
            await asyncio.wait({live.work})
            await self._settlement.settle(live, await sink.close())
        except asyncio.CancelledError:
            await self._settlement.hand_over(live, sink)
            raise
        finally:
            del self._live[job.job_id]

    async def _invoke(self, live: LiveJob, sink: JobSink) -> ToolResult | Plan:
        assert self.invoker is not None  # the composition sets it before anything runs
        with self._ledger.observer.running(live.job):
            await self._await_sources(live.job)
            while True:
                call = self._call(live.job)
                await self._turns.take(call.principal.share)
                answer = await self.invoker.invoke(call, sink)
                pause_s = self._pause_s(live.job, answer)
                if pause_s is None:
                    return answer
                await asyncio.sleep(pause_s)

    async def _await_sources(self, job: Job) -> None:
        """Wait, within the job's time, for sources that this process has yet to read: right after a start the job's
        tool looks as if its source were away."""
        left_s = (job.deadline_unix_ms - self._clock.unix_ms()) / 1_000
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left_s)):
                await self.await_readings_for(job.call.tool)

    def _pause_s(self, job: Job, answer: ToolResult | Plan) -> float | None:
        """Return the seconds until work on a remote side is retried after the run was refused; None when it has its
        answer."""
        error = answer.error if isinstance(answer, ToolResult) else None
        is_refused = error is not None and error.is_retryable and isinstance(answer, ToolResult) and not answer.attempts
        if error is None or not is_refused or job.remote is None or self._clock.unix_ms() >= job.deadline_unix_ms:
            return None
        return min(error.retry_after_s or RETRY_S, _PAUSE_MAX_S)

    def _call(self, job: Job) -> Call:
        """Return the call with the principal's current rights, and with its deadline on the loop's clock."""
        left_s = (job.deadline_unix_ms - self._clock.unix_ms()) / 1_000
        if job.remote is not None:
            left_s = max(left_s, _LAST_POLL_S)
        principal = self._again(job.call.principal)
        call = job.call._replace(principal=principal, deadline_s=self._clock.monotonic_s() + left_s)
        if job.remote is not None:  # the work continues there, even if the tool's definition has changed here
            call = call._replace(expected_tool_digest="")
        return call._replace(unread_bytes=_MANY_VALUES_BYTES) if has_many_values(call.args) else call


def accepted_mark(mark: RemoteMark | None) -> RemoteMark | None:
    """Return the mark if the remote side has accepted the work; otherwise there is nothing to find again."""
    return mark if mark is not None and mark.accepted else None
