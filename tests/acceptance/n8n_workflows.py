"""Workflows that the acceptance run needs beside the recorded ones, as n8n's API takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
TAG = "for-agents"
CREDENTIAL = "hubCred000000001"
"""What the recorded workflow `hub-auth` is locked with."""


def workflow(name: str, nodes: Sequence[Json], links: Mapping[str, Sequence[Sequence[str]]]) -> Json:
    """`links`: by the name of a node, for each of its outputs the nodes that follow."""
    connections = {
        source: {"main": [[{"node": target, "type": "main", "index": 0} for target in output] for output in outputs]}
        for source, outputs in links.items()
    }
    return {"name": name, "nodes": list(nodes), "connections": connections, "settings": {"executionOrder": "v1"}}


def node(name: str, kind: str, version: float, /, **parameters: Any) -> Json:
    known = {"id": f"id-{name}", "name": name, "type": f"n8n-nodes-base.{kind}", "typeVersion": version}
    return {**known, "position": [0, 0], "parameters": parameters}


def webhook(path: str, mode: str, **parameters: Any) -> Json:
    shape = node("Webhook", "webhook", 2.1, httpMethod="POST", path=path, responseMode=mode, options={}, **parameters)
    return {**shape, "webhookId": path}


def code(name: str, text: str) -> Json:
    return node(name, "code", 2, jsCode=text)


def business() -> Json:
    """Status 200 whatever happens; what it has to say stands in the body."""
    script = "const b = $input.first().json.body; return [{json: b.paid ? {ok: true} : {ok: false, why: 'not paid'}}]"
    nodes = [webhook("own-business", "lastNode", responseData="firstEntryJson"), code("Judge", script)]
    return workflow("own business", nodes, {"Webhook": [["Judge"]]})


def failing_late() -> Json:
    """Answers 202 with its execution id, then fails."""
    nodes = [
        webhook("own-fails-late", "responseNode"),
        _accepted(),
        node("Wait", "wait", 1.1, amount=1, unit="seconds") | {"webhookId": "own-fails-late-wait"},
        node("Boom", "stopAndError", 1, errorMessage="boom after the answer"),
    ]
    return workflow("own failing late", nodes, {"Webhook": [["Accepted"]], "Accepted": [["Wait"]], "Wait": [["Boom"]]})


def accepting_late() -> Json:
    """Takes three seconds to say that it has been begun: time enough for its answer to be lost."""
    out = "return [{json: {echo: $('Webhook').first().json.body}}]"
    nodes = [
        webhook("own-accepts-late", "responseNode"),
        node("Wait", "wait", 1.1, amount=3, unit="seconds") | {"webhookId": "own-accepts-late-wait"},
        _accepted(),
        code("Out", out),
    ]
    links = {"Webhook": [["Wait"]], "Wait": [["Accepted"]], "Accepted": [["Out"]]}
    return workflow("own accepting late", nodes, links)


def slow() -> Json:
    """Takes three seconds, and answers with its last node."""
    script = "return [{json: {echo: $('Webhook').first().json.body}}]"
    nodes = [
        webhook("own-slow", "lastNode", responseData="firstEntryJson"),
        node("Wait", "wait", 1.1, amount=3, unit="seconds") | {"webhookId": "own-slow-wait"},
        code("Out", script),
    ]
    return workflow("own slow", nodes, {"Webhook": [["Wait"]], "Wait": [["Out"]]})


def replying() -> Json:
    """Locked, and answers with all that it was sent, what opens it included."""
    locked = webhook("own-telling", "lastNode", responseData="firstEntryJson", authentication="headerAuth")
    locked["credentials"] = {"httpHeaderAuth": {"id": CREDENTIAL, "name": "hub header"}}
    return workflow("own telling", [locked, node("Pass", "noOp", 1)], {"Webhook": [["Pass"]]})


def many() -> Json:
    """As async as the others, and ends with as many items as it was asked for."""
    makes = "return [...Array($('Webhook').first().json.body.count).keys()].map(n => ({json: {n}}))"
    nodes = [webhook("own-many", "responseNode"), _accepted(), code("Make", makes)]
    return workflow("own many", nodes, {"Webhook": [["Accepted"]], "Accepted": [["Make"]]})


def filing() -> Json:
    """As async as the others, and ends with two items that are files: one that n8n keeps, one that is in the item."""
    inline = "{data: {data: Buffer.from('inline').toString('base64'), mimeType: 'text/plain', fileName: 'b.txt'}}"
    nodes = [
        webhook("own-filing", "responseNode"),
        _accepted(),
        code("Make", "return [{json: {text: 'on disk'}}]"),
        node("File", "convertToFile", 1.1, operation="toText", sourceProperty="text", options={"fileName": "a.txt"}),
        code("Both", f"return [...$input.all(), {{json: {{}}, binary: {inline}}}]"),
    ]
    links = {"Webhook": [["Accepted"]], "Accepted": [["Make"]], "Make": [["File"]], "File": [["Both"]]}
    return workflow("own filing", nodes, links)


def deduplicating() -> Json:
    """Runs once for one idempotency key; the second time it answers 409."""
    key = "$json.headers['x-idempotency-key']"
    nodes = [
        webhook("own-once", "responseNode"),
        code(
            "Tag",
            f"$execution.customData.set('idem', {key.replace('$json', '$input.first().json')}); return $input.all()",
        ),
        node(
            "Once",
            "removeDuplicates",
            2,
            operation="removeItemsSeenInPreviousExecutions",
            dedupeValue=f"={{{{ {key} }}}}",
            options={"scope": "workflow", "historySize": 1_000},
        ),
        _respond("New", "{new: true, executionId: $execution.id}", 200),
        _respond("Known", "{duplicate: true, executionId: $execution.id}", 409),
    ]
    links = {"Webhook": [["Tag"]], "Tag": [["Once"]], "Once": [["New"], ["Known"]]}
    return workflow("own once", nodes, links)


def noted() -> Json:
    """To be found by its tag: what it does stands in a sticky note."""
    note = node("Note", "stickyNote", 1, content="Greets whoever is named in `name`.")
    greets = "return [{json: {greeting: 'hello ' + $input.first().json.body.name}}]"
    nodes = [webhook("own-noted", "lastNode", responseData="firstEntryJson"), code("Greet", greets), note]
    return workflow("own noted", nodes, {"Webhook": [["Greet"]]})


def own_workflows() -> list[Json]:
    return [
        business(),
        failing_late(),
        accepting_late(),
        slow(),
        replying(),
        many(),
        filing(),
        deduplicating(),
        noted(),
    ]


def _accepted() -> Json:
    return _respond("Accepted", "{executionId: $execution.id}", 202)


def _respond(name: str, body: str, status: int) -> Json:
    body = f"={{{{ JSON.stringify({body}) }}}}"
    options = {"responseCode": status}
    return node(name, "respondToWebhook", 1.4, respondWith="json", responseBody=body, options=options)
