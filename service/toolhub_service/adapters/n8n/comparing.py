"""A workflow that the operator has named, beside what n8n has: where it is called, and what would keep that from
working."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from toolhub_service.adapters.n8n.server import named_webhook
from toolhub_service.adapters.n8n.terms import WorkflowTerms
from toolhub_service.adapters.n8n.webhooks import Webhook, webhooks_of
from toolhub_service.domain.json import JsonObject


class Compared(NamedTuple):
    webhook: Webhook | None
    note: str = ""
    """What an operator should do; calls are not kept from trying."""
    problem: str = ""
    """Why it cannot be called at all, with what to do."""


def is_at(workflow: JsonObject, paths: set[str]) -> bool:
    """Whether one of its webhooks stands at one of these paths."""
    return any(webhook.path in paths for webhook in webhooks_of(workflow))


def compared(terms: WorkflowTerms, workflows: Mapping[str, JsonObject]) -> Compared:
    """`workflows`: of n8n, by id; those that are not active only where they are named by their ids."""
    if terms.workflow_id and terms.workflow_id not in workflows:
        missing = f"n8n has no workflow {terms.workflow_id}: correct `workflow_id`."
        return Compared(named_webhook(terms), missing) if terms.webhook else Compared(None, "", missing)
    if terms.workflow_id:
        return _by_id(terms, workflows[terms.workflow_id])
    return _by_path(terms, workflows)


def _by_id(terms: WorkflowTerms, workflow: JsonObject) -> Compared:
    webhooks = webhooks_of(workflow)
    is_active = workflow.get("active") is True
    wanted = [webhook for webhook in webhooks if not terms.webhook or webhook.path == terms.webhook]
    if not terms.webhook and len(webhooks) != 1:
        why = "has several webhooks: say which with `webhook`" if webhooks else "has no webhook that can be called"
        return Compared(None, "", f"The workflow {why}.")
    if not wanted:
        paths = ", ".join(sorted(webhook.path for webhook in webhooks)[:5]) or "none"
        return Compared(named_webhook(terms), f"its workflow has no webhook `{terms.webhook}` but {paths}.")
    told = _fitting(terms, wanted)
    return told if is_active else told._replace(note="its workflow is not active: activate it in n8n.")


def _by_path(terms: WorkflowTerms, workflows: Mapping[str, JsonObject]) -> Compared:
    webhooks = [
        webhook for workflow in workflows.values() for webhook in webhooks_of(workflow) if webhook.path == terms.webhook
    ]
    if not webhooks:
        note = f"no active workflow has the webhook `{terms.webhook}`: activate it in n8n, or correct `webhook`."
        return Compared(named_webhook(terms), note)
    return _fitting(terms, webhooks)


def _fitting(terms: WorkflowTerms, webhooks: list[Webhook]) -> Compared:
    """The webhook among some at the right path whose method is right, too."""
    if not terms.webhook:
        return Compared(webhooks[0], _mode_note(terms, webhooks[0]))
    webhook = next((webhook for webhook in webhooks if webhook.method == terms.method), None)
    if webhook is None:
        note = f"its webhook takes {webhooks[0].method} and not {terms.method}: correct `method`."
        return Compared(named_webhook(terms), note)
    return Compared(webhook, _mode_note(terms, webhook))


def _mode_note(terms: WorkflowTerms, webhook: Webhook) -> str:
    if not terms.is_async and webhook.response_mode == "onReceived":
        return (
            "its webhook answers at once (onReceived), so that results only say that it was started: let it answer "
            "with its last node or a Respond node, or set `mode: async`."
        )
    return ""
