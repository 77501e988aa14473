"""Where a workflow is called: the production webhook, as the operator named it or as n8n's API tells of it.

Version 2 knows drafts: what answers calls are the nodes of `activeVersion`, where there is one.

    responseMode   onReceived    answers at once; how the workflow ends is not told
                   lastNode      answers with what the last node gave
                   responseNode  answers when a Respond node runs, which may be long before the end
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from toolhub_service.adapters.n8n.executions import RESPOND, WEBHOOK, id_of
from toolhub_service.adapters.upstream import as_object
from toolhub_service.domain.json import JsonObject, JsonValue

_PATH: Final = re.compile(r"[A-Za-z0-9_~.-]+(?:/[A-Za-z0-9_~.-]+)*", re.ASCII)
_PATH_MAX_CHARS: Final = 512
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_ID_EXPRESSION: Final = "$execution.id"


@dataclass(frozen=True, slots=True)
class Webhook:
    method: str
    path: str
    """Below `/webhook/`."""
    workflow_id: str = ""
    version: str = ""
    """Of the workflow, as n8n names it; empty: not known."""
    response_mode: str = ""
    """Empty: not known."""
    answers_nothing: bool = False
    """Whether an empty answer is what it is set to give."""
    names_execution: bool = False
    """Whether it answers before its end, with the execution's id."""
    authentication: str = ""
    """What n8n demands of callers; empty: not known."""


def is_path(path: str) -> bool:
    """Whether it can be a webhook's path: plain words between slashes, none of them `.` or `..`."""
    words = path.split("/")
    return len(path) <= _PATH_MAX_CHARS and bool(_PATH.fullmatch(path)) and not {".", ".."} & set(words)


def published(workflow: JsonObject) -> JsonObject:
    """The workflow as it answers calls: not as somebody is just editing it."""
    active = as_object(workflow.get("activeVersion"))
    if active is None or not isinstance(active.get("nodes"), list):
        return workflow
    return {**workflow, "nodes": active["nodes"], "connections": active.get("connections")}


def webhooks_of(workflow: JsonObject) -> Sequence[Webhook]:
    """Its webhooks that can be called; those that are switched off, or whose path has parameters, cannot."""
    version = id_of(workflow.get("activeVersionId")) or id_of(workflow.get("versionId"))
    own_id = id_of(workflow.get("id"))
    return [
        webhook
        for node in nodes_of(workflow, WEBHOOK)
        if (webhook := _webhook(workflow, node, own_id, version)) is not None
    ]


def nodes_of(workflow: JsonObject, kind: str) -> Iterator[JsonObject]:
    nodes = workflow.get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        told = as_object(node)
        if told is not None and told.get("type") == kind and told.get("disabled") is not True:
            yield told


def _webhook(workflow: JsonObject, node: JsonObject, own_id: str, version: str) -> Webhook | None:
    said = as_object(node.get("parameters")) or {}
    options = as_object(said.get("options")) or {}
    method, path = said.get("httpMethod", "GET"), said.get("path")
    if not isinstance(method, str) or method not in _METHODS or not isinstance(path, str):
        return None
    path = path.strip("/")
    if not is_path(path):
        return None
    mode, demanded = said.get("responseMode", "onReceived"), said.get("authentication", "none")
    mode = mode if isinstance(mode, str) else ""
    return Webhook(
        method,
        path,
        own_id,
        version,
        mode,
        answers_nothing=options.get("noResponseBody") is True or said.get("responseData") == "noData",
        names_execution=_names_execution(workflow, mode, options),
        authentication=demanded if isinstance(demanded, str) and _WORD.fullmatch(demanded) else "other",
    )


def _names_execution(workflow: JsonObject, mode: str, options: JsonObject) -> bool:
    if mode == "onReceived":
        return _ID_EXPRESSION in str(options.get("responseData", ""))
    return mode == "responseNode" and any(_goes_on(workflow, node) for node in nodes_of(workflow, RESPOND))


def _goes_on(workflow: JsonObject, respond: JsonObject) -> bool:
    """Whether a Respond node names the execution, and something runs after it."""
    if _ID_EXPRESSION not in str(respond.get("parameters", ""))[:10_000]:
        return False
    name = respond.get("name")
    outputs = as_object((as_object(workflow.get("connections")) or {}).get(name if isinstance(name, str) else ""))
    return outputs is not None and _leads_on(outputs.get("main"))


def _leads_on(outputs: JsonValue) -> bool:
    return isinstance(outputs, list) and any(isinstance(output, list) and output for output in outputs)
