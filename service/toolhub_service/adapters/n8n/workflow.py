"""Workflows as n8n's public API describes them: their webhooks, how these answer, and which are offered as tools.

A webhook's responseMode: `onReceived` answers at once, `lastNode` with the last node's result, `responseNode` when a
Respond node runs, which may be long before the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast, get_args

from toolhub_service.adapters.n8n.kind import Method, N8nDiscovery, N8nWorkflow
from toolhub_service.adapters.tool_names import OWN_NAME_MAX_CHARS
from toolhub_service.adapters.upstream import as_object, keep_text, shorten
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.headers import Headers

WEBHOOK: Final = "n8n-nodes-base.webhook"
RESPOND: Final = "n8n-nodes-base.respondToWebhook"
KEY_HEADER: Final = "x-idempotency-key"
"""Header with the key of a call, by which its execution is found again."""
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PATH: Final = re.compile(r"[A-Za-z0-9_~.-]+(?:/[A-Za-z0-9_~.-]+)*", re.ASCII)
_PATH_MAX_CHARS: Final = 512
_METHODS: Final = frozenset(get_args(Method))
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_ID_EXPRESSION: Final = "$execution.id"
_STICKY_NOTE: Final = "n8n-nodes-base.stickyNote"
_TEXT_MAX_BYTES: Final = 16 * 1024
_TAGS_MAX: Final = 50
_TAG_MAX_BYTES: Final = 256


def id_of(value: JsonValue) -> str:
    """Return a name that is safe in a URL; empty for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        value = str(value)
    return value if isinstance(value, str) and ID.fullmatch(value) else ""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Address of a workflow in production."""

    method: str
    path: str
    """Path below `/webhook/`."""
    workflow_id: str = ""
    version: str = ""
    """Version of the workflow, as n8n names it; empty: unknown."""
    response_mode: str = ""
    """Empty: unknown."""
    answers_nothing: bool = False
    """Whether it is configured to answer without a body."""
    names_execution: bool = False
    """Whether it answers before its end, with the execution's id."""
    authentication: str = ""
    """What n8n demands of callers; empty: unknown."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow that is a tool."""

    entry: N8nWorkflow
    headers: Headers = field(default=(), repr=False)
    """Headers of its calls besides the hub's own."""
    webhook: Webhook | None = None
    """None: named by its id, and not looked up yet."""

    @property
    def workflow_id(self) -> str:
        """Return the id; empty: unknown."""
        return (self.webhook.workflow_id if self.webhook else "") or self.entry.workflow_id


def is_path(path: str) -> bool:
    """Return whether it can be a webhook's path: plain words between slashes, none of them `.` or `..`."""
    words = path.split("/")
    return len(path) <= _PATH_MAX_CHARS and bool(_PATH.fullmatch(path)) and not {".", ".."} & set(words)


def published_version(workflow: JsonObject) -> JsonObject:
    """Return the published workflow, without unpublished edits."""
    # Version 2 has drafts: calls run the nodes of `activeVersion`, where there is one.
    active = as_object(workflow.get("activeVersion"))
    if active is None or not isinstance(active.get("nodes"), list):
        return workflow
    return {**workflow, "nodes": active["nodes"], "connections": active.get("connections")}


def webhooks_of(workflow: JsonObject) -> Sequence[Webhook]:
    """Return its callable webhooks; those that are disabled, or whose path has parameters, are left out."""
    return [webhook for node in nodes_of(workflow, WEBHOOK) if (webhook := _webhook(workflow, node)) is not None]


def nodes_of(workflow: JsonObject, kind: str) -> Iterator[JsonObject]:
    nodes = workflow.get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        fields = as_object(node)
        if fields is not None and fields.get("type") == kind and fields.get("disabled") is not True:
            yield fields


