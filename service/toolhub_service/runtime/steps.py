"""Steps 2 to 7 in their order: validate_input, apply_defaults, check_policy, take_budget, execute and validate_output.

`Pipeline.run` calls each in its place. A step returns what the next one needs, or raises the refusal of the call; step
4 returns the verdict, and `enforce` raises its refusal once a plan or a person may have agreed. Steps 1 (`route.py`), 8
(`attach_evidence.py`) and 9 (`record.py`) have files of their own.
"""

from __future__ import annotations

import asyncio
import hashlib

from msgspec import structs

from toolhub_service.aio.waits import until_deadline
from toolhub_service.budget.lease import Lease
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import Call, GrantedCall, Mode, PlannedCall, QuestionAsked, Suspended
from toolhub_service.domain.errors.failure import (
    IDLE,
    NOTHING_HAPPENED,
    STOPPED,
    WAS_SENT,
    ErrorKind,
    ToolError,
    ToolFailure,
    refuse,
)
from toolhub_service.domain.key import Claim
from toolhub_service.domain.ports import Adapter, CallObserver, EventSink, PolicySource, Sleep
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.runtime.approvals.tool_questions import reply_to
from toolhub_service.runtime.call_state import CallState
from toolhub_service.runtime.failures import outcome_unknown, sent_outcome_unknown
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.route import Route
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.tool_schemas import ToolSchemas


def validate_input(call: Call, spec: ToolSpec, schemas: ToolSchemas, adapter: Adapter) -> None:
    """Step 2. Raises INPUT_SCHEMA_INVALID with violations from which a model can repair the call, or INVALID_INPUT.

    `adapter` knows whether a call of a tool that can change something does so with these arguments.
    """
    if call.args_error is not None:
        raise ToolFailure(call.args_error)
    violations = schemas.validate_input(call.args)
    if violations:
        problems = " ".join(f"{each.message} {each.hint}".rstrip() for each in violations)
        message = f"The arguments do not match the schema of {call.tool}: {problems}"
        raise refuse(ErrorKind.INPUT_SCHEMA_INVALID, message, violations=violations)
    has_no_purpose = spec.has_side_effects and not call.purpose.strip()
    if has_no_purpose and adapter.has_side_effects(apply_defaults(call, spec, schemas)):
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"{call.tool} can change something: state why you call it in `purpose`, which is recorded in the audit "
            "log.",
            field="purpose",
        )


