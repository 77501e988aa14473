"""Workflows that are offered without being named: what n8n's API tells of one, as far as a tool is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from toolhub_service.adapters.n8n.executions import WEBHOOK, id_of
from toolhub_service.adapters.n8n.terms import DiscoveryTerms, WorkflowTerms
from toolhub_service.adapters.n8n.webhooks import Webhook, nodes_of, webhooks_of
from toolhub_service.adapters.shortening import as_object, kept_text, shortened
from toolhub_service.adapters.tool_names import OWN_NAME_MAX_CHARS
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.headers import Headers

_TEXT_MAX_BYTES: Final = 16 * 1024
_TAGS_MAX: Final = 50
_TAG_MAX_BYTES: Final = 256
_OF_WEBHOOK: Final = ("method", "path", "responseMode", "authentication")
_STICKY_NOTE: Final = "n8n-nodes-base.stickyNote"


@dataclass(frozen=True, slots=True)
class Discovered:
    """A workflow as n8n tells of it, or as a pin has kept it."""

    name: str
    description: str
    tags: tuple[str, ...]
    webhook: Webhook
    is_async: bool

    def workflow(self, headers: Headers) -> WorkflowTerms:
        """Called where it was found and nowhere else: one that has moved is another until it is accepted again."""
        return WorkflowTerms(
            description=self.description,
            webhook=self.webhook.path,
            workflow_id=self.webhook.workflow_id,
            method=self.webhook.method,
            is_async=self.is_async,
            headers=headers,
        )

    def remote(self) -> JsonObject:
        """What callers rely on."""
        return {
            "name": self.name,
            "description": kept_text(self.description, _TEXT_MAX_BYTES),
            "tags": [kept_text(tag, _TAG_MAX_BYTES) for tag in self.tags],
            "workflowId": self.webhook.workflow_id,
            "webhook": {
                "method": self.webhook.method,
                "path": self.webhook.path,
                "responseMode": self.webhook.response_mode,
                "authentication": self.webhook.authentication,
            },
            "mode": "async" if self.is_async else "sync",
        }


def discovered(workflow: JsonObject, terms: DiscoveryTerms) -> Discovered | str | None:
    """None for one that is not meant to be offered; a sentence for one that cannot be."""
    name, tags = workflow.get("name"), tags_of(workflow)
    if workflow.get("active") is not True or not set(terms.tags) <= set(tags):
        return None
    if not any(nodes_of(workflow, WEBHOOK)) or not id_of(workflow.get("id")):
        return None
    if not isinstance(name, str) or not name.strip() or len(name) > OWN_NAME_MAX_CHARS:
        return f"The workflow {id_of(workflow.get('id'))} was left out: its name is empty or too long."
    webhooks = webhooks_of(workflow)
    if len(webhooks) != 1:
        count = "none that can be called" if not webhooks else "several"
        return f"The workflow {id_of(workflow.get('id'))} was left out: of webhooks it has {count}."
    is_async = webhooks[0].names_execution if terms.mode == "auto" else terms.mode == "async"
    return Discovered(name, description_of(workflow), tags, webhooks[0], is_async)


def restored(remote: JsonObject) -> Discovered | None:
    """From what a pin has kept; None when that cannot be."""
    kept = as_object(remote.get("webhook")) or {}
    name, description, tags = remote.get("name"), remote.get("description"), remote.get("tags")
    method, path, mode, demanded = (kept.get(part) for part in _OF_WEBHOOK)
    if not (isinstance(name, str) and isinstance(method, str) and isinstance(path, str)):
        return None
    webhook = Webhook(
        method,
        path,
        id_of(remote.get("workflowId")),
        response_mode=mode if isinstance(mode, str) else "",
        authentication=demanded if isinstance(demanded, str) else "",
    )
    words = description if isinstance(description, str) else ""
    known = tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list | tuple) else ()
    return Discovered(name, words, known, webhook, remote.get("mode") == "async")


def tags_of(workflow: JsonObject) -> tuple[str, ...]:
    tags = workflow.get("tags")
    told = [as_object(tag) or {} for tag in tags[:_TAGS_MAX]] if isinstance(tags, list) else []
    return tuple(name for tag in told if isinstance(name := tag.get("name"), str))


def description_of(workflow: JsonObject) -> str:
    """Its own description, else the note at its webhook, else its first sticky note."""
    notes: list[JsonValue] = [node.get("notes") for node in nodes_of(workflow, WEBHOOK)]
    stickies = [(as_object(node.get("parameters")) or {}).get("content") for node in nodes_of(workflow, _STICKY_NOTE)]
    return shortened(next(_texts([workflow.get("description"), *notes, *stickies]), ""), _TEXT_MAX_BYTES)


def _texts(values: Sequence[JsonValue]) -> Iterator[str]:
    return (value.strip() for value in values if isinstance(value, str) and value.strip())
