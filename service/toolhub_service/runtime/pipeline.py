"""A call's way through the nine steps. Read this first: `Pipeline.run` reads like this table.

    1 resolve          which tool, is it callable?             route.py
    2 validate_input   do the arguments fit?                   steps.py
    3 apply_defaults   what was left out?                      steps.py
    4 check_policy     may this agent do this?                 steps.py (plans.py, approvals.py where one must agree)
    5 take_budget      is there time, rate, a slot, quota?     steps.py (before it, once per key: idempotency.py)
    6 execute          run the adapter, with its retries       steps.py
    7 validate_output  does the result fit?                    steps.py
    8 attach_evidence  what proves it?                         attach_evidence.py
    9 record           always: audit, metrics, trace           record.py

`Call` becomes `PlannedCall` becomes `GrantedCall`; an adapter accepts nothing but the last. A tool that asks a person
in step 6 ends with APPROVAL_REQUIRED; the call that comes again goes through all steps, and its `GrantedCall` has the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any, NoReturn, TypeVar

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
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
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
from toolhub_service.domain.result import Plan, ToolResult
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.table import narrowed
from toolhub_service.registry.cooperative import in_thread
from toolhub_service.runtime.approval_record import marked_unasked
from toolhub_service.runtime.artifacts import Artifacts
from toolhub_service.runtime.attach_evidence import attach_evidence, attach_job, attach_refusal, keep_whole
from toolhub_service.runtime.call_state import (
    APPLY_DEFAULTS,
    ATTACH_EVIDENCE,
    CHECK_POLICY,
    EXECUTE,
    TAKE_BUDGET,
    VALIDATE_INPUT,
    VALIDATE_OUTPUT,
    CallState,
)
from toolhub_service.runtime.failures import (
    SHOWN_AT_ONCE_BYTES,
    cancelled,
    crash,
    of_a_crash,
    redact_error,
    redact_plan,
)
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.large_work import LargeWork
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.route import Route, Routes, Unread, all_read
from toolhub_service.runtime.steps import (
    SILENT,
    Executor,
    apply_defaults,
    approved,
    check_policy,
    enforce,
    is_bound,
    is_for_a_person,
    shield_until_done,
    take_budget,
    until_deadline,
    validate_input,
    validate_output,
)
from toolhub_service.schema.defaults import ToolSchemas

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
    routes: Routes = field(init=False)
    in_flight: dict[str, int] = field(init=False)
    """Calls that have not been answered, oldest first: by call id, when each began by the performance counter (ns)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "large", LargeWork(self.clock))
        object.__setattr__(self, "routes", Routes(self.catalog, self.policy, self.adapters, self.unread))
        object.__setattr__(self, "in_flight", {})

    def oldest_call_s(self) -> float:
        """Age of the call that has been in flight longest; 0 when there is none."""
        began_ns = next(iter(self.in_flight.values()), None)
        return 0.0 if began_ns is None else (perf_counter_ns() - began_ns) / 1e9

    async def invoke(self, call: Call, sink: EventSink = SILENT) -> ToolResult | Plan:
        """Answer a call: always a ToolResult, or a Plan when it is a dry run. Only cancellation is raised."""
        begun_ns, answer = perf_counter_ns(), None
        if call.principal.permissions is not None:
            call = call._replace(context=narrowed(call.context, call.principal.permissions))
        state = CallState(call, call, [begun_ns, 0, 0, 0, 0, 0, 0, 0, 0], {})
        self.in_flight[call.call_id] = begun_ns
        try:
            answer = await self.run(state, sink)
        except asyncio.CancelledError:
            # Nobody waits for this answer; the audit log and the metrics need the end of the call all the same.
            self._refuse(state, cancelled())
            raise
        except Exception as failure:  # noqa: BLE001 - the top of the walk: what no step foresaw is answered too
            answer = self._fail(state, failure)
            if state.outcome is not None and state.outcome.artifacts:
                await self.artifacts.release([artifact.artifact_id for artifact in state.outcome.artifacts])
        finally:
            self.in_flight.pop(call.call_id, None)
            if state.claim is not None and not await self._continues_elsewhere(state, answer):
                # A claim that stayed would hold up repeats until its lease ends: no cancellation may cut this off.
                await shield_until_done(self.keys.end(state.claim, state, answer))
        return answer if isinstance(answer, ToolResult) else await self._redacted(answer, state)

    async def run(self, state: CallState, sink: EventSink) -> ToolResult | Plan:  # noqa: C901, PLR0912, PLR0915 - on one page
        """The nine steps. Raises what a step refuses with."""
        call, begun_ns = state.call, state.begun_ns
        route = self.routes.of(call)
        state.spec = spec = route.spec
        if route.becomes_job and call.mode is Mode.EXECUTE and not call.job_id:  # a job's own run has one
            state.call = state.asked = call = call._replace(mode=Mode.SUBMIT, client=None)
        begun_ns[VALIDATE_INPUT] = perf_counter_ns()
        if call.unread_bytes or call.names_artifacts:
            state.call = call = await self._arguments_of(state, spec, route.schemas)
        if state.planned is None:  # large arguments were checked beside the loop
            validate_input(call, spec, route.schemas, route.adapter)
        begun_ns[APPLY_DEFAULTS] = perf_counter_ns()
        state.planned = planned = state.planned or apply_defaults(call, spec, route.schemas)
        begun_ns[CHECK_POLICY] = perf_counter_ns()
        verdict = await self._decided(planned) if call.unread_bytes else check_policy(route, planned, self.policy)
        state.verdict = verdict
        if verdict.effect is not Effect.ALLOW or call.plan_digest or call.approval_id or call.mode is Mode.DRY_RUN:
            planned, verdict = await self._agreed(state, route, planned, verdict)

        begun_ns[TAKE_BUDGET] = perf_counter_ns()
        if call.mode is Mode.EXECUTE and (call.idempotency_key or route.derives_key):
            state.claim, stored = await self.keys.claim(state, route.adapter)  # first: a repeat costs no budget
            if stored is not None:
                return self.recorder.settle(state, stored)
        granted, state.lease = await take_budget(route, planned, verdict, self.budgets, state.claim, state.approval)
        if call.plan_digest:
            self._refuse_stale(state, granted, route.adapter)
        if call.mode is not Mode.EXECUTE:
            return await self._stop(state, granted, route.adapter)
        if spec.has_side_effects or state.approval is not None or call.job_id:
            await self._ask(state, granted)
        else:
            await self.recorder.ready()

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

    async def _agreed(
        self, state: CallState, route: Route, planned: PlannedCall, verdict: Verdict
    ) -> tuple[PlannedCall, Verdict]:
        """The call with what it would touch, and the verdict once its plan or a person has agreed to that. Raises what
        step 4 refuses with."""
        call = planned.call
        if is_bound(call, verdict):
            state.planned = planned = planned._replace(preconditions=await route.adapter.preconditions(planned))
            if call.mode is not Mode.DRY_RUN and call.plan_digest:
                state.verdict = verdict = self.plans.commit(planned, verdict)
            if is_for_a_person(call, verdict):
                if not await self._only_stops(call):
                    state.approval = await self.approvals.settle(planned, verdict)
                state.verdict = verdict = approved(verdict)
        enforce(planned, verdict)
        return planned, verdict

    def _refuse_stale(self, state: CallState, granted: GrantedCall, adapter: Adapter) -> None:
        """After step 5, for a repeated call is answered under its key although its own effect has changed the state.
        Raises PLAN_REQUIRED with the plan of now."""
        planned, call = granted.planned, granted.call
        if call.mode is Mode.DRY_RUN or (call.mode is Mode.SUBMIT and call.idempotency_key):
            return  # A job that was submitted twice is recognised by its key; the run of the one there is compares.
        verdict = self.policy.decide(planned)
        if not self.plans.is_stale(planned, verdict):
            return
        effects = adapter.effects(granted)
        if state.lease is not None:
            state.lease.refund()
        raise self.plans.stale(planned, verdict, effects)

    async def _continues_elsewhere(self, state: CallState, answer: ToolResult | Plan | None) -> bool:
        """Whether the job's work continues on a remote side although this run of it was cut off, or was refused before
        it could ask there: the next run then takes over its key."""
        job_id, spec = state.call.job_id, state.spec
        if not job_id or spec is None or (state.attempts and answer is not None):
            return False
        if state.attempts and self.adapters[spec.kind].resumes(spec):
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

    async def _arguments_of(self, state: CallState, spec: ToolSpec, schemas: ToolSchemas) -> Call:
        """The call with what its arguments refer to. Large ones are read, and walked through steps 2 and 3, beside
        other calls, and for nobody whose rate is used up."""
        call = state.call
        if call.unread is not None:
            check_rate = partial(self.budgets.check_rate, self.policy.limits(call.principal, spec))
            check_rate()
            self.large.admit(call.principal.id, call.unread_bytes)
            args, error = await self._large(call, call.unread, before=check_rate)
            state.call = state.asked = call = call._replace(args=args, args_error=error, unread=None)
        if call.names_artifacts and call.args_error is None:
            state.call = call = await self._with_artifacts(state)
        if call.unread_bytes:
            state.planned = await self._large(call, _checked, call, spec, schemas, self.adapters[spec.kind])
        return call

    async def _decided(self, planned: PlannedCall) -> Verdict:
        """What policy says of a large call, whose paths a guard judges one by one."""
        return await self._large(planned.call, self.policy.decide, planned)

    async def _large(
        self, call: Call, work: Callable[..., T], *args: Any, before: Callable[[], None] | None = None
    ) -> T:
        """What the work on the call's large arguments returns, within the time that the call has."""
        doing = self.large.run(call.principal.share, call.unread_bytes, work, *args, before=before)
        if call.deadline_s is None:
            return await doing
        try:
            return await until_deadline(call.deadline_s, doing)
        except TimeoutError as expired:
            message = "The deadline passed before the arguments were read; allow more time, or send less at once."
            raise refuse(ErrorKind.TIMEOUT, message) from expired

    async def _with_artifacts(self, state: CallState) -> Call:
        """The call with texts in the place of references to artifacts; the audit log goes on showing references."""
        found = await self.artifacts.resolve(state.call.args, state.call.principal.id)
        state.shown_args = found.shown
        return state.call._replace(args=found.args)

    async def _ask(self, state: CallState, granted: GrantedCall) -> None:
        """What must be durable before the effect: the approval used up, the call in the audit log, the job begun."""
        # The approval first: lost to a crash it costs a person one more decision; used twice, it is an effect that
        # nobody allowed.
        if state.approval is not None:
            await self.approvals.use(state.approval, state.call)
        await self.recorder.ask(state, granted)
        job_id = state.call.job_id
        if not job_id:
            return
        spec = granted.spec
        if granted.safe_to_repeat or spec.replays or self.adapters[spec.kind].resumes(spec):
            return
        if await self.running.mark(job_id) is None:  # a mark is proof, whatever the adapter knows of the tool by now
            await self.running.begins(job_id)

    async def _wait(self, state: CallState, granted: GrantedCall, asked: QuestionAsked | Suspended) -> NoReturn:
        """Step 6 has ended because a person must say something first. Raises APPROVAL_REQUIRED."""
        if isinstance(asked, QuestionAsked):
            await self._ask_person(state, granted, asked.question)
        state.asks = True
        self.running.suspends(state.call.job_id, asked.approval_id)
        message = f"A call that {state.call.tool} makes waits for a person. The job goes on after the decision."
        raise refuse(ErrorKind.APPROVAL_REQUIRED, message, approval_id=asked.approval_id)

    async def _ask_person(self, state: CallState, granted: GrantedCall, question: Question) -> NoReturn:
        """Step 6 has ended with a question: nothing happens before its answer, whoever brings it, and whatever dies
        between two of these lines. Raises APPROVAL_REQUIRED, or why nobody could be asked."""
        state.asks = True
        # Whoever brings the answer claims the key anew, here or in another process, so nobody may hold it meanwhile.
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
            raise marked_unasked(refused) from refused

    async def _stop(self, state: CallState, granted: GrantedCall, adapter: Adapter) -> ToolResult | Plan:
        """After step 5: the end of a dry run, which shows its plan, and of a submission, whose job is kept."""
        if state.call.mode is Mode.DRY_RUN:
            state.begun_ns[EXECUTE] = perf_counter_ns()
            foreseen = await adapter.foresee(granted) if isinstance(adapter, ForeseeingAdapter) else None
            return self._show(state, adapter.effects(granted) if foreseen is None else foreseen)
        await self.recorder.ask(state, granted)
        state.begun_ns[EXECUTE] = perf_counter_ns()
        if state.lease is not None:
            state.lease.refund()  # the job takes its own when it runs
        job, stood_already = await self.jobs.accept(state.asked, granted)
        return self.recorder.settle(state, attach_job(state, job, self.clock.unix_ms(), replayed=stood_already))

    def _fail(self, state: CallState, failure: Exception) -> ToolResult | Plan:
        """The answer to a call that a step refused or broke: a defect is logged whole and answered without its text,
        and in the middle of a side effect as what it is to the caller, an unknown outcome."""
        error = failure.error if isinstance(failure, ToolFailure) else crash(state.call.call_id)
        if error.kind is ErrorKind.INTERNAL:
            self.observer.crashed(state.call, failure)
            error = of_a_crash(state, error)
        return self._refuse(state, error)

    def _refuse(self, state: CallState, error: ToolError) -> ToolResult | Plan:
        """The answer to a call that stopped at `state.step`."""
        error = redact_error(error, self.redactor)
        if state.call.mode is Mode.DRY_RUN:
            return self._show(state, (), error)
        return self.recorder.settle(state, attach_refusal(state, error, self.clock.unix_ms()))

    def _show(self, state: CallState, effects: Sequence[str], error: ToolError | None = None) -> Plan:
        """The end of a dry run: what was taken is given back, and the plan is recorded like any call."""
        if state.lease is not None:
            state.lease.refund()
        plan = self.plans.show(state, effects, error)
        self.recorder.settle_plan(state, error)
        return plan

    async def _redacted(self, plan: Plan, state: CallState) -> Plan:
        """Without secrets: to hide them in a text of megabytes takes seconds."""
        size_bytes = 0 if state.planned is None else len(state.planned.args_json)
        if size_bytes <= SHOWN_AT_ONCE_BYTES:
            return redact_plan(plan, self.redactor)
        return await self.large.run(state.call.principal.share, size_bytes, redact_plan, plan, self.redactor)


def _checked(call: Call, spec: ToolSpec, schemas: ToolSchemas, adapter: Adapter) -> PlannedCall:
    """Steps 2 and 3 in one turn."""
    validate_input(call, spec, schemas, adapter)
    return apply_defaults(call, spec, schemas)
