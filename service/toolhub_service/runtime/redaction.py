"""Redaction of what a caller receives besides the value of its answer: errors, evidence, plans; plain UTF-8 without
secrets.

Tools and steps write these with care; this is the last place before they are sent, so that one careless text is
neither a leak nor an answer that cannot be sent after its effect. Schemas (`Violation.expected`) are the operator's
and stay unchanged: `{"password": {"type": "string"}}` is no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from msgspec import structs

from toolhub_service.domain.errors.failure import ToolError, Upstream, Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Plan, StepVerdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import NotJson, dumps

SHOWN_AT_ONCE_BYTES: Final = 16 * 1024
"""Size of arguments whose secrets are hidden on the event loop: in megabytes this takes seconds."""


def redact_error(error: ToolError, redactor: Redactor) -> ToolError:
    """Return the error with every text redacted; its kind and terms stay unchanged."""
    upstream = error.upstream
    return structs.replace(
        error,
        message=redact_text(error.message, redactor),
        violations=tuple(_violation(violation, redactor) for violation in error.violations),
        details=_details(error.details, redactor),
        upstream=upstream and Upstream(upstream.status, redact_text(upstream.excerpt, redactor)),
    )


def redact_plan(plan: Plan, redactor: Redactor) -> Plan:
    """Return the plan as people see it: its texts redacted, while its digest seals the arguments as they were sent."""
    return structs.replace(
        plan,
        args=redactor.value(plan.args),
        steps=tuple(_step(step, redactor) for step in plan.steps),
        effects=tuple(redact_text(effect, redactor) for effect in plan.effects),
    )


def _violation(violation: Violation, redactor: Redactor) -> Violation:
    return structs.replace(
        violation,
        path=redact_text(violation.path, redactor),
        message=redact_text(violation.message, redactor),
        hint=redact_text(violation.hint, redactor),
    )


def _step(step: StepVerdict, redactor: Redactor) -> StepVerdict:
    error = None if step.error is None else redact_error(step.error, redactor)
    return structs.replace(
        step, reason=redact_text(step.reason, redactor), remedy=redact_text(step.remedy, redactor), error=error
    )


def _details(details: Mapping[str, JsonValue], redactor: Redactor) -> JsonObject:
    try:
        dumps(dict(details))
    except NotJson:
        return {"left_out": "the details were not JSON"}
    return cast(JsonObject, redactor.value(dict(details)))


def redact_text(text: str, redactor: Redactor) -> str:
    return redactor.text(replace_surrogates(text))


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by `?`: they occur in file names that are not UTF-8 and cannot be sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
