"""`/webhook/<path>` and `/webhook-test/<path>`: how n8n is called, in each of its response modes.

onReceived answers at once (`responseData` as text/html, whatever it holds), lastNode with the first item of the last
node, responseNode with what the Respond node says; see the table of the package for what goes wrong.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from tests.fakes.n8n.answers import HTML, Answer, json_answer, problem
from tests.fakes.n8n.executions import Execution
from tests.fakes.n8n.expressions import resolved, stringify
from tests.fakes.n8n.workflows import Workflow
from tests.fakes.n8n.world import RecordedRequest, ServerState

_LIVE = (
    "LiveWebhooks.findWebhook (~/n8n/src/webhooks/live-webhooks.ts:193:10)",
    "LiveWebhooks.executeWebhook (~/n8n/src/webhooks/live-webhooks.ts:83:19)",
    "WebhookRequestHandler.handleRequest (~/n8n/src/webhooks/webhook-request-handler.ts:65:21)",
    "~/n8n/src/webhooks/webhook-request-handler.ts:253:3",
)
_TEST = (
    "TestWebhooks.getWebhookMethods (~/n8n/src/webhooks/test-webhooks.ts:240:37)",
    "TestWebhooks.executeWebhook (~/n8n/src/webhooks/test-webhooks.ts:91:22)",
    *_LIVE[2:],
)
_PARSING = (
    "parseBody (~/n8n/src/middlewares/body-parser.ts:76:10)",
    "processTicksAndRejections (node:internal/process/task_queues:95:5)",
    "parseRequestBody (~/n8n/src/webhooks/webhook-helpers.ts:1017:5)",
)
_ACTIVE_HINT = (
    "The workflow must be active for a production URL to run successfully. You can activate the workflow using the "
    "toggle in the top-right of the editor. Note that unlike test URL calls, production URL calls aren't shown on the "
    "canvas (only in the executions list)"
)
_TEST_HINT = (
    "Click the 'Execute workflow' button on the canvas, then try again. "
    "(In test mode, the webhook only works for one call after you click this button)"
)


class Webhooks:
    def __init__(self, world: ServerState) -> None:
        self._world = world

    async def answer(self, asked: RecordedRequest) -> Answer:
        if asked.path.startswith("/webhook-test/"):
            path = asked.path.removeprefix("/webhook-test/")
            return problem(404, f'The requested webhook "{path}" is not registered.', *_TEST, hint=_TEST_HINT)
        found = self._registered(asked.path.removeprefix("/webhook/"))
        node = found.get(asked.method)
        if node is None:
            return _unregistered(asked, list(found))
        try:
            body = _parsed(asked)
        except ValueError:
            hint = "Expected property name or '}' in JSON at position 1"
            return problem(422, "Failed to parse request body", *_PARSING, hint=hint)
        workflow, webhook = node
        if not self._is_allowed(webhook, asked):
            return Answer(403, b"Authorization data is wrong!", content_type=None)
        return await self._called(workflow, webhook, asked, body)

    def _registered(self, path: str) -> dict[str, tuple[Workflow, dict[str, Any]]]:
        """By method."""
        return {
            node["parameters"].get("httpMethod", "GET"): (workflow, node)
            for workflow in self._world.workflows.values()
            if workflow.active
            for node in workflow.webhooks
            if node["parameters"].get("path") == path
        }

    def _is_allowed(self, webhook: dict[str, Any], asked: RecordedRequest) -> bool:
        if webhook["parameters"].get("authentication", "none") == "none":
            return True
        known = self._world.credentials.get(webhook.get("credentials", {}).get("httpHeaderAuth", {}).get("id", ""))
        return known is not None and asked.headers.get(known[0].lower()) == known[1]

    async def _called(self, workflow: Workflow, webhook: dict[str, Any], asked: RecordedRequest, body: Any) -> Answer:
        item = {
            "json": {
                "headers": dict(asked.headers),
                "params": {},
                "query": dict(asked.query),
                "body": body,
                "webhookUrl": self._world.url + asked.path,
                "executionMode": "production",
            },
            "pairedItem": {"item": 0},
        }
        execution = self._world.engine.begin(workflow, webhook, item)
        if webhook["parameters"].get("responseMode", "onReceived") == "onReceived":
            return _received(webhook, execution)
        return await execution.answer


def _received(webhook: dict[str, Any], execution: Execution) -> Answer:
    """The answer before the work."""
    response = webhook["parameters"].get("options", {}).get("responseData")
    if not response:
        return json_answer({"message": "Workflow was started"})
    names = {"$execution": {"id": execution.id}, "JSON": {"stringify": stringify}}
    return Answer(200, str(resolved(response, names)).encode(), HTML)


def _unregistered(asked: RecordedRequest, methods: list[str]) -> Answer:
    path = asked.path.removeprefix("/webhook/")
    if methods:
        other = f"Did you mean to make a {' or '.join(methods)} request?"
        return problem(404, f"This webhook is not registered for {asked.method} requests. {other}", *_LIVE)
    text = f'The requested webhook "{asked.method} {path}" is not registered.'
    return problem(404, text, *_LIVE, hint=_ACTIVE_HINT)


def _parsed(asked: RecordedRequest) -> Any:
    """The body as `$json.body` holds it: JSON, a form's fields, text, or {} where there is none.

    Raises:
        ValueError: it says that it is JSON and is not.
    """
    kind = asked.headers.get("content-type", "").partition(";")[0]
    if not asked.body:
        return {}
    if kind == "application/json":
        return json.loads(asked.body)
    text = asked.body.decode()
    return dict(parse_qsl(text)) if kind == "application/x-www-form-urlencoded" else text
