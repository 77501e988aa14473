"""The nine steps of a call. Read this first: `Pipeline.run` reads like this table.

    1 resolve          which tool, is it callable?             route.py
    2 validate_input   do the arguments fit?                   steps.py
    3 apply_defaults   what was left out?                      steps.py
    4 check_policy     may this agent do this?                 steps.py (a plan: plans.py; a person: approvals/gate.py)
    5 take_budget      is there time, rate, a slot, quota?     steps.py (before it, once per key: idempotency.py)
    6 execute          run the adapter, with its retries       steps.py
    7 validate_output  does the result fit?                    steps.py
    8 attach_evidence  what proves it?                         attach_evidence.py
    9 record           always: audit, metrics, trace           record.py

`Call` becomes `PlannedCall` becomes `GrantedCall`; an adapter accepts only the last. A tool that asks a person in step
6 ends with APPROVAL_REQUIRED; the repeated call passes all steps, and its `GrantedCall` has the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any, NoReturn, TypeVar

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.aio.waits import shield_until_done, until_deadline
from toolhub_service.budget.deadline import refuse_late_call, within_budget
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.approval import ApprovalGate
from toolhub_service.domain.call import (
    NO_PRECONDITIONS,
    Call,
    GrantedCall,
    Mode,
    PlannedCall,
    Question,
    QuestionAsked,
    Suspended,
)
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job_ports import JobAcceptance, RunningJobs
from toolhub_service.domain.ports import (
    Adapter,
    CallObserver,
    Catalog,
    Clock,
    EventSink,
    ForeseeingAdapter,
    PolicySource,
)
from toolhub_service.domain.result import SILENT, Plan, ToolResult
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.holdings import narrow_permissions
from toolhub_service.registry.export.plan_argument import plan_argument
from toolhub_service.runtime.approvals.tool_questions import mark_unasked
from toolhub_service.runtime.argument_forms import in_own_words, repair_texts, take_plan_out
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.attach_evidence import attach_evidence, attach_job, attach_refusal
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.call_state import (
    APPLY_DEFAULTS,
    ATTACH_EVIDENCE,
    CHECK_POLICY,
    EXECUTE,
    NOT_BEGUN,
    RESOLVE,
    TAKE_BUDGET,
    VALIDATE_INPUT,
    VALIDATE_OUTPUT,
    CallState,
)
from toolhub_service.runtime.failures import cancelled_error, crash, hub_stopped, of_a_crash
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.inner_calls.refusals import can_wait, verdict_within, what_to_do
from toolhub_service.runtime.large_work import LargeWork
from toolhub_service.runtime.long_results.keep_whole import keep_whole
from toolhub_service.runtime.plan_offers import attach_plan, lacks_plan, to_dry_run
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.redaction import SHOWN_AT_ONCE_BYTES, redact_error, redact_plan
from toolhub_service.runtime.route import HiddenTool, Route, Routes, Unread, all_read
from toolhub_service.runtime.steps import (
    Executor,
    apply_defaults,
    approve_verdict,
    check_policy,
    enforce,
    is_bound,
    is_for_a_person,
    take_budget,
    validate_input,
    validate_output,
)
from toolhub_service.schema.tool_schemas import ToolSchemas

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of a call, their order and what they need."""

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
    call_ids: CallIds
    show_raw: bool = False
    """Whether results contain the upstream's own answer."""
    repairs_texts: bool = False
    """Whether texts that hold the JSON which a schema wants are read as that."""
    unread: Unread = all_read
    large: LargeWork = field(init=False)
    routes: Routes = field(init=False)
    in_flight: dict[str, CallState] = field(init=False)
    """Calls in flight by call id, oldest first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "large", LargeWork(self.clock))
        object.__setattr__(self, "routes", Routes(self.catalog, self.policy, self.adapters, self.unread))
        object.__setattr__(self, "in_flight", {})

    def oldest_call_s(self) -> float:
        """Age in seconds of the oldest call in flight; 0 when there is none."""
        oldest = next(iter(self.in_flight.values()), None)
        return 0.0 if oldest is None else (perf_counter_ns() - oldest.begun_ns[RESOLVE]) / 1e9

    def cut_off(self) -> None:
        """Stop the calls in flight because the hub shuts down: each is answered at once with what may have happened.

        Jobs are handed over instead, and a call within another one ends with it.
        """
        for state in self.in_flight.values():
            if state.task is not None and not state.call.job_id and state.call.lineage is None:
                state.is_cut_off = True
                state.task.cancel()

    async def wait_until_idle(self, within_s: float) -> None:
        """Return when no call is in flight any more, at the latest after so many seconds."""
        running = {state.task for state in self.in_flight.values() if state.task is not None}
        if running:
            await asyncio.wait(running, timeout=within_s)

    async def invoke(self, call: Call, sink: EventSink = SILENT) -> ToolResult | Plan:
        """Answer a call: always a ToolResult, or a Plan when it is a dry run. Only cancellation is raised."""
        begun_ns, answer = perf_counter_ns(), None
        if call.principal.permissions is not None:
            call = call._replace(context=narrow_permissions(call.context, call.principal.permissions))
        state = CallState(call, call, [begun_ns, *NOT_BEGUN], {}, task=asyncio.current_task())
        self.in_flight[call.call_id] = state
        try:
            answer = await self.run(state, sink)
        except asyncio.CancelledError:
            # A caller that has cancelled it too waits for no answer.
            if not state.is_cut_off or state.task is None or state.task.uncancel():
                # But the audit log and the metrics need the end of the call.
                self._refuse(state, cancelled_error())
                raise
            answer = self._refuse(state, hub_stopped(state))
        except Exception as failure:  # noqa: BLE001 - the top of the walk: what no step foresaw is answered too
            answer = self._fail(state, failure)
            if state.outcome is not None and state.outcome.artifacts:
                await self.artifacts.release([artifact.artifact_id for artifact in state.outcome.artifacts])
        finally:
            self.in_flight.pop(call.call_id, None)
            if state.claim is not None and not await self._continues_elsewhere(state, answer):
                # An unreleased claim would delay repeats until its lease ends, so cancellation must not interrupt this.
                await shield_until_done(self.keys.end(state.claim, state, answer))
        if not isinstance(answer, ToolResult):
            return await self._redact_plan(answer, state)
        if call.args_form and state.spec is not None and lacks_plan(call, answer):
            return await self._show_plan(answer, call, state.spec)
        return answer

    async def run(self, state: CallState, sink: EventSink) -> ToolResult | Plan:  # noqa: C901, PLR0912, PLR0915 - on one page
        """Run the nine steps. Raises the refusal of a step."""
        call, begun_ns = state.call, state.begun_ns
        route = self.routes.of(call)
        state.spec = spec = route.spec
        if route.becomes_job and call.mode is Mode.EXECUTE and not call.job_id:  # the run of a job has one already
            state.call = state.received = call = call._replace(mode=Mode.SUBMIT, client=None)
        if call.context.budget.timeout_s is not None:
            state.call = call = within_budget(call, self.clock.monotonic_s())
        begun_ns[VALIDATE_INPUT] = perf_counter_ns()
        if call.args_form or call.tool != spec.name:  # by the form or the name of an export
            state.call = state.received = call = in_own_words(call, spec)
        if call.unread_bytes or call.names_artifacts:
            state.call = call = await self._arguments_of(state, spec, route.schemas)
        if self.repairs_texts and state.planned is None:
            call, state.repairs = repair_texts(call, spec, route.schemas)
            state.call = call
        if state.planned is None:  # large arguments were validated beside the loop
            validate_input(call, spec, route.schemas, route.adapter)
        begun_ns[APPLY_DEFAULTS] = perf_counter_ns()
        state.planned = planned = state.planned or apply_defaults(call, spec, route.schemas)
        begun_ns[CHECK_POLICY] = perf_counter_ns()
        verdict = await self._decide_large(planned) if call.unread_bytes else check_policy(route, planned, self.policy)
        state.verdict = verdict
        if verdict.effect is not Effect.ALLOW or call.plan_digest or call.approval_id or call.mode is Mode.DRY_RUN:
            planned, verdict = await self._check_agreement(state, route, planned, verdict)

        begun_ns[TAKE_BUDGET] = perf_counter_ns()
        if call.mode is Mode.EXECUTE and (call.idempotency_key or route.derives_key):
            state.claim, stored = await self.keys.claim(state, route.adapter)  # before the budget: a repeat costs none
            if stored is not None:
                return self.recorder.settle(state, stored)
        granted, state.lease = await take_budget(route, planned, verdict, self.budgets, state.claim, state.approval)
        if call.plan_digest:
            self._refuse_stale(state, granted, route.adapter)
        if call.mode is not Mode.EXECUTE:
            return await self._stop(state, granted, route.adapter)
        if spec.has_side_effects or state.approval is not None or call.job_id:
            await self._store_before_effect(state, granted)
        else:
            await self.recorder.ready()
        now_s = self.clock.monotonic_s()
        if now_s >= granted.deadline_s:  # waiting for a slot or the disk has used the time
            raise refuse_late_call(now_s, granted.deadline_s)

        begun_ns[EXECUTE] = perf_counter_ns()
        try:
            outcome = state.outcome = await self.executor.execute(state, granted, state.lease, route.adapter, sink)
        except (QuestionAsked, Suspended) as asked:
            await self._wait(state, granted, asked)
        begun_ns[VALIDATE_OUTPUT] = perf_counter_ns()
        if outcome.is_large:
            await in_thread(validate_output, spec, outcome, route.schemas)
        else:
            validate_output(spec, outcome, route.schemas)
        begun_ns[ATTACH_EVIDENCE] = perf_counter_ns()
        result, rest = await attach_evidence(state, outcome, self.clock, self.redactor, show_raw=self.show_raw)
        if rest is not None:
            result = await keep_whole(result, rest, call, self.artifacts, self.observer)
        return self.recorder.settle(state, result)

    async def _check_agreement(
        self, state: CallState, route: Route, planned: PlannedCall, verdict: Verdict
    ) -> tuple[PlannedCall, Verdict]:
        """Return the call with its preconditions, and the verdict once its plan or a person has agreed. Raises the
        refusals of step 4."""
        call = planned.call
        if call.lineage is not None:
            state.verdict = verdict = verdict_within(call, verdict, self.catalog)
        if is_bound(call, verdict):
            state.planned = planned = planned._replace(preconditions=await route.adapter.preconditions(planned))
            if call.mode is not Mode.DRY_RUN and call.plan_digest:
                state.verdict = verdict = self.plans.commit(planned, verdict)
            if is_for_a_person(call, verdict):
                if not await self._only_stops(call):
                    state.approval = await self.approvals.settle(planned, verdict)
                state.verdict = verdict = approve_verdict(verdict)
        enforce(planned, verdict)
        return planned, verdict

    def _refuse_stale(self, state: CallState, granted: GrantedCall, adapter: Adapter) -> None:
        """Refuse a plan whose state has changed; after step 5, because a repeated call gets its stored answer although
        its own effect has changed the state. Raises PLAN_REQUIRED with the current plan."""
        planned, call = granted.planned, granted.call
        if call.mode is Mode.DRY_RUN or (call.mode is Mode.SUBMIT and call.idempotency_key):
            return  # The key recognises a job that was submitted twice; the run of the existing job compares.
        verdict = self.policy.decide(planned)
        if not self.plans.is_stale(planned, verdict):
            return
        effects = adapter.effects(granted)
        if state.lease is not None:
            state.lease.refund()
        raise self.plans.stale(planned, verdict, effects)

    async def _continues_elsewhere(self, state: CallState, answer: ToolResult | Plan | None) -> bool:
        """Return whether the job's work continues on a remote side although this run was cut off, or was refused before
        it could ask there: the next run then takes over its key."""
        job_id, spec = state.call.job_id, state.spec
        if not job_id or spec is None or (state.attempts and answer is not None):
            return False
        if state.attempts and self.adapters[spec.kind].resumes(spec):
            return True
        return await self.running.mark(job_id) is not None

    async def _only_stops(self, call: Call) -> bool:
        """Return whether this run only stops what an earlier, permitted run has begun on a remote side: then no person
        is asked."""
        if call.mode is not Mode.EXECUTE:  # a submission does not run yet
            return False
        return await self._is_taken(call.job_id) and self.running.stopping(call.job_id).is_set()

    async def _is_taken(self, job_id: str) -> bool:
        """Return whether a remote side has the job's work."""
        mark = await self.running.mark(job_id) if job_id else None
        return mark is not None and mark.accepted and mark.remote_id != ""

    async def _arguments_of(self, state: CallState, spec: ToolSpec, schemas: ToolSchemas) -> Call:
        """Return the call with its references resolved. Large arguments are read and pass steps 2 and 3 beside other
        calls, and only while the caller's rate is not used up."""
        call = state.call
        if call.unread is not None:
            check_rate = partial(self.budgets.check_rate, self.policy.limits(call.principal, spec))
            check_rate()
            self.large.admit(call.principal.id, call.unread_bytes)
            args, error = await self._large(call, call.unread, before=check_rate)
            call = call._replace(args=args, args_error=error, unread=None)
            state.call = state.received = call = take_plan_out(call, spec) if call.args_form else call
        if call.names_artifacts and call.args_error is None:
            state.call = call = await self._with_artifacts(state)
        if call.unread_bytes and self.repairs_texts:
            call, state.repairs = await self._large(call, repair_texts, call, spec, schemas)
        if call.unread_bytes:
            state.planned = await self._large(
                call, validate_and_complete, call, spec, schemas, self.adapters[spec.kind]
            )
        return call

    async def _decide_large(self, planned: PlannedCall) -> Verdict:
        """Return the verdict for a large call, whose paths a guard checks one by one."""
        return await self._large(planned.call, self.policy.decide, planned)

    async def _large(
        self, call: Call, work: Callable[..., T], *args: Any, before: Callable[[], None] | None = None
    ) -> T:
        """Return the result of the work on the call's large arguments, within the call's deadline."""
        doing = self.large.run(call.principal.share, call.unread_bytes, work, *args, before=before)
        if call.deadline_s is None:
            return await doing
        try:
            return await until_deadline(call.deadline_s, doing)
        except TimeoutError as expired:
            message = "The deadline passed before the arguments were read; allow more time, or send less at once."
            raise refuse(ErrorKind.TIMEOUT, message) from expired

    async def _with_artifacts(self, state: CallState) -> Call:
        """Return the call with texts in place of references to artifacts; the audit log still shows the references."""
        found = await self.artifacts.resolve(state.call.args, state.call.principal.id)
        state.shown_args = found.shown
        return state.call._replace(args=found.args)

    async def _store_before_effect(self, state: CallState, granted: GrantedCall) -> None:
        """Store what must be durable before the effect: the approval as used, the call in the audit log, the job as
        begun."""
        # The approval first: if a crash loses it, a person must decide once more; if it were used twice, an effect
        # would happen that nobody allowed.
        if state.approval is not None:
            await self.approvals.use(state.approval, state.call)
        await self.recorder.announce(state, granted)
        job_id = state.call.job_id
        if not job_id:
            return
        spec = granted.spec
        if granted.safe_to_repeat or spec.replays or self.adapters[spec.kind].resumes(spec):
            return
        if await self.running.mark(job_id) is None:  # a mark is proof, whatever the adapter now knows of the tool
            await self.running.begins(job_id)

    async def _wait(self, state: CallState, granted: GrantedCall, asked: QuestionAsked | Suspended) -> NoReturn:
        """End a call whose step 6 waits for a person. Raises APPROVAL_REQUIRED."""
        if isinstance(asked, QuestionAsked):
            if not can_wait(state.call) and state.call.lineage is not None:
                message = f"{state.call.tool} asks a person. {what_to_do(state.call.lineage, self.catalog)}"
                raise refuse(ErrorKind.APPROVAL_REQUIRED, message)
            await self._ask_person(state, granted, asked.question)
        state.asks = True
        self.running.suspends(state.call.job_id, asked.approval_id)
        message = f"A call that {state.call.tool} makes waits for a person. The job goes on after the decision."
        raise refuse(ErrorKind.APPROVAL_REQUIRED, message, approval_id=asked.approval_id)

    async def _ask_person(self, state: CallState, granted: GrantedCall, question: Question) -> NoReturn:
        """End a call whose step 6 asked a question: nothing may happen before its answer, whichever process receives
        it, even if this one dies between any two of these lines. Raises APPROVAL_REQUIRED, or why nobody could be
        asked."""
        state.asks = True
        # The run that brings the answer claims the key again, here or in another process, so nobody may hold it
        # meanwhile.
        claim, state.claim = state.claim, None
        if claim is not None and not await self._is_taken(state.call.job_id):
            await shield_until_done(self.keys.end(claim, state, None))
        try:
            if state.call.job_id:
                await self.running.asks(state.call.job_id)
            planned = granted.planned
            if planned.preconditions is NO_PRECONDITIONS:
                planned = planned._replace(preconditions=await self.adapters[granted.spec.kind].preconditions(planned))
            await self.approvals.ask_question(planned, granted.verdict, question, state.approval)
        except ToolFailure as refused:
            raise mark_unasked(refused) from refused

    async def _stop(self, state: CallState, granted: GrantedCall, adapter: Adapter) -> ToolResult | Plan:
        """After step 5: end a dry run with its plan, and a submission with its stored job."""
        if state.call.mode is Mode.DRY_RUN:
            state.begun_ns[EXECUTE] = perf_counter_ns()
            foreseen = await adapter.foresee(granted) if isinstance(adapter, ForeseeingAdapter) else None
            return self._show(state, adapter.effects(granted) if foreseen is None else foreseen)
        await self.recorder.announce(state, granted)
        state.begun_ns[EXECUTE] = perf_counter_ns()
        if state.lease is not None:
            state.lease.refund()  # the job takes its own when it runs
        job, stood_already = await self.jobs.accept(state.received, granted)
        return self.recorder.settle(state, attach_job(state, job, self.clock.unix_ms(), replayed=stood_already))

    def _fail(self, state: CallState, failure: Exception) -> ToolResult | Plan:
        """Return the answer to a call that failed: a defect is logged whole and answered without its text, in the
        middle of a side effect as an unknown outcome."""
        error = failure.error if isinstance(failure, ToolFailure) else crash(state.call.call_id)
        if isinstance(failure, HiddenTool):
            state.hidden = failure.reason
        if error.kind is ErrorKind.INTERNAL:
            self.observer.on_crash(state.call, failure)
            error = of_a_crash(state, error)
        return self._refuse(state, error)

    def _refuse(self, state: CallState, error: ToolError) -> ToolResult | Plan:
        """Return the answer to a call that stopped at `state.step`."""
        error = redact_error(error, self.redactor)
        if state.call.mode is Mode.DRY_RUN:
            return self._show(state, (), error)
        return self.recorder.settle(state, attach_refusal(state, error, self.clock.unix_ms()))

    async def _show_plan(self, answer: ToolResult, call: Call, spec: ToolSpec) -> ToolResult:
        """Return the refusal of a model's call that lacks a plan with that plan, made by a dry run of the same call."""
        plan = await self.invoke(to_dry_run(call, self.call_ids.next()))
        assert isinstance(plan, Plan)
        digest = self.plans.shorten(plan.plan_digest) if plan.plan_digest else ""
        argument = plan_argument(spec.input_schema)
        return attach_plan(answer, plan, digest=digest, argument=argument, now_unix_ms=self.clock.unix_ms())

    def _show(self, state: CallState, effects: Sequence[str], error: ToolError | None = None) -> Plan:
        """End a dry run: return what was taken, and record the plan like any call."""
        if state.lease is not None:
            state.lease.refund()
        plan = self.plans.show(state, effects, error)
        self.recorder.settle_plan(state, error)
        return plan

    async def _redact_plan(self, plan: Plan, state: CallState) -> Plan:
        """Return the plan without secrets; in a text of megabytes, hiding them takes seconds."""
        size_bytes = 0 if state.planned is None else len(state.planned.args_json)
        if size_bytes <= SHOWN_AT_ONCE_BYTES:
            return redact_plan(plan, self.redactor)
        return await self.large.run(state.call.principal.share, size_bytes, redact_plan, plan, self.redactor)


def validate_and_complete(call: Call, spec: ToolSpec, schemas: ToolSchemas, adapter: Adapter) -> PlannedCall:
    """Run steps 2 and 3 in one piece of work."""
    validate_input(call, spec, schemas, adapter)
    return apply_defaults(call, spec, schemas)
