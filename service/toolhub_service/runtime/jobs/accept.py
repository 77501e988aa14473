"""Step 6 of a submission: the job is stored before its id is answered, and enqueued."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf

from msgspec.structs import replace

from toolhub_service.domain.call import Call, GrantedCall, Mode
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.job_ports import JobEngine, JobStore
from toolhub_service.domain.ports import Catalog, Invoker, Randomness
from toolhub_service.domain.result import SILENT, JobState, ToolResult
from toolhub_service.domain.storage import Room
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.holdings import narrow_permissions
from toolhub_service.runtime.idempotency import effect_key
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.open_job_limit import FULL_LIMITS, OpenJobLimit
from toolhub_service.runtime.jobs.run import all_read
from toolhub_service.schema.canonical_json import digest

# Delivery of a stored job.


async def deliver(engine: JobEngine, job: Job, ledger: JobLedger) -> None:
    """Enqueue the job. When the engine cannot be reached, the sweep delivers it later, because the job is in the
    store."""
    try:
        await engine.enqueue(job.job_id, ledger.tenant_of(job))
    except ToolFailure as away:
        ledger.observer.on_problem(job.job_id, away)


class Acceptance:
    """Implements `JobAcceptance`, and stores the jobs of calls that were refused or wait for a person."""

    def __init__(
        self,
        ledger: JobLedger,
        engine: JobEngine,
        randomness: Randomness,
        redactor: Redactor,
        *,
        trace_parent: Callable[[], str] = lambda: "",
        room: Room | None = None,
    ) -> None:
        """`trace_parent` returns the W3C traceparent of the RPC being served. `room`: the disk that jobs lie on; None:
        they lie elsewhere."""
        self._ledger = ledger
        self._engine = engine
        self._clock = ledger.clock
        self._randomness = randomness
        self._terms = ledger.terms
        self._trace_parent = trace_parent
        self._redactor = redactor
        self._room = room
        self._limit = OpenJobLimit(ledger.store, ledger.clock, ledger.terms.max_open)

    def new_job_id(self, call: Call) -> str:
        """Return an unguessable id that sorts by time; under an idempotency key always the same id, so that a repeated
        submission waits for the same decision of a person."""
        if call.idempotency_key:
            return f"job_{digest([call.principal.id, call.tool, call.idempotency_key])[:32]}"
        return f"job_{self._clock.unix_ms():012x}{self._randomness.token_hex(10)}"

    async def accept(self, call: Call, granted: GrantedCall) -> tuple[Job, bool]:
        planned = granted.planned
        key = effect_key(planned)
        if key is not None:
            call = call._replace(idempotency_key=key.key)
        if self._room is not None:
            # Only new jobs: what running ones return is stored out of the reserve.
            self._room.check(len(planned.args_json))
        await self._limit.reserve(call.principal)
        job = self._job(call, planned.spec, JobState.QUEUED, None)
        job = replace(job, args_digest=planned.args_digest)
        try:
            existing = await self._keep(job)
        except ToolFailure as failure:
            if failure.error.kind is ErrorKind.TOOL_UNAVAILABLE and not call.idempotency_key:
                # Without a key, submitting again may run the call twice.
                raise refuse(
                    ErrorKind.TOOL_UNAVAILABLE,
                    f"The job store does not respond and may have stored this job as {job.job_id}. Check that job "
                    "before you submit again, or submit with an idempotency_key.",
                    retryable=False,
                    may_be_job_id=job.job_id,
                ) from failure
            raise
        finally:
            self._limit.confirm(call.principal)
        if existing is not None:
            return existing, True
        await deliver(self._engine, job, self._ledger)
        return job, False

    async def keep_refused(self, call: Call, spec: ToolSpec | None, result: ToolResult) -> Job:
        """Store a refused submission as FAILED, so that whoever follows it learns why.

        Its arguments are not stored: nothing will run with them, and a caller without rights must not fill the store.
        """
        refused = call._replace(idempotency_key="", job_id="", args={})
        job = self._job(refused, spec, JobState.FAILED, result)
        job = replace(job, expires_at_unix_ms=job.created_at_unix_ms + self._terms.keep_ms)
        await self._keep(job)
        return job

    async def keep_waiting(self, call: Call, spec: ToolSpec, asked: ToolError) -> Job:
        """Store a submission that APPROVAL_REQUIRED has refused as waiting for a person. Return the existing job where
        its key is in use."""
        approval_id = str(asked.details["approval_id"])
        job = self._job(call._replace(approval_id=approval_id), spec, JobState.AWAITING_APPROVAL, None)
        job = replace(job, args_digest=str(asked.details.get("args_digest", "")))
        try:
            existing = await self._keep(job)
        except ToolFailure as refused:
            if refused.error.kind is ErrorKind.IDEMPOTENCY_CONFLICT:
                await self._ledger.withdraw(job, approval_id)
            raise
        if existing is None:
            return job
        if existing.approval_id != approval_id or existing.state.is_final:
            await self._ledger.withdraw(existing, approval_id)  # it does not wait for the new approval
        return existing

    async def _keep(self, job: Job) -> Job | None:
        existing = await self._ledger.create(job)
        if existing is not None and existing.args_digest and existing.args_digest != job.args_digest:
            raise refuse(
                ErrorKind.IDEMPOTENCY_CONFLICT,
                f"This idempotency_key was used for a job of {job.call.tool} with other arguments. Send a new key for "
                "a new effect, or the first arguments for the first job.",
                differs="args",
                job_id=existing.job_id,
            )
        return existing

    def _job(self, call: Call, spec: ToolSpec | None, state: JobState, result: ToolResult | None) -> Job:
        now_unix_ms = self._clock.unix_ms()
        asked_s = call.context.budget.timeout_s
        own_s = spec.limits.job_timeout_s if spec else 0.0
        usual_s, most_s = own_s or self._terms.default_timeout_s, own_s or inf
        timeout_s = min(usual_s if asked_s is None else asked_s, most_s, self._terms.max_timeout_s)
        job_id = call.job_id or self.new_job_id(call)
        return Job(
            job_id=job_id,
            call=call._replace(
                mode=Mode.EXECUTE,
                job_id=job_id,
                deadline_s=None,
                args_error=None,
                purpose=self._redactor.text(call.purpose),  # operators and auditors see the record, too
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
            replays=spec is not None and spec.replays,
        )


# SubmitJob: steps 1 to 5 now, the rest as a job. However the steps end, there is a job that shows it.


# Seconds that a submission waits for a source that has not been read since the start.
_READING_S = 10.0


class Submission:
    def __init__(
        self,
        invoker: Invoker,
        acceptance: Acceptance,
        store: JobStore,
        catalog: Catalog,
        await_reading_of: Callable[[str], Awaitable[None]] = all_read,
    ) -> None:
        """`await_reading_of` returns once the source of a tool of that full name has been read for the first time."""
        self._await_reading_of = await_reading_of
        self._invoker = invoker
        self._acceptance = acceptance
        self._store = store
        self._catalog = catalog

    async def submit(self, call: Call) -> Job:
        """Return the stored job: QUEUED, AWAITING_APPROVAL, or FAILED where a step refused.

        Raises ToolFailure IDEMPOTENCY_CONFLICT, RATE_LIMITED, BUDGET_EXCEEDED or TOOL_UNAVAILABLE when there is no job.
        """
        # Right after a start: a refusal would be stored as a job that has failed, also for a repeat with its key.
        with suppress(TimeoutError):
            async with asyncio.timeout(_READING_S):
                await self._await_reading_of(call.tool)
        if call.principal.permissions is not None:
            # The job runs for its principal under another credential, so the rights that this one lacks are stored with
            # the call.
            call = call._replace(context=narrow_permissions(call.context, call.principal.permissions))
        asked = call._replace(mode=Mode.SUBMIT, job_id=self._acceptance.new_job_id(call), deadline_s=None, client=None)
        result = await self._invoker.invoke(asked, SILENT)
        assert isinstance(result, ToolResult)  # a plan answers a dry run only
        if result.job is not None:
            return await self._read(result.job.job_id)
        error = result.error
        assert error is not None  # no job was stored, and the error says why
        is_unclear, is_full = "may_be_job_id" in error.details, error.details.get("limit") in FULL_LIMITS
        if error.kind is ErrorKind.IDEMPOTENCY_CONFLICT or is_full or is_unclear:
            raise ToolFailure(error)
        spec, approval_id = self._catalog.get(call.tool), str(error.details.get("approval_id", ""))
        if error.kind is ErrorKind.APPROVAL_REQUIRED and approval_id and spec is not None:
            return await self._acceptance.keep_waiting(asked, spec, error)
        return await self._acceptance.keep_refused(asked, spec, result)

    async def _read(self, job_id: str) -> Job:
        """Return the accepted job. Raises ToolFailure TOOL_UNAVAILABLE, with its id, when the store cannot be
        reached."""
        try:
            job = await self._store.get(job_id)
        except ToolFailure as gone:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                f"The job was accepted as {job_id} and will run, but the job store does not respond now. Do not "
                "submit it again; get the job in a moment.",
                retryable=False,
                job_id=job_id,
            ) from gone
        assert job is not None  # it was stored a moment ago
        return job
