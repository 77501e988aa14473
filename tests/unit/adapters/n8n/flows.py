"""Workflows as an editor of n8n would save them, in a few words."""

from __future__ import annotations

import itertools
from typing import Any

Node = dict[str, Any]
Flow = dict[str, Any]


def flow(name: str, mode: str, *chain: Node, method: str = "POST", path: str = "", **more: Any) -> Flow:
    """A webhook `/webhook/<path or name>` and the nodes after it, in a row. `responseData` is the webhook's own."""
    parameters = {"httpMethod": method, "path": path or name, "responseMode": mode, **more.pop("webhook", {})}
    nodes = [{"name": "Webhook", "type": "n8n-nodes-base.webhook", "parameters": parameters}, *chain]
    wires = {
        one["name"]: {"main": [[{"node": other["name"], "type": "main", "index": 0}]]}
        for one, other in itertools.pairwise(nodes)
    }
    whole = [{"id": f"{name}-{at}", "typeVersion": 1, "position": [0, 0], **node} for at, node in enumerate(nodes)]
    return {"id": name, "name": name, "nodes": whole, "connections": wires, "settings": {}, **more}


def wait(seconds: int) -> Node:
    return {"name": "Wait", "type": "n8n-nodes-base.wait", "parameters": {"amount": seconds, "unit": "seconds"}}


def code(name: str, script: str = "return []") -> Node:
    return {"name": name, "type": "n8n-nodes-base.code", "parameters": {"jsCode": script}}


def sets(expression: str) -> Node:
    parameters = {"mode": "raw", "jsonOutput": f"={{{{ JSON.stringify({expression}) }}}}"}
    return {"name": "Out", "type": "n8n-nodes-base.set", "parameters": parameters}


def responds(body: str = "{}", status: int = 200, kind: str = "json") -> Node:
    parameters = {"respondWith": kind, "responseBody": body, "options": {"responseCode": status}}
    return {"name": "Respond", "type": "n8n-nodes-base.respondToWebhook", "parameters": parameters}


def stops(message: str) -> Node:
    return {"name": "Boom", "type": "n8n-nodes-base.stopAndError", "parameters": {"errorMessage": message}}


ECHO = sets('{ echo: $("Webhook").first().json.body }')
NAMES_ITSELF = responds("={{ JSON.stringify({ executionId: $execution.id }) }}", 202)
SEEN = {
    "name": "Dedup",
    "type": "n8n-nodes-base.removeDuplicates",
    "parameters": {
        "operation": "removeItemsSeenInPreviousExecutions",
        "dedupeValue": "={{ $json.headers['x-idempotency-key'] }}",
        "options": {"scope": "workflow", "historySize": 10000},
    },
}

FLOWS = [
    flow("echo", "lastNode", ECHO),
    flow("slow", "lastNode", wait(5), ECHO),
    flow("long", "responseNode", NAMES_ITSELF, wait(5), ECHO),
    flow("patient", "responseNode", NAMES_ITSELF, wait(70), ECHO),
    flow("breaks-late", "responseNode", NAMES_ITSELF, wait(5), stops("boom at /opt/n8n/secret.ts:1:2 for good")),
    flow("breaks", "lastNode", stops("boom from workflow")),
    flow("breaks-unseen", "onReceived", stops("boom from workflow")),
    flow("breaks-before", "responseNode", stops("boom before the answer"), responds()),
    flow("fires", "onReceived", wait(5), ECHO),
    flow("silent", "responseNode", responds(kind="noData")),
    flow("asks", "lastNode", sets('{ query: $("Webhook").first().json.query }'), method="GET"),
]


def dedupes(name: str, mode: str = "responseNode") -> Flow:
    """Runs once for one key: what is new answers 202 with its execution and goes on, what is not answers 409."""
    made = flow(name, mode, SEEN, NAMES_ITSELF, wait(5), ECHO)
    again = {
        **responds("={{ JSON.stringify({ duplicate: true, executionId: $execution.id }) }}", 409),
        "name": "Again",
        "id": f"{name}-again",
        "typeVersion": 1,
        "position": [0, 0],
    }
    made["nodes"].append(again)
    made["connections"]["Dedup"]["main"].append([{"node": "Again", "type": "main", "index": 0}])
    return made
