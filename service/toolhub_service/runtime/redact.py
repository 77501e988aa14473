"""What a caller is told besides the value of its answer: errors, evidence and plans, each without secrets.

Tools and steps write them with care; this is the last door, so that one careless text is not a leak. Schemas
(`Violation.expected`) are the operator's and stay: `{"password": {"type": "string"}}` is no secret.
"""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.domain.errors import ToolError, Upstream, Violation
from toolhub_service.domain.plan import Plan, StepVerdict
from toolhub_service.domain.result import Evidence
from toolhub_service.guards.secrets import Redactor


def redact_error(error: ToolError, redactor: Redactor) -> ToolError:
    """Every text of the error; its kind and terms stay."""
    return replace(
        error,
        message=redactor.text(error.message),
        violations=tuple(_violation(violation, redactor) for violation in error.violations),
        details=redactor.value(dict(error.details)),
        upstream=Upstream(error.upstream.status, redactor.text(error.upstream.excerpt)) if error.upstream else None,
    )


def redact_evidence(evidence: Evidence, redactor: Redactor) -> Evidence:
    """The very same object when there is no sign of a secret, which one search tells."""
    text = "\n".join((evidence.ref, evidence.summary, *(f'"{n}":"{v}"' for n, v in evidence.attributes.items())))
    if not redactor.suspects(text.encode("utf-8", "surrogatepass")):
        return evidence
    return replace(
        evidence,
        ref=redactor.text(evidence.ref),
        summary=redactor.text(evidence.summary),
        attributes=redactor.value(dict(evidence.attributes)),
    )


def redact_plan(plan: Plan, redactor: Redactor) -> Plan:
    """Plans are shown to people: the digest seals the arguments as they were sent, the text shows them redacted."""
    return replace(
        plan,
        args=redactor.value(plan.args),
        steps=tuple(_step(step, redactor) for step in plan.steps),
        effects=tuple(redactor.text(effect) for effect in plan.effects),
    )


def _violation(violation: Violation, redactor: Redactor) -> Violation:
    return replace(
        violation,
        path=redactor.text(violation.path),
        message=redactor.text(violation.message),
        hint=redactor.text(violation.hint),
    )


def _step(step: StepVerdict, redactor: Redactor) -> StepVerdict:
    error = None if step.error is None else redact_error(step.error, redactor)
    return replace(step, reason=redactor.text(step.reason), remedy=redactor.text(step.remedy), error=error)
