"""Step 6 of a submission: the job is in the store before anybody hears of it, and enqueued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from toolhub_service.domain.call import Call, GrantedCall, Mode
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.idempotency import effect_key
from toolhub_service.runtime.jobs.deliver import deliver
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.room import Room
from toolhub_service.runtime.jobs.terms import JobTerms
from toolhub_service.schema.canonical_json import digest


class Acceptance:
    """Implements `JobAcceptance`, and keeps the jobs of calls that were refused or must wait for a person."""

    def __init__(
        self,
        ledger: JobLedger,
        engine: JobEngine,
        clock: Clock,
        randomness: Randomness,
        terms: JobTerms,
        redactor: Redactor,
        *,
        trace_parent: Callable[[], str] = lambda: "",
    ) -> None:
        """`trace_parent`: the W3C traceparent of the RPC being served."""
        self._ledger = ledger
        self._engine = engine
        self._clock = clock
        self._randomness = randomness
        self._terms = terms
        self._trace_parent = trace_parent
        self._redactor = redactor
        self._room = Room(ledger.store, clock, terms.max_open)

    def new_job_id(self, call: Call) -> str:
        """Sorts by time and cannot be guessed; under an idempotency key always the same, so that a submission that
        comes again waits for the same answer of a person."""
        if call.idempotency_key:
            return f"job_{digest([call.principal.id, call.tool, call.idempotency_key])[:32]}"
        return f"job_{self._clock.unix_ms():012x}{self._randomness.token_hex(10)}"

    async def accept(self, call: Call, granted: GrantedCall) -> tuple[Job, bool]:
        planned = granted.planned
        key = effect_key(planned)
        if key is not None:
            call = call._replace(idempotency_key=key.key)
        await self._room.take(call.principal.id)
        job = self._job(call, planned.spec, JobState.QUEUED, None)
        job = replace(job, args_digest=planned.args_digest)
        try:
            standing = await self._keep(job)
        except ToolFailure as failure:
            if failure.error.kind is ErrorKind.TOOL_UNAVAILABLE and not call.idempotency_key:
                raise _unclear(job) from failure
            raise
        finally:
            self._room.came(call.principal.id)
        if standing is not None:
            return standing, True
        await deliver(self._engine, job.job_id, self._ledger.observer)
        return job, False

    async def keep_refused(self, call: Call, spec: ToolSpec | None, result: ToolResult) -> Job:
        """A submission that was refused: FAILED at once, so that whoever follows it learns why.

        Its arguments are not kept: nothing will run with them, and who may do nothing must not fill the store.
        """
        refused = call._replace(idempotency_key="", job_id="", args={})
        job = self._job(refused, spec, JobState.FAILED, result)
        job = replace(job, expires_at_unix_ms=job.created_at_unix_ms + self._terms.keep_ms)
        await self._keep(job)
        return job

    async def keep_waiting(self, call: Call, spec: ToolSpec, asked: ToolError) -> Job:
        """A submission that waits for a person, as APPROVAL_REQUIRED tells. Under a key in use: the job that stands."""
        approval_id = str(asked.details["approval_id"])
        job = self._job(call._replace(approval_id=approval_id), spec, JobState.AWAITING_APPROVAL, None)
        job = replace(job, args_digest=str(asked.details.get("args_digest", "")))
        try:
            standing = await self._keep(job)
        except ToolFailure as refused:
            if refused.error.kind is ErrorKind.IDEMPOTENCY_CONFLICT:
                await self._ledger.withdraw(job, approval_id)
            raise
        if standing is None:
            return job
        if standing.approval_id != approval_id or standing.state.is_final:
            await self._ledger.withdraw(standing, approval_id)  # it does not wait for what was asked just now
        return standing

    async def _keep(self, job: Job) -> Job | None:
        standing = await self._ledger.create(job)
        if standing is not None and standing.args_digest and standing.args_digest != job.args_digest:
            raise refuse(
                ErrorKind.IDEMPOTENCY_CONFLICT,
                f"This idempotency_key was used for a job of {job.call.tool} with other arguments. Send a new key for "
                "a new effect, or the first arguments for the first job.",
                differs="args",
                job_id=standing.job_id,
            )
        return standing

    def _job(self, call: Call, spec: ToolSpec | None, state: JobState, result: ToolResult | None) -> Job:
        now_unix_ms = self._clock.unix_ms()
        asked_s = call.context.budget.timeout_s
        usual_s = (spec.limits.job_timeout_s if spec else 0.0) or self._terms.default_timeout_s
        timeout_s = min(usual_s if asked_s is None else asked_s, self._terms.max_timeout_s)
        job_id = call.job_id or self.new_job_id(call)
        return Job(
            job_id=job_id,
            call=call._replace(
                mode=Mode.EXECUTE,
                job_id=job_id,
                deadline_s=None,
                args_error=None,
                purpose=self._redactor.text(call.purpose),  # operators and auditors see it, too
            ),
            tool_version=spec.version if spec else "",
            tool_digest=spec.digest if spec else "",
            args_digest="",
            created_at_unix_ms=now_unix_ms,
            deadline_unix_ms=now_unix_ms + round(timeout_s * 1_000),
            status=JobStatus(job_id, 1, state, now_unix_ms, result=result),
            state_since_unix_ms=now_unix_ms,
            approval_id=call.approval_id,
            trace_parent=self._trace_parent(),
        )


def _unclear(job: Job) -> ToolFailure:
    """The store did not say whether it has kept the job: without a key, to submit it again may be to run it twice."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"The store of jobs does not answer, and may have kept this one as {job.job_id}. Look there before you submit "
        "it again, or submit it under an idempotency_key.",
        retryable=False,
        may_be_job_id=job.job_id,
    )
