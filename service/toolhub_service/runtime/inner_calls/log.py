"""Durable inner calls of a job: each answer is stored before the job's program receives it.

A later run (its process was killed, or a person has decided) makes the same calls in the same order, and gets the
stored answers until it reaches a call without one. Why no snapshot of the program: docs/decisions/0043.

    index i, as the log has it        what the call does
    ──────────────────────────────    ────────────────────────────────────────────────────────────────────────────────
    other tool or arguments           EXECUTION_ERROR, and so all calls after it: the program is not deterministic
    ANSWERED                          the stored answer, which gets its audit event if the killed run left none
    BEGUN, with a job                 follows that job
    BEGUN                             its runner died in the middle of an effect: the answer stored under its
                                      idempotency key, else OUTCOME_UNKNOWN; never a second effect
    ASKED                             makes the call with the approval, which is decided, expired or still pending
    nothing                           makes the call: BEGUN is durable before an effect that must not happen twice

Only one run of a job is active; a superseded one notices it by compare-and-set, and makes no more calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.domain.call import Call, Suspended
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.inner_log import InnerLogStore, KeptCall, KeptState
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobObserver, JobService, JobStore, RunningJobs
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import EffectKey
from toolhub_service.domain.ports import Clock, InnerCalls, Sleep
from toolhub_service.domain.result import SILENT, JobRef, JobState, Plan, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.runtime.inner_calls.calls import CallsWithin, refuse_inner_call
from toolhub_service.runtime.jobs.ledger import RETRY_S
from toolhub_service.runtime.jobs.live_job import not_ours
from toolhub_service.schema.canonical_json import NotJson, digest, dumps

T = TypeVar("T")

RECHECK_MS: Final = 3_600_000
"""How long a stored call stays before the sweep checks whether its job has ended."""
_BATCH: Final = 256


class RunLog:
    """One run's view of its job's log."""

    def __init__(self, store: InnerLogStore, job_id: str, clock: Clock, sleep: Sleep, observer: JobObserver) -> None:
        self.job_id = job_id
        self.suspending = asyncio.Event()
        """Set once a call waits for a person: no further call starts."""
        self.failure: ToolError | None = None
        """Why no more calls are made: another runner has the job, its log is damaged, or its program differs."""
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._observer = observer
        self._made = 0
        self._kept: dict[int, KeptCall] | None = None
        self._reading = asyncio.Lock()
        self.waits_for = ""
        """Id of the approval."""
        self._under_way = 0
        self._changed = asyncio.Event()

    def next(self) -> int:
        """Return the index of the next call. Raises Suspended."""
        if self.waits_for:
            raise Suspended(self.waits_for)
        self._made += 1
        return self._made - 1

    async def at(self, index: int) -> KeptCall | None:
        """Return the record of that call, if any. Raises ToolFailure when the log is damaged."""
        async with self._reading:
            if self._kept is None:
                found = await self.patient(partial(self._store.of_job, self.job_id))
                self._kept = {kept.index: kept for kept in found}
        return self._kept.get(index)

    async def put(self, before: KeptCall, **changes: object) -> KeptCall:
        """Store the next record of a call, retrying while the store is unreachable. Raises ToolFailure when another run
        has the job."""
        expires_at_unix_ms = self._clock.unix_ms() + RECHECK_MS
        after = replace(before, version=before.version + 1, expires_at_unix_ms=expires_at_unix_ms, **changes)
        while not await self.patient(partial(self._store.put, after)):
            standing = await self.patient(partial(self._store.get, before.job_id, before.index))
            if standing is not None and _is_same(standing, after):
                break  # it was stored, only the store's answer was lost
            if standing is None or not _is_same(standing, before):
                raise not_ours()
            after = replace(after, version=standing.version + 1)  # the sweep has changed the record's expiry
        return after

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Mark a call as under way while the body runs."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._changed.set()

    async def suspend(self, approval_id: str) -> Suspended:
        """Return the exception to raise once no call is under way, so that their answers are stored first."""
        self.waits_for = self.waits_for or approval_id
        self.suspending.set()
        while self._under_way:
            self._changed.clear()
            await self._changed.wait()
        return Suspended(self.waits_for)

    async def patient(self, asking: Callable[[], Awaitable[T]]) -> T:
        """Return the store's answer, retrying while the store is unreachable; the job's deadline ends the wait."""
        while True:
            try:
                return await asking()
            except ToolFailure as away:
                if away.error.kind is not ErrorKind.TOOL_UNAVAILABLE:
                    raise
                self._observer.on_problem(self.job_id, away)
                await self._sleep(RETRY_S)


def _is_same(standing: KeptCall, kept: KeptCall) -> bool:
    """Return whether two records are equal except for what the sweep changes."""
    return _facts(standing) == _facts(kept)


def _facts(kept: KeptCall) -> tuple[object, ...]:
    answer = kept.answer
    answered = () if answer is None else (answer.call_id, dumps(answer.value), answer.error and answer.error.message)
    return kept.tool, kept.args_digest, kept.state, kept.approval_id, kept.inner_job_id, answered


class DurableCallDeps(msgspec.Struct, frozen=True):
    """What the durable inner calls of a hub have in common."""

    store: InnerLogStore
    approvals: ApprovalStore
    running: RunningJobs
    known: Callable[[EffectKey], Awaitable[ToolResult | None]]
    """Returns the answer that is stored under an idempotency key."""
    reused: Callable[[Call, ToolResult], Awaitable[None]]
    """Records an answer of an earlier run, if that run could not (`Recorder.record_reuse`)."""
    clock: Clock
    observer: JobObserver
    sleep: Sleep = asyncio.sleep
    _logs: WeakKeyDictionary[object, RunLog] = msgspec.field(default_factory=WeakKeyDictionary)
    """Run logs by the account that all handles of one running call share."""

    def of(self, within: CallsWithin) -> InnerCalls:
        job_id = within.running.call.job_id
        log = self._logs.get(within.root)
        if log is None:
            log = self._logs[within.root] = RunLog(self.store, job_id, self.clock, self.sleep, self.observer)
        return DurableCalls(self, within, log)


class DurableCalls:
    """Implements `InnerCalls` with a log."""

    def __init__(self, deps: DurableCallDeps, within: CallsWithin, log: RunLog) -> None:
        self._deps = deps
        self._within = within
        self._log = log

    @property
    def depth(self) -> int:
        return self._within.depth

    async def offered_tools(self, wanted: Callable[[ToolSpec], bool]) -> Sequence[ToolSpec]:
        return await self._within.offered_tools(wanted)

    def restrict_to(self, tools: Iterable[str], max_calls: int) -> DurableCalls:
        return DurableCalls(self._deps, self._within.restrict_to(tools, max_calls), self._log)

    def durable(self) -> DurableCalls:
        return self

    async def plan(self, tool: str, args: JsonObject, *, purpose: str) -> Plan | ToolResult:
        return await self._within.plan(tool, args, purpose=purpose)

    async def invoke(self, tool: str, args: JsonObject, *, purpose: str) -> ToolResult:
        log, index = self._log, self._log.next()
        call = self._within.call(tool, args, purpose)
        try:
            args_digest = digest(args)
        except NotJson:
            return refuse_inner_call(call, refuse(ErrorKind.INVALID_INPUT, "The arguments are no JSON values.").error)
        call = stored_form(call, log.job_id, index, args_digest)
        refusal = self._within.account_for_call(call)
        waits_for = ""
        try:
            with log.one_more():
                kept = await log.at(index)
                self._check(index, call, args_digest, kept)
                if kept is not None and kept.answer is not None:
                    self._within.read(kept.answer)
                    await self._deps.reused(call, kept.answer)
                    return kept.answer
                kept = kept or KeptCall(log.job_id, index, tool, args_digest, KeptState.BEGUN, 0, version=0)
                if refusal is None:
                    kept, answer = await self._answer(call, kept)
                    waits_for = await self._waits_for(answer)
                else:
                    answer = refuse_inner_call(call, refusal)
                if waits_for:
                    await log.put(kept, state=KeptState.ASKED, approval_id=waits_for)
                else:
                    answer = self._within.account_for_answer(call, answer._replace(raw=None))
                    await log.put(kept, state=KeptState.ANSWERED, answer=answer)
        except ToolFailure as over:
            log.failure = over.error
            return refuse_inner_call(call, over.error)
        if waits_for:
            raise await log.suspend(waits_for)
        return answer

    def _check(self, index: int, call: Call, args_digest: str, kept: KeptCall | None) -> None:
        """Raises ToolFailure when no more calls may be made."""
        if self._log.failure is not None:
            raise ToolFailure(self._log.failure)
        if kept is None or (kept.tool, kept.args_digest) == (call.tool, args_digest):
            return
        raise refuse(
            ErrorKind.EXECUTION_ERROR,
            f"The program is not deterministic: its call {index} was {kept.tool} in an earlier run of this job, and is "
            f"{call.tool} now, or has other arguments. Take time, random numbers and everything that changes from "
            "tools, and make calls in an order that depends on their answers alone.",
        )

    async def _answer(self, call: Call, kept: KeptCall) -> tuple[KeptCall, ToolResult]:
        """Return the record as the log then has it, and the answer to the call."""
        if kept.inner_job_id:
            accepted = ToolResult(
                ok=True, call_id=call.call_id, tool=call.tool, job=JobRef(kept.inner_job_id, JobState.QUEUED)
            )
            return kept, await self._follow_job(accepted, kept.inner_job_id)
        if kept.version and kept.state is KeptState.BEGUN:
            return kept, await self._of_one_cut_off(call)
        spec = self._within.deps.catalog.get(call.tool)
        if spec is not None and (spec.has_side_effects or spec.cost.is_async):
            call = call._replace(idempotency_key=inner_key(call.call_id))
            # A job is accepted once under its key, even when it is submitted again.
            if not spec.annotations.safe_to_repeat and not spec.cost.is_async:
                kept = await self._log.put(kept, state=KeptState.BEGUN)
        result = await self._invoke(call._replace(approval_id=kept.approval_id))
        if kept.approval_id and _is_void(result):  # another call has used it
            result = await self._invoke(call)
        if result.job is not None:
            kept = await self._log.put(kept, state=KeptState.BEGUN, inner_job_id=result.job.job_id)
            result = await self._follow_job(result, result.job.job_id)
        return kept, result

    async def _invoke(self, call: Call) -> ToolResult:
        result = await self._within.deps.invoker.invoke(call, SILENT)
        assert isinstance(result, ToolResult)  # a plan answers a dry run only
        return result

    async def _of_one_cut_off(self, call: Call) -> ToolResult:
        """Return the answer to a call that an earlier run has begun and that nobody saw end."""
        spec = self._within.deps.catalog.get(call.tool)
        name = call.tool if spec is None else spec.name
        key = EffectKey(call.principal.id, name, inner_key(call.call_id))
        known = await self._log.patient(partial(self._deps.known, key))
        if known is not None:
            return known
        message = (
            f"The process that ran {call.tool} for this job died while it ran, and the call may have had its effect. "
            "Check that before you make it again."
        )
        return refuse_inner_call(call, refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause="RUNNER_DIED").error)

    async def _waits_for(self, answer: ToolResult) -> str:
        """Return the id of the approval that this call, not one within it, waits for; empty when the call has its
        answer."""
        approval_id = requested_approval(answer)
        if not approval_id:
            return ""
        approval = await self._log.patient(partial(self._deps.approvals.get, approval_id))
        return "" if approval is None or approval.binding.job_id != self._log.job_id else approval_id

    async def _follow_job(self, accepted: ToolResult, inner_job_id: str) -> ToolResult:
        """Return how the job ended. Raises Suspended, and leaves the job running, when another call waits for a
        person."""
        log, running = self._log, self._deps.running
        ref = JobRef(inner_job_id, JobState.QUEUED)
        following = asyncio.ensure_future(
            self._within.wait_for_job(
                accepted,
                ref,
                stops=lambda: not log.suspending.is_set() and not running.continues_elsewhere(log.job_id),
            )
        )
        suspending = asyncio.ensure_future(log.suspending.wait())
        try:
            await asyncio.wait((following, suspending), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
        finally:
            for task in (following, suspending):
                task.cancel()
            await asyncio.wait((following, suspending))
        raise Suspended(log.waits_for)


def stored_form(call: Call, job_id: str, index: int, args_digest: str) -> Call:
    """Return the call with the id that it has in every run of the job, marked as stored in its log."""
    assert call.lineage is not None  # every inner call has one
    call_id = inner_call_id(job_id, index, call.tool, args_digest)
    return call._replace(call_id=call_id, lineage=call.lineage._replace(is_kept=True))


def inner_call_id(job_id: str, index: int, tool: str, args_digest: str) -> str:
    """Return the id of a job's inner call, equal in every run."""
    return f"call_{digest([job_id, index, tool, args_digest])[:28]}"