def apply_defaults(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> PlannedCall:
    """Step 3: return the complete call, still valid. The hub fills in what was left out, never the model.

    A default that would make the arguments invalid is left out too.
    """
    args, filled = schemas.complete(call.args)
    text = dumps(args)
    return PlannedCall(call, spec, args, filled, text, hashlib.sha256(text).hexdigest())


_REFUSALS = {Effect.REQUIRE_APPROVAL: ErrorKind.APPROVAL_REQUIRED, Effect.REQUIRE_PLAN: ErrorKind.PLAN_REQUIRED}


def check_policy(route: Route, planned: PlannedCall, policy: PolicySource) -> Verdict:
    """Step 4: return the verdict on this call by the policy in force, which may have changed since the call was
    resolved. `enforce` raises the refusal."""
    context = planned.call.context
    if (
        route.verdict is None
        or route.policy_version != policy.version
        or context.agent_id
        or context.user_id
        or context.permissions is not None
        or planned.call.lineage is not None
    ):
        return policy.decide(planned)
    return route.verdict


def is_bound(call: Call, verdict: Verdict) -> bool:
    """Return whether the call involves a plan or an approval, which are valid for one workspace and its state only."""
    if verdict.effect is Effect.DENY:
        return False
    if verdict.effect is Effect.REQUIRE_APPROVAL or call.mode is Mode.DRY_RUN:
        return True
    return bool(call.plan_digest or call.approval_id)


def is_for_a_person(call: Call, verdict: Verdict) -> bool:
    """Return whether the call needs a person's approval or may carry one; a dry run neither requests nor uses any."""
    if call.mode is Mode.DRY_RUN:
        return False
    return verdict.effect is Effect.REQUIRE_APPROVAL or (verdict.effect is Effect.ALLOW and bool(call.approval_id))


def approve_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict once a person has approved exactly this call."""
    return structs.replace(verdict, effect=Effect.ALLOW)


def enforce(planned: PlannedCall, verdict: Verdict) -> None:
    """Raises POLICY_DENIED, APPROVAL_REQUIRED, PLAN_REQUIRED or the guard's own kind; a dry run may show a plan."""
    if verdict.effect is Effect.ALLOW:
        return
    if verdict.effect is Effect.REQUIRE_PLAN and planned.call.mode is Mode.DRY_RUN:
        return
    kind = _REFUSALS.get(verdict.effect, verdict.kind)
    message = f"{planned.spec.name}: {verdict.reason}" + (f" {verdict.remedy}" if verdict.remedy else "")
    raise ToolFailure(ToolError(kind=kind, message=message, details=verdict.refusal_details()))


async def take_budget(
    route: Route,
    planned: PlannedCall,
    verdict: Verdict,
    budgets: Budgets,
    claim: Claim | None = None,
    approval: Approval | None = None,
) -> tuple[GrantedCall, Lease]:
    """Step 5: return the granted call and the lease to release.

    Raises BUDGET_EXCEEDED, RATE_LIMITED, CIRCUIT_OPEN or TIMEOUT.
    """
    adapter, has_side_effects, upstream = route.adapter, route.has_side_effects, route.upstream
    if has_side_effects is None:
        has_side_effects = adapter.has_side_effects(planned)
    lease = budgets.take(
        planned,
        verdict,
        adapter.upstream(planned) if upstream is None else upstream,
        reads_only=not has_side_effects,
        is_followed=bool(planned.call.job_id) and adapter.resumes(planned.spec),
    )
    if lease.is_pending:
        await lease.wait_for_admission()
    granted = GrantedCall(
        planned=planned,
        verdict=verdict,
        deadline_s=lease.deadline_s,
        has_side_effects=has_side_effects,
        idempotency_key=planned.call.idempotency_key if claim is None else claim.key.key,
        reply=None if approval is None else reply_to(approval),
    )
    return granted, lease


class Executor:
    """Step 6: runs the adapter inside its budget, with its retries; `sleep` waits between two attempts.

    A retry happens only when the error may pass, the call is safe to repeat and the deadline leaves time. A side effect
    whose end was not observed is OUTCOME_UNKNOWN, never an error that invites a second run. A question of the tool is
    passed on.
    """

    def __init__(self, observer: CallObserver, recorder: Recorder, sleep: Sleep = asyncio.sleep) -> None:
        self._observer = observer
        self._recorder = recorder
        self._sleep = sleep

    async def execute(
        self, state: CallState, granted: GrantedCall, lease: Lease, adapter: Adapter, sink: EventSink
    ) -> Outcome:
        """Return the outcome of the last attempt. Raises ToolFailure with the last attempt's error, QuestionAsked or
        Suspended."""
        state.granted = granted
        while True:
            state.attempts += 1
            question: QuestionAsked | Suspended | None = None
            try:
                with self._observer.executing(granted):
                    try:
                        outcome = await until_deadline(granted.deadline_s, adapter.execute(granted, sink))
                    except TimeoutError as expired:
                        raise ToolFailure(_timed_out(granted)) from expired
                    except (QuestionAsked, Suspended) as asked:
                        question = asked  # the attempt has not failed, and its span must not say so
                if question is not None:
                    raise question
                if outcome.passing is None or not await self._waits(granted, state, lease, outcome.passing):
                    if outcome.upstream_fails:
                        lease.blame()
                    return outcome
            except ToolFailure as failure:
                if not await self._waits(granted, state, lease, failure.error):
                    raise ToolFailure(_final(granted, failure.error)) from failure

    async def _waits(self, granted: GrantedCall, state: CallState, lease: Lease, error: ToolError) -> bool:
        """Return, after a pause, whether the call is to be tried again; False at once: the attempt was the last."""
        pause_s = lease.retry_pause_s(error, state.attempts)
        if pause_s is None:
            return False
        self._recorder.record_retry(granted, state, error, state.attempts)
        await self._sleep(pause_s)
        return True


_TIMEOUTS = frozenset({ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT})


def _timed_out(granted: GrantedCall) -> ToolError:
    return ToolError(
        kind=ErrorKind.TIMEOUT,
        message=f"{granted.spec.name} did not answer before its deadline; ask for less or allow more time.",
        details={"default_timeout_s": granted.spec.limits.timeout_s},
    )


def _with_limit(granted: GrantedCall, error: ToolError) -> ToolError:
    """Return the timeout error, with the operator's limit if that is lower than the caller's and ended the call."""
    call = granted.call
    most_s = granted.spec.limits.most_s(in_job=bool(call.job_id))
    asked_s = call.context.budget.timeout_s
    is_callers = call.deadline_s is not None and granted.deadline_s >= call.deadline_s
    if not most_s or IDLE in error.details or is_callers or (asked_s is not None and asked_s <= most_s):
        return error
    message = (
        f"{granted.spec.name} did not answer within the {most_s:g} s that an operator allows its calls; ask for less, "
        "or have `timeout_s` of its source raised."
    )
    return structs.replace(error, message=message, details={**error.details, "timeout_s": most_s})


def _final(granted: GrantedCall, error: ToolError) -> ToolError:
    """Return OUTCOME_UNKNOWN for a call that may have had an effect whose end was not observed: it timed out, unless
    its remote side has confirmed the end or got nothing; or what it sent was not answered."""
    details = error.details
    is_timeout = error.kind in _TIMEOUTS and details.get(STOPPED) is not True
    if is_timeout:
        error = _with_limit(granted, error)
    if granted.safe_to_repeat or details.get(NOTHING_HAPPENED) is True:
        return error
    if details.get(WAS_SENT) is True:
        return sent_outcome_unknown(error)
    return outcome_unknown(granted.spec.name, error) if is_timeout else error


def validate_output(spec: ToolSpec, outcome: Outcome, schemas: ToolSchemas) -> None:
    """Step 7. Raises OUTPUT_SCHEMA_INVALID: the tool ran, but its answer cannot be trusted."""
    violations = schemas.validate_output(outcome.value)
    if violations:
        effect = "It may have had its effect: do not repeat it blindly." if spec.has_side_effects else ""
        raise refuse(
            ErrorKind.OUTPUT_SCHEMA_INVALID,
            f"The result of {spec.name} does not match its own output schema. {effect}".rstrip(),
            violations=violations,
        )
