"""From a workflow of sources.yaml to the adapter's terms: for whoever opens the source, and for who only checks it."""

from __future__ import annotations

from toolhub_service.adapters.n8n.terms import FailureSign, WorkflowTerms
from toolhub_service.guards.headers import Headers
from toolhub_service.settings.workflow_sources import N8nWorkflow


def workflow_terms(entry: N8nWorkflow, headers: Headers = ()) -> WorkflowTerms:
    """`headers`: all that its calls are sent with, secrets resolved."""
    return WorkflowTerms(
        description=entry.description,
        webhook=entry.webhook.strip("/"),
        workflow_id=entry.workflow_id,
        method=entry.method,
        is_async=entry.mode == "async",
        execution_id=entry.execution_id,
        input_schema=entry.input_schema,
        output_schema=entry.output_schema,
        version=entry.version,
        headers=headers,
        idempotency_field=entry.idempotency_field,
        derived_key=entry.derived_key,
        deduplicates=entry.deduplicates,
        fails_when=tuple(FailureSign(sign.at, sign.equals, sign.message) for sign in entry.fails_when),
    )
