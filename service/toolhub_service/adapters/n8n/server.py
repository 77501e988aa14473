"""One n8n server as its source and the adapter share it: its clients, its workflows, and requests to their webhooks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

import orjson

from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.api import ApiError, Found, Lookup, N8nApi, NotFound
from toolhub_service.adapters.n8n.client import WITHOUT_BODY, N8nClient, N8nTerms, Reply, WorkflowTerms
from toolhub_service.adapters.n8n.resources import Execution, Webhook, webhooks_of
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.masking import Mask
from toolhub_service.guards.urls import parse_url, shown_url

NO_MASK: Final = Mask()


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow that is a tool."""

    terms: WorkflowTerms
    webhook: Webhook | None = None
    """None: named by its id, and not looked up yet."""


class N8nServer:
    """The clients and the workflows of one server; nothing is connected yet."""

    def __init__(self, terms: N8nTerms, resolver: Resolver, poller: Poller, mask: Mask = NO_MASK) -> None:
        """`mask` hides the source's own secrets in results: a workflow that hands its request on hands them on, too.

        Raises ToolFailure, OSError and ValueError as N8nClient."""
        self.terms = terms
        self.client = N8nClient(terms, resolver)
        self.api = N8nApi(self.client, terms) if terms.api_key else None
        self.lookup = Lookup(self.api) if self.api is not None else None
        self.poller = poller
        self.mask = mask
        self.workflows: dict[str, Workflow] = {
            name: Workflow(workflow, named_webhook(workflow)) for name, workflow in terms.workflows.items()
        }
        """By the tools' own names; a reading puts another one in its place."""

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def endpoint(self) -> str:
        return self.terms.shown_as or shown_url(parse_url(self.terms.url)).rstrip("/")

    def url_of(self, webhook: Webhook) -> str:
        return f"{self.terms.url}{self.terms.webhook_path}/{webhook.path}"

    async def find_webhook(self, own_name: str, workflow: Workflow) -> Webhook | None:
        """The webhook of a workflow named by its id, as it is now; None when it has none, or several.

        Raises ApiTrouble, Absent.
        """
        if self.api is None:
            return None
        told = await self.api.workflow(workflow.terms.workflow_id)
        webhooks = webhooks_of(told)
        if len(webhooks) != 1 or told.get("active") is not True:
            return None
        if self.workflows.get(own_name) is not None:
            self.workflows[own_name] = replace(workflow, webhook=webhooks[0])
        return webhooks[0]


def named_webhook(workflow: WorkflowTerms) -> Webhook | None:
    """Where the operator says that it is."""
    return Webhook(workflow.method, workflow.webhook, workflow.workflow_id) if workflow.webhook else None


# The key of a request to a webhook is the hub's own: made from principal, tool and the caller's key, so that two
# principals never share one and nothing that a caller writes gets into a header. Every attempt at a call has the same.

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
        webhook = await server.find_webhook(call.spec.resource_id, workflow)
    except ApiError as error:
        raise failures.no_webhook(call, error.reason) from None
    except NotFound:
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
        moved = await server.find_webhook(call.spec.resource_id, workflow)
    except (ApiError, NotFound):
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
    try:
        return orjson.dumps(args)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(args, ensure_ascii=False, separators=(",", ":")).encode()


def _query(call: GrantedCall) -> dict[str, str]:
    nested = [name for name, value in call.args.items() if isinstance(value, dict | list)]
    if nested:
        raise failures.nested(call, nested)
    given = {name: value for name, value in call.args.items() if value is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def facts(
    server: N8nServer, webhook: Webhook | None, execution: Execution | None, execution_id: str = ""
) -> dict[str, str]:
    """Under the names that evidence and errors use; what is not known is left out.

    Never the URL of the webhook: many have no other protection than that nobody knows it.
    """
    known = {
        "source": server.name,
        "workflow_id": webhook.workflow_id if webhook else "",
        "workflow_version": webhook.version if webhook else "",
        "execution_id": execution_id,
    }
    if execution is not None:
        known |= {
            "execution_id": execution.id,
            "workflow_id": execution.workflow_id or known["workflow_id"],
            "workflow_version": execution.workflow_version or known["workflow_version"],
            "execution_status": execution.status,
            "duration_ms": "" if execution.duration_ms is None else str(execution.duration_ms),
        }
    return {name: value for name, value in known.items() if value}


def found_facts(server: N8nServer, webhook: Webhook | None, found: Found) -> dict[str, str]:
    """The facts of an execution that was looked up by its key."""
    more = {"looked_up": "true"} | ({"other_executions": str(found.others)} if found.others else {})
    return facts(server, webhook, found.execution) | more


def run_evidence(call: GrantedCall, known: dict[str, str], summary: str, **more: str) -> Evidence:
    ref = known.get("execution_id") or call.call.call_id
    return Evidence(EvidenceType.TOOL, ref, f"{call.spec.name} {summary}", attributes={**known, **more})
