"""Results of status 200 that mean failure, by what the operator has said of the workflow."""

from __future__ import annotations

from toolhub_service.adapters.n8n.answers import at
from toolhub_service.adapters.n8n.failures import as_text
from toolhub_service.adapters.n8n.terms import FailureSign, WorkflowTerms
from toolhub_service.domain.json import JsonValue


def failure_in(terms: WorkflowTerms, value: JsonValue) -> str | None:
    """What the workflow says of its failure, perhaps nothing; None: it has not failed."""
    sign = next((sign for sign in terms.fails_when if _shows(sign, value)), None)
    if sign is None:
        return None
    message = at(value, sign.message) if sign.message else None
    return "" if message is None else as_text(message)


def _shows(sign: FailureSign, value: JsonValue) -> bool:
    found = at(value, sign.at)
    if sign.equals is None:
        return found is not None and found is not False and found not in ("", [], {})
    return isinstance(found, bool) == isinstance(sign.equals, bool) and found == sign.equals
