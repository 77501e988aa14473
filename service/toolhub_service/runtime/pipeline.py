"""The walk of a call through the nine steps. Read this first.

    1 resolve          which tool, is it callable?             resolve.py
    2 validate_input   do the arguments fit?                   validate_input.py
    3 apply_defaults   what was left out?                      apply_defaults.py
    4 check_policy     may this agent do this?                 check_policy.py
    5 take_budget      is there time, rate, a slot, quota?     take_budget.py (before it, once per key: idempotency.py)
    6 execute          run the adapter, with its retries       execute.py
    7 validate_output  does the result fit?                    validate_output.py
    8 attach_evidence  what proves it?                         attach_evidence.py
    9 record           always: audit, metrics, trace           record.py

`Call` becomes `PlannedCall` becomes `GrantedCall`; an adapter accepts nothing but the last. A tool that asks a person
in step 6 ends the walk with APPROVAL_REQUIRED; the call that comes again walks all steps, and its `GrantedCall` has the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.approval_ports import ApprovalGate
from toolhub_service.domain.call import NO_PRECONDITIONS, Call, GrantedCall, Mode, PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job_ports import JobAcceptance, RunningJobs
from toolhub_service.domain.plan import Plan
from toolhub_service.domain.ports import Adapter, CallObserver, Catalog, Clock, EventSink, PolicySource
from toolhub_service.domain.question import Question, QuestionAsked
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.step import StepName
from toolhub_service.domain.tool import IdempotencyMode, ToolKind, ToolSpec
from toolhub_service.domain.verdict import Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.apply_defaults import apply_defaults
from toolhub_service.runtime.approval_questions import marked_unasked, reply_to
from toolhub_service.runtime.artifact_results import keep_whole
from toolhub_service.runtime.artifacts import Artifacts
from toolhub_service.runtime.attach_evidence import attach_evidence, attach_job, attach_refusal
from toolhub_service.runtime.check_policy import approved, check_policy, enforce, is_bound, is_for_a_person
from toolhub_service.runtime.execute import Executor
from toolhub_service.runtime.failures import cancelled, crash, of_a_crash
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.large_work import LargeWork
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.redact import SHOWN_AT_ONCE_BYTES, redact_error, redact_plan
from toolhub_service.runtime.resolve import Unread, all_read, resolve
from toolhub_service.runtime.sinks import SILENT
from toolhub_service.runtime.take_budget import take_budget
from toolhub_service.runtime.to_its_end import to_its_end
from toolhub_service.runtime.validate_input import validate_input
from toolhub_service.runtime.validate_output import validate_aside
from toolhub_service.runtime.walk import Walk
from toolhub_service.runtime.within import within
from toolhub_service.schema.tool_schemas import ToolSchemas, for_tool

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything a call meets on its way, and the order in which it meets it."""

    catalog: Catalog
    adapters: Mapping[ToolKind, Adapter]
    policy: PolicySource
    plans: Plans
    keys: Idempotency
    budgets: Budgets
    executor: Executor
    recorder: Recorder
    observer: CallObserver
    clock: Clock
    redactor: Redactor
    approvals: ApprovalGate
    jobs: JobAcceptance
    running: RunningJobs
    artifacts: Artifacts
    show_raw: bool = False
    """Whether results carry the upstream's own answer."""
    unread: Unread = all_read
    large: LargeWork = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "large", LargeWork(self.clock))

    async def invoke(self, call: Call, sink: EventSink = SILENT) -> ToolResult | Plan:
        """Answer a call: always a ToolResult, or a Plan when it is a dry run. Only cancellation is raised."""
        walk, answer = Walk(call), None
        try:
            answer = await self._steps(walk, sink)
        except asyncio.CancelledError:
            self._refuse(walk, cancelled())
            raise
        except Exception as failure:  # noqa: BLE001 - the top of the walk: what no step foresaw is answered too
            answer = self._fail(walk, failure)
        finally:
            if walk.claim is not None and not await self._goes_on(walk, answer):
                await to_its_end(self.keys.end(walk.claim, walk, answer))
        return answer if isinstance(answer, ToolResult) else await self._redacted(answer, walk)

    async def _steps(self, walk: Walk, sink: EventSink) -> ToolResult | Plan:  # noqa: C901 - on one page
        """The nine steps. Raises what a step refuses with."""
        call = walk.call
        walk.enter(StepName.RESOLVE)
        walk.spec = spec = resolve(call, self.catalog, self.policy, self.unread)
        adapter, schemas = self.adapters[spec.kind], for_tool(spec)
        if spec.cost.is_async and call.mode is Mode.EXECUTE and not call.job_id:
            walk.call = walk.asked = call = call._replace(mode=Mode.SUBMIT)

        walk.enter(StepName.VALIDATE_INPUT)
        if call.unread_bytes or call.names_artifacts:
            walk.call = call = await self._arguments_of(walk, spec, schemas)
        if walk.planned is None:
            validate_input(call, spec, schemas)
        walk.enter(StepName.APPLY_DEFAULTS)
        walk.planned = planned = walk.planned or apply_defaults(call, spec, schemas)

        walk.enter(StepName.CHECK_POLICY)
        walk.verdict = verdict = await self._decided(planned) if call.unread_bytes else self.policy.decide(planned)
        if is_bound(call, verdict):
            planned, verdict = await self._agreed(walk, adapter, planned, verdict)
        enforce(planned, verdict)

        walk.enter(StepName.TAKE_BUDGET)
        if call.mode is Mode.EXECUTE and (call.idempotency_key or spec.idempotency is IdempotencyMode.DERIVED):
            walk.claim, stored = await self.keys.claim(walk, adapter)
            if stored is not None:
                return self._record(walk, stored)
        reply, claim = reply_to(walk.approval), walk.claim
        granted, walk.lease = await take_budget(planned, verdict, adapter, self.budgets, claim, reply)
        if call.plan_digest:
            self._refuse_stale(walk, granted, adapter)
        if call.mode is not Mode.EXECUTE:
            return await self._stop(walk, granted, adapter)
        await self._ask(walk, granted)

        walk.enter(StepName.EXECUTE)
        try:
            outcome = await self.executor.execute(walk, granted, walk.lease, adapter, sink)
        except QuestionAsked as asked:
            await self._pose(walk, granted, asked.question)

        walk.enter(StepName.VALIDATE_OUTPUT)
        await validate_aside(spec, outcome, schemas)

        walk.enter(StepName.ATTACH_EVIDENCE)
        result, rest = await attach_evidence(walk, outcome, self.clock.unix_ms(), self.redactor, show_raw=self.show_raw)
        if rest is not None:
            result = await keep_whole(result, rest, call, self.artifacts, self.observer)
        return self._record(walk, result)

    async def _agreed(
        self, walk: Walk, adapter: Adapter, planned: PlannedCall, verdict: Verdict
    ) -> tuple[PlannedCall, Verdict]:
        """The call with what it would touch, and the verdict once its plan or a person has agreed to that. Raises what
        step 4 refuses with."""
        call = planned.call
        walk.planned = planned = planned._replace(preconditions=await adapter.preconditions(planned))
        walk.verdict = verdict = check_policy(planned, verdict, self.plans)
        if is_for_a_person(call, verdict):
            if not await self._only_stops(call):
                walk.approval = await self.approvals.settle(planned, verdict)
            walk.verdict = verdict = approved(verdict)
        return planned, verdict

    def _refuse_stale(self, walk: Walk, granted: GrantedCall, adapter: Adapter) -> None:
        """After step 5, for a repeated call is answered under its key although its own effect has changed the state.
        Raises PLAN_REQUIRED with the plan of now."""
        planned, call = granted.planned, granted.call
        if call.mode is Mode.DRY_RUN or (call.mode is Mode.SUBMIT and call.idempotency_key):
            return  # A job that was submitted twice is told apart by its key; the run of the one there is compares.
        verdict = self.policy.decide(planned)
        if not self.plans.is_stale(planned, verdict):
            return
        effects = adapter.effects(granted)
        if walk.lease is not None:
            walk.lease.refund()
        raise self.plans.stale(planned, verdict, effects)

    async def _goes_on(self, walk: Walk, answer: ToolResult | Plan | None) -> bool:
        """Whether a job's work goes on elsewhere while this run of it was cut off, or was refused before it could look
        there: the next run takes over its key."""
        job_id, spec = walk.call.job_id, walk.spec
        if not job_id or spec is None or (walk.attempts and answer is not None):
            return False
        if walk.attempts and self.adapters[spec.kind].resumes(spec):
            return True
        return await self.running.mark(job_id) is not None

    async def _only_stops(self, call: Call) -> bool:
        """Whether this run is of a job that is to be stopped, and does nothing but stop what an earlier one, which was
        allowed to, has begun on a remote side: no person is asked whether it may."""
        if call.mode is not Mode.EXECUTE:  # a job that is only submitted runs nowhere yet
            return False
        return await self._is_taken(call.job_id) and self.running.stopping(call.job_id).is_set()

    async def _is_taken(self, job_id: str) -> bool:
        """Whether a remote side has the work of this job."""
        mark = await self.running.mark(job_id) if job_id else None
        return mark is not None and mark.accepted and mark.remote_id != ""

    async def _arguments_of(self, walk: Walk, spec: ToolSpec, schemas: ToolSchemas) -> Call:
        """The call with what its arguments refer to. Large ones are read, and walked through steps 2 and 3, beside
        other calls, and for nobody whose rate is used up."""
        call, principal_id = walk.call, walk.call.principal.id
        if call.unread is not None:
            check_rate = partial(self.budgets.check_rate, self.policy.limits(principal_id, spec))
            check_rate()
            self.large.admit(principal_id, call.unread_bytes)
            args, error = await self._large(call, call.unread, before=check_rate)
            walk.call = walk.asked = call = call._replace(args=args, args_error=error, unread=None)
        if call.names_artifacts and call.args_error is None:
            walk.call = call = await self._with_artifacts(walk)
        if call.unread_bytes:
            walk.planned = await self._large(call, _checked, call, spec, schemas)
        return call

    async def _decided(self, planned: PlannedCall) -> Verdict:
        """What policy says of a large call, whose paths a guard judges one by one."""
        return await self._large(planned.call, self.policy.decide, planned)

    async def _large(
        self, call: Call, work: Callable[..., T], *args: Any, before: Callable[[], None] | None = None
    ) -> T:
        """What the work on the call's large arguments returns, within the time that the call has."""
        doing = self.large.run(call.principal.id, call.unread_bytes, work, *args, before=before)
        if call.deadline_s is None:
            return await doing
        try:
            return await within(call.deadline_s, doing)
        except TimeoutError as expired:
            message = "The deadline passed before the arguments were read; allow more time, or send less at once."
            raise refuse(ErrorKind.TIMEOUT, message) from expired

    async def _with_artifacts(self, walk: Walk) -> Call:
        """The call with texts in the place of references to artifacts; the audit log goes on showing references."""
        found = await self.artifacts.resolve(walk.call.args, walk.call.principal.id)
        walk.shown_args = found.shown
        return walk.call._replace(args=found.args)

    async def _ask(self, walk: Walk, granted: GrantedCall) -> None:
        """What must be durable before the effect: the approval used up, the call in the audit log, the job begun."""
        if walk.approval is not None:
            await self.approvals.use(walk.approval, walk.call)
        await self.recorder.ask(walk, granted)
        job_id = walk.call.job_id
        if not job_id:
            return
        spec = granted.spec
        if granted.safe_to_repeat or self.adapters[spec.kind].resumes(spec):
            return
        if await self.running.mark(job_id) is None:  # a mark is proof, whatever the adapter knows of the tool by now
            await self.running.begins(job_id)

    async def _pose(self, walk: Walk, granted: GrantedCall, question: Question) -> NoReturn:
        """Step 6 has ended with a question: nothing happens before its answer, whoever brings it, and whatever dies
        between two of these lines. Raises APPROVAL_REQUIRED, or why nobody could be asked."""
        walk.asks = True
        claim, walk.claim = walk.claim, None
        if claim is not None and not await self._is_taken(walk.call.job_id):
            await to_its_end(self.keys.end(claim, walk, None))
        try:
            if walk.call.job_id:
                await self.running.asks(walk.call.job_id)
            planned = granted.planned
            if planned.preconditions is NO_PRECONDITIONS:
                planned = planned._replace(preconditions=await self.adapters[granted.spec.kind].preconditions(planned))
            await self.approvals.pose(planned, granted.verdict, question, walk.approval)
        except ToolFailure as refused:
            raise marked_unasked(refused) from refused

    async def _stop(self, walk: Walk, granted: GrantedCall, adapter: Adapter) -> ToolResult | Plan:
        """After step 5: the end of a dry run, which shows its plan, and of a submission, whose job is kept."""
        if walk.call.mode is Mode.DRY_RUN:
            walk.enter(StepName.EXECUTE)
            return self._show(walk, adapter.effects(granted))
        await self.recorder.ask(walk, granted)
        walk.enter(StepName.EXECUTE)
        if walk.lease is not None:
            walk.lease.refund()  # the job takes its own when it runs
        job, stood_already = await self.jobs.accept(walk.asked, granted)
        return self._record(walk, attach_job(walk, job, self.clock.unix_ms(), replayed=stood_already))

    def _fail(self, walk: Walk, failure: Exception) -> ToolResult | Plan:
        """The answer to a call that a step refused or broke: a defect is logged whole and told without its text, and in
        the middle of a side effect as what it is to the caller, an unknown outcome."""
        error = failure.error if isinstance(failure, ToolFailure) else crash(walk.call.call_id)
        if error.kind is ErrorKind.INTERNAL:
            self.observer.crashed(walk.call, failure)
            error = of_a_crash(walk, error)
        return self._refuse(walk, error)

    def _refuse(self, walk: Walk, error: ToolError) -> ToolResult | Plan:
        """The answer to a call that stopped at `walk.step`."""
        error = redact_error(error, self.redactor)
        if walk.call.mode is Mode.DRY_RUN:
            return self._show(walk, (), error)
        return self._record(walk, attach_refusal(walk, error, self.clock.unix_ms()))

    def _record(self, walk: Walk, result: ToolResult) -> ToolResult:
        """Step 9, and the end of the lease."""
        if walk.lease is not None:
            walk.lease.release(result.error)
        walk.enter(StepName.RECORD)
        self.recorder.settle(walk, result)
        return result

    def _show(self, walk: Walk, effects: Sequence[str], error: ToolError | None = None) -> Plan:
        """The end of a dry run: what was taken is given back, and the plan is recorded like any call."""
        if walk.lease is not None:
            walk.lease.refund()
        plan = self.plans.show(walk, effects, error)
        self.recorder.settle_plan(walk, error)
        return plan

    async def _redacted(self, plan: Plan, walk: Walk) -> Plan:
        """Without secrets: to hide them in a text of megabytes takes seconds."""
        size_bytes = 0 if walk.planned is None else len(walk.planned.args_json)
        if size_bytes <= SHOWN_AT_ONCE_BYTES:
            return redact_plan(plan, self.redactor)
        return await self.large.run(walk.call.principal.id, size_bytes, redact_plan, plan, self.redactor)


def _checked(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> PlannedCall:
    """Steps 2 and 3 in one turn."""
    validate_input(call, spec, schemas)
    return apply_defaults(call, spec, schemas)