def inner_key(call_id: str) -> str:
    """Return the idempotency key of the call's effect."""
    return f"inner_{call_id.removeprefix('call_')}"


def requested_approval(answer: ToolResult) -> str:
    """Return the id of the approval that an answer names as missing; empty when none is."""
    error = answer.error
    if error is None or error.kind is not ErrorKind.APPROVAL_REQUIRED:
        return ""
    return str(error.details.get("approval_id", ""))


def _is_void(answer: ToolResult) -> bool:
    return (
        answer.error is not None and answer.error.kind is ErrorKind.APPROVAL_REQUIRED and not requested_approval(answer)
    )


class JobLogs:
    """Deletes the logs of jobs that have ended, and cancels the inner jobs that are left running."""

    def __init__(self, store: InnerLogStore, jobs: JobStore, service: JobService) -> None:
        self._store = store
        self._jobs = jobs
        self._service = service

    async def forget(self, job: Job) -> None:
        """Delete the log of a job. Raises ToolFailure when a store cannot be reached; the sweep retries."""
        why = f"Job {job.job_id}, which made it, has ended."
        try:
            left = await self._store.of_job(job.job_id)
        except ToolFailure as damaged:
            if damaged.error.kind is not ErrorKind.OUTCOME_UNKNOWN:
                raise
            left = ()
        for kept in left:
            if kept.inner_job_id and kept.state is not KeptState.ANSWERED:
                try:
                    await self._service.cancel(job.call.principal, kept.inner_job_id, why)
                except ToolFailure as gone:
                    if gone.error.kind is not ErrorKind.NOT_FOUND:
                        raise
        await self._store.forget_job(job.job_id)

    async def sweep(self, now_unix_ms: int) -> int:
        """Delete one batch of expired logs whose jobs have ended, and return how many were deleted. Raises as `forget`
        does."""
        count = 0
        due = await self._store.read_expired(now_unix_ms, _BATCH)
        for job_id in dict.fromkeys(kept.job_id for kept in due):
            job = await self._jobs.get(job_id)
            if job is None:
                count += await self._store.forget_job(job_id)
            elif job.state.is_final:
                await self.forget(job)
                count += 1
            else:
                for kept in due:
                    if kept.job_id == job_id:
                        later_unix_ms = now_unix_ms + RECHECK_MS
                        await self._store.put(replace(kept, version=kept.version + 1, expires_at_unix_ms=later_unix_ms))
        return count
