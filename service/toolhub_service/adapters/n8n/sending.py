"""One request to a webhook: where it goes, what it carries, and under which key.

The key is the hub's own: made from principal, tool and the caller's key, so that two principals never meet in one and
nothing that a caller writes gets into a header. It is the same for every attempt at the same call.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import orjson

from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.api import Absent, ApiTrouble
from toolhub_service.adapters.n8n.client import Reply
from toolhub_service.adapters.n8n.server import N8nServer, Workflow
from toolhub_service.adapters.n8n.terms import WITHOUT_BODY
from toolhub_service.adapters.n8n.webhooks import Webhook
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.json import JsonObject, JsonValue

KEY_HEADER: Final = "x-idempotency-key"
_KEYS: Final = uuid.UUID("0a8c8a54-6b0b-4bb7-8a53-0c7b4b9d2f61")

Trace = Callable[[], str]
"""The W3C traceparent of what runs now; empty when there is none."""


def no_trace() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was answered."""

    answer: Reply
    webhook: Webhook


def key_of(call: GrantedCall) -> str:
    """Under which a call that is answered at once is sent."""
    scope = "\0".join((call.call.principal.id, call.spec.name, call.idempotency_key or call.call.call_id))
    return str(uuid.uuid5(_KEYS, scope))


async def webhook_of(server: N8nServer, workflow: Workflow, call: GrantedCall) -> Webhook:
    """Where the workflow is called. Raises ToolFailure when that cannot be known now."""
    if workflow.webhook is not None:
        return workflow.webhook
    try:
        webhook = await server.looked_up(call.spec.resource_id, workflow)
    except ApiTrouble as trouble:
        raise failures.no_webhook(call, trouble.reason) from None
    except Absent:
        raise failures.no_webhook(call, "n8n has no workflow of that id.") from None
    if webhook is None:
        raise failures.no_webhook(call, "The workflow is not active in n8n, or has not exactly one webhook.")
    return webhook


async def send(
    server: N8nServer, workflow: Workflow, call: GrantedCall, key: str, *, deadline_s: float, trace: Trace = no_trace
) -> Sent:
    """Once; and once more where the webhook has moved, for then nothing has run. Raises NoReply, ToolFailure."""
    webhook = await webhook_of(server, workflow, call)
    answer = await _send_to(server, workflow, webhook, call, key, deadline_s, trace)
    if workflow.terms.webhook or not workflow.terms.workflow_id or not failures.is_not_registered(answer):
        return Sent(answer, webhook)
    try:
        moved = await server.looked_up(call.spec.resource_id, workflow)
    except (ApiTrouble, Absent):
        return Sent(answer, webhook)
    if moved is None or (moved.method, moved.path) == (webhook.method, webhook.path):
        return Sent(answer, webhook)
    return Sent(await _send_to(server, workflow, moved, call, key, deadline_s, trace), moved)


async def _send_to(
    server: N8nServer,
    workflow: Workflow,
    webhook: Webhook,
    call: GrantedCall,
    key: str,
    deadline_s: float,
    trace: Trace,
) -> Reply:
    url, body = server.url_of(webhook), b""
    headers = [*workflow.terms.headers, (KEY_HEADER, key)]
    traceparent = trace()
    if traceparent:
        headers.append(("traceparent", traceparent))
    if webhook.method in WITHOUT_BODY:
        query = urlencode(_query(call))
        url = f"{url}?{query}" if query else url
    else:
        headers.append(("content-type", "application/json"))
        body = _body(workflow, call, key)
    return await server.client.send(webhook.method, url, tuple(headers), body, deadline_s=deadline_s)


def _body(workflow: Workflow, call: GrantedCall, key: str) -> bytes:
    args: JsonObject = call.args
    name = workflow.terms.idempotency_field
    if name:
        if name in args:
            raise failures.taken_field(call, name)
        args = {**args, name: key}
    return _written(args)


def _written(args: JsonObject) -> bytes:
    try:
        return orjson.dumps(args)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(args, ensure_ascii=False, separators=(",", ":")).encode()


def _query(call: GrantedCall) -> dict[str, str]:
    nested = [name for name, value in call.args.items() if isinstance(value, dict | list)]
    if nested:
        raise failures.nested(call, nested)
    return {name: _plain(value) for name, value in call.args.items() if value is not None}


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