def _webhook(workflow: JsonObject, node: JsonObject) -> Webhook | None:
    parameters = as_object(node.get("parameters")) or {}
    options = as_object(parameters.get("options")) or {}
    method, path = parameters.get("httpMethod", "GET"), parameters.get("path")
    if not isinstance(method, str) or method not in _METHODS or not isinstance(path, str):
        return None
    path = path.strip("/")
    if not is_path(path):
        return None
    mode, demanded = parameters.get("responseMode", "onReceived"), parameters.get("authentication", "none")
    mode = mode if isinstance(mode, str) else ""
    return Webhook(
        method,
        path,
        id_of(workflow.get("id")),
        id_of(workflow.get("activeVersionId")) or id_of(workflow.get("versionId")),
        mode,
        answers_nothing=options.get("noResponseBody") is True or parameters.get("responseData") == "noData",
        names_execution=_names_execution(workflow, mode, options),
        authentication=demanded if isinstance(demanded, str) and _WORD.fullmatch(demanded) else "other",
    )


def _names_execution(workflow: JsonObject, mode: str, options: JsonObject) -> bool:
    if mode == "onReceived":
        return _ID_EXPRESSION in str(options.get("responseData", ""))
    return mode == "responseNode" and any(_responds_early(workflow, node) for node in nodes_of(workflow, RESPOND))


def _responds_early(workflow: JsonObject, respond: JsonObject) -> bool:
    """Return whether a Respond node names the execution, and something runs after it."""
    if _ID_EXPRESSION not in str(respond.get("parameters", ""))[:10_000]:
        return False
    name = respond.get("name")
    outputs = as_object((as_object(workflow.get("connections")) or {}).get(name if isinstance(name, str) else ""))
    main = (outputs or {}).get("main")
    return isinstance(main, list) and any(isinstance(output, list) and output for output in main)


@dataclass(frozen=True, slots=True)
class Discovered:
    """A workflow as n8n describes it, or as a pin has stored it."""

    name: str
    description: str
    tags: tuple[str, ...]
    webhook: Webhook
    is_async: bool

    def entry(self) -> N8nWorkflow:
        """Called only where it was found: one that has moved must be accepted again."""
        return N8nWorkflow(
            description=self.description,
            webhook=self.webhook.path,
            workflow_id=self.webhook.workflow_id,
            method=cast("Method", self.webhook.method),
            mode="async" if self.is_async else "sync",
        )

    def remote(self) -> JsonObject:
        """Return what callers rely on."""
        return {
            "name": self.name,
            "description": keep_text(self.description, _TEXT_MAX_BYTES),
            "tags": [keep_text(tag, _TAG_MAX_BYTES) for tag in self.tags],
            "workflowId": self.webhook.workflow_id,
            "webhook": {
                "method": self.webhook.method,
                "path": self.webhook.path,
                "responseMode": self.webhook.response_mode,
                "authentication": self.webhook.authentication,
            },
            "mode": "async" if self.is_async else "sync",
        }


def read_discovered(workflow: JsonObject, terms: N8nDiscovery) -> Discovered | str | None:
    """Return the workflow; None for one that should not be offered; a sentence for one that cannot be."""
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
        return f"The workflow {id_of(workflow.get('id'))} was left out: its number of webhooks is {count}, not 1."
    is_async = webhooks[0].names_execution if terms.mode == "auto" else terms.mode == "async"
    return Discovered(name, description_of(workflow), tags, webhooks[0], is_async)


def workflow_from_pin(remote: JsonObject) -> Discovered | None:
    """Return the workflow from a pin; None when that is not possible."""
    kept = as_object(remote.get("webhook")) or {}
    name, description, tags = remote.get("name"), remote.get("description"), remote.get("tags")
    method, path, mode, demanded = map(kept.get, ("method", "path", "responseMode", "authentication"))
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
    listed = [as_object(tag) or {} for tag in tags[:_TAGS_MAX]] if isinstance(tags, list) else []
    return tuple(name for tag in listed if isinstance(name := tag.get("name"), str))


def description_of(workflow: JsonObject) -> str:
    """Return its own description, else the note at its webhook, else its first sticky note."""
    notes: list[JsonValue] = [node.get("notes") for node in nodes_of(workflow, WEBHOOK)]
    stickies = [(as_object(node.get("parameters")) or {}).get("content") for node in nodes_of(workflow, _STICKY_NOTE)]
    texts = (text.strip() for text in (workflow.get("description"), *notes, *stickies) if isinstance(text, str))
    return shorten(next(filter(None, texts), ""), _TEXT_MAX_BYTES)
