"""What a caller is told besides the value of its answer: errors, evidence, plans; no secrets in them, plain UTF-8.

Tools and steps write them with care; this is the last door, so that one careless text is neither a leak nor an answer
that cannot be sent after its effect. Schemas (`Violation.expected`) are the operator's and stay:
`{"password": {"type": "string"}}` is no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from toolhub_service.domain.errors import ToolError, Upstream, Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.plan import Plan, StepVerdict
from toolhub_service.domain.result import Evidence
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import NotJson, dumps

SHOWN_AT_ONCE_BYTES: Final = 16 * 1024
"""Of arguments in which secrets are hidden on the event loop: in megabytes it takes seconds."""


def redact_error(error: ToolError, redactor: Redactor) -> ToolError:
    """Every text of the error; its kind and terms stay."""
    return replace(
        error,
        message=_text(error.message, redactor),
        violations=tuple(_violation(violation, redactor) for violation in error.violations),
        details=_details(error.details, redactor),
        upstream=Upstream(error.upstream.status, _text(error.upstream.excerpt, redactor)) if error.upstream else None,
    )


def redact_evidence(evidence: Evidence, redactor: Redactor) -> Evidence:
    """The very same object when there is nothing to hide or to mend, which one search tells."""
    text = f"{evidence.ref}\n{evidence.summary}"
    for name, value in evidence.attributes.items():
        text += f'\n"{name}":"{value}"'
    if text.isascii() and not redactor.suspects(text.encode()):
        return evidence
    attributes = redactor.value({_text(str(n), redactor): _mended(str(v)) for n, v in evidence.attributes.items()})
    ref, summary = _text(evidence.ref, redactor), _text(evidence.summary, redactor)
    return evidence._replace(ref=ref, summary=summary, attributes=attributes)


def redact_plan(plan: Plan, redactor: Redactor) -> Plan:
    """Plans are shown to people: the digest seals the arguments as they were sent, the text shows them redacted."""
    return replace(
        plan,
        args=redactor.value(plan.args),
        steps=tuple(_step(step, redactor) for step in plan.steps),
        effects=tuple(_text(effect, redactor) for effect in plan.effects),
    )


def _violation(violation: Violation, redactor: Redactor) -> Violation:
    return replace(
        violation,
        path=_text(violation.path, redactor),
        message=_text(violation.message, redactor),
        hint=_text(violation.hint, redactor),
    )


def _step(step: StepVerdict, redactor: Redactor) -> StepVerdict:
    error = None if step.error is None else redact_error(step.error, redactor)
    return replace(step, reason=_text(step.reason, redactor), remedy=_text(step.remedy, redactor), error=error)


def _details(details: Mapping[str, JsonValue], redactor: Redactor) -> JsonObject:
    try:
        dumps(dict(details))
    except NotJson:
        return {"left_out": "the details were not JSON"}
    return cast(JsonObject, redactor.value(dict(details)))


def _text(text: str, redactor: Redactor) -> str:
    return redactor.text(_mended(text))


def _mended(text: str) -> str:
    """`?` for lone surrogates, such as stand in file names that are not UTF-8: they cannot be sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
