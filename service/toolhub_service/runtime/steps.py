"""The steps that only judge a call, in their order: 2 validate_input, 3 apply_defaults, 4 check_policy, 5 take_budget
and, once it has run, 7 validate_output.

Each is a plain function that `Pipeline.run` calls in its place: it returns what the next step needs, or raises what the
call is refused with. Steps 1 (`route.py`), 6 (`execute.py`), 8 (`attach_evidence.py`) and 9 (`record.py`) have files of
their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from toolhub_service.budget.lease import Lease
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import Call, GrantedCall, Mode, PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.key import Claim
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.runtime.approval_record import reply_to
from toolhub_service.runtime.route import Route
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.defaults import ToolSchemas


def validate_input(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> None:
    """Step 2. Raises INPUT_SCHEMA_INVALID with violations that a model can repair from, or INVALID_INPUT."""
    if call.args_error is not None:
        raise ToolFailure(call.args_error)
    violations = schemas.validate_input(call.args)
    if violations:
        problems = " ".join(f"{each.message} {each.hint}".rstrip() for each in violations)
        message = f"The arguments do not fit {call.tool}: {problems}"
        raise refuse(ErrorKind.INPUT_SCHEMA_INVALID, message, violations=violations)
    if spec.has_side_effects and not call.purpose.strip():
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"{call.tool} can change something: say why you call it in `purpose`; it goes into the audit log.",
            field="purpose",
        )


def apply_defaults(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> PlannedCall:
    """Step 3: the complete call, still valid. The hub fills in what was left out, never the model.

    A default that would break the arguments is left out too.
    """
    args, filled = schemas.complete(call.args)
    text = dumps(args)
    return PlannedCall(call, spec, args, filled, text, hashlib.sha256(text).hexdigest())


_REFUSALS = {Effect.REQUIRE_APPROVAL: ErrorKind.APPROVAL_REQUIRED, Effect.REQUIRE_PLAN: ErrorKind.PLAN_REQUIRED}


def check_policy(route: Route, planned: PlannedCall, policy: PolicySource) -> Verdict:
    """Step 4: may this agent do this, now, with these arguments? By the policy in force, which may be another one than
    when the call was resolved."""
    context = planned.call.context
    if (
        route.verdict is None
        or route.policy_version != policy.version
        or context.agent_id
        or context.user_id
        or context.permissions is not None
    ):
        return policy.decide(planned)
    return route.verdict


def is_bound(call: Call, verdict: Verdict) -> bool:
    """Whether a plan is shown or committed, or a person asked: each holds for a folder and what stands there."""
    if verdict.effect is Effect.DENY:
        return False
    if verdict.effect is Effect.REQUIRE_APPROVAL or call.mode is Mode.DRY_RUN:
        return True
    return bool(call.plan_digest or call.approval_id)


def is_for_a_person(call: Call, verdict: Verdict) -> bool:
    """Whether the call needs a person's yes, or may bring one; a dry run neither asks nor uses any."""
    if call.mode is Mode.DRY_RUN:
        return False
    return verdict.effect is Effect.REQUIRE_APPROVAL or (verdict.effect is Effect.ALLOW and bool(call.approval_id))


def approved(verdict: Verdict) -> Verdict:
    """The verdict once a person has said yes to exactly this call."""
    return replace(verdict, effect=Effect.ALLOW)


def enforce(planned: PlannedCall, verdict: Verdict) -> None:
    """Raises POLICY_DENIED, APPROVAL_REQUIRED, PLAN_REQUIRED or the guard's own kind; a dry run may show a plan."""
    if verdict.effect is Effect.ALLOW:
        return
    if verdict.effect is Effect.REQUIRE_PLAN and planned.call.mode is Mode.DRY_RUN:
        return
    kind = _REFUSALS.get(verdict.effect, verdict.kind)
    message = f"{planned.spec.name}: {verdict.reason}" + (f" {verdict.remedy}" if verdict.remedy else "")
    raise ToolFailure(ToolError(kind=kind, message=message, details=details_of(verdict)))


def details_of(verdict: Verdict) -> dict[str, JsonValue]:
    """The facts of a refusal by policy."""
    details: dict[str, JsonValue] = {
        **verdict.details,
        "rule_id": verdict.rule_id,
        "policy_revision": verdict.policy_revision,
    }
    if verdict.remedy:
        details["remedy"] = verdict.remedy
    return details


async def take_budget(
    route: Route,
    planned: PlannedCall,
    verdict: Verdict,
    budgets: Budgets,
    claim: Claim | None = None,
    approval: Approval | None = None,
) -> tuple[GrantedCall, Lease]:
    """Step 5: the granted call and the lease to release.

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
        await lease.admitted()
    granted = GrantedCall(
        planned=planned,
        verdict=verdict,
        deadline_s=lease.deadline_s,
        has_side_effects=has_side_effects,
        idempotency_key=planned.call.idempotency_key if claim is None else claim.key.key,
        reply=None if approval is None else reply_to(approval),
    )
    return granted, lease


def validate_output(spec: ToolSpec, outcome: Outcome, schemas: ToolSchemas) -> None:
    """Step 7. Raises OUTPUT_SCHEMA_INVALID: the tool ran, but what it answered cannot be trusted."""
    violations = schemas.validate_output(outcome.value)
    if violations:
        effect = "It may have had its effect: do not repeat it blindly." if spec.has_side_effects else ""
        raise refuse(
            ErrorKind.OUTPUT_SCHEMA_INVALID,
            f"{spec.name} answered something its own output schema forbids. {effect}".rstrip(),
            violations=violations,
        )
