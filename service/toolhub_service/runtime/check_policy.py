"""Step 4: may this agent do this, now, with these arguments? Asks the policy in force and honours plans."""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.domain.call import Call, Mode, PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.runtime.plans import Plans

_REFUSALS = {Effect.REQUIRE_APPROVAL: ErrorKind.APPROVAL_REQUIRED, Effect.REQUIRE_PLAN: ErrorKind.PLAN_REQUIRED}


def check_policy(planned: PlannedCall, verdict: Verdict, plans: Plans) -> Verdict:
    """The verdict in force for a call whose policy has said `verdict`, refusing ones too: `enforce` turns those into
    failures. Raises PLAN_REQUIRED for a plan that is not the one that was shown."""
    call = planned.call
    if call.mode is not Mode.DRY_RUN and call.plan_digest:
        return plans.commit(planned, verdict)
    return verdict


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
