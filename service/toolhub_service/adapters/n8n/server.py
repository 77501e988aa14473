"""One n8n server, and calls of its workflows: each is one request to a production webhook.

n8n's API cannot start workflows, so one named by its id is called by the webhook that the API reports (api.py).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlencode

import orjson

from toolhub_service.adapters.callers import CallersOf
from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.api import ApiError, Found, N8nApi, NotFound
from toolhub_service.adapters.n8n.client import N8nClient, Reply
from toolhub_service.adapters.n8n.execution import Execution
from toolhub_service.adapters.n8n.kind import WITHOUT_BODY, N8nSource, N8nWorkflow
from toolhub_service.adapters.n8n.workflow import KEY_HEADER, Webhook, Workflow, webhooks_of
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import parse_url


@dataclass(frozen=True, slots=True)
class N8nTerms:
    """One server: its section of sources.yaml, with references resolved."""

    name: str
    """Name of the source."""
    url: str
    """Base URL, without a slash at its end."""
    entry: N8nSource
    api_key: str = field(default="", repr=False)
    headers: Headers = field(default=(), repr=False)
    """Sent to webhooks of discovered workflows."""
    workflow_headers: Mapping[str, Headers] = field(default_factory=dict, repr=False)
    """Sent to the configured workflows, by their names."""
    shown_as: str = ""
    """Shown instead of its URL; empty: the URL itself."""
    mask: Mask = field(default_factory=Mask)
    """Hides the source's own secrets in results, because a workflow may return its request."""

    @property
    def endpoint(self) -> str:
        return self.shown_as or shown_url(parse_url(self.url)).rstrip("/")


class N8nServer:
    """The clients and the workflows of one server; nothing is connected yet."""

    def __init__(
        self,
        terms: N8nTerms,
        resolver: Resolver,
        poller: Poller,
        trace: Callable[[], str] = str,
        callers: CallersOf | None = None,
    ) -> None:
        """`trace` returns the current W3C traceparent; empty when there is none. `callers`: where webhooks are called
        with their callers' own credentials.

        Raises ToolFailure, OSError and ValueError as N8nClient, ValueError for a path that leaves the webhook's URL.
        """
        self.terms = terms
        self.client = N8nClient(terms.url, terms.entry, resolver)
        api_url = f"{terms.url}{plain_path(terms.entry.api_path, 'api_path')}"
        self.api = N8nApi(self.client, api_url, terms.api_key) if terms.api_key else None
        self.webhook_url = f"{terms.url}{plain_path(terms.entry.webhook_path, 'webhook_path')}"
        self.poller = poller
        self.trace = trace
        self.callers = callers
        self.workflows = {
            name: self.workflow_of_entry(name, webhook_of_entry(entry)) for name, entry in terms.entry.workflows.items()
        }
        """By the tools' own names; a reading replaces them."""

    def workflow_of_entry(self, own_name: str, webhook: Webhook | None) -> Workflow:
        """Return the workflow that the operator has configured under that name."""
        return Workflow(self.terms.entry.workflows[own_name], self.terms.workflow_headers.get(own_name, ()), webhook)

    async def find_webhook(self, own_name: str, workflow: Workflow) -> Webhook | None:
        """Return the current webhook of a workflow named by its id; None when it has none, or several.

        Raises ApiError, NotFound.
        """
        if self.api is None:
            return None
        found = await self.api.workflow(workflow.entry.workflow_id)
        webhooks = webhooks_of(found)
        if len(webhooks) != 1 or found.get("active") is not True:
            return None
        if self.workflows.get(own_name) is not None:
            self.workflows[own_name] = replace(workflow, webhook=webhooks[0])
        return webhooks[0]


def plain_path(path: str, setting: str) -> str:
    """Return the path with a slash before it and none behind. Raises ValueError when it may leave the base URL."""
    words = [word for word in path.split("/") if word]
    if {".", ".."} & set(words) or any(char in path for char in "?#\\ %"):
        raise ValueError(f"its `{setting}` is not a plain path")
    return "".join(f"/{word}" for word in words)


def webhook_of_entry(entry: N8nWorkflow) -> Webhook | None:
    """Return the webhook that the operator has configured; None: none."""
    return Webhook(entry.method, entry.path, entry.workflow_id) if entry.path else None


# The key of a request to a webhook is made by the hub from principal, tool and the caller's key, so that two principals
# never share one and no text of a caller gets into a header. All attempts at a call have the same key.

_KEYS: Final = uuid.UUID("0a8c8a54-6b0b-4bb7-8a53-0c7b4b9d2f61")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was answered."""

    answer: Reply
    webhook: Webhook


def key_of(call: GrantedCall) -> str:
    """Return the key of a call that is answered at once."""
    scope = "\0".join((call.call.principal.id, call.spec.name, call.idempotency_key or call.call.call_id))
    return str(uuid.uuid5(_KEYS, scope))


async def webhook_of(server: N8nServer, workflow: Workflow, call: GrantedCall) -> Webhook:
    """Return the workflow's webhook. Raises ToolFailure when it cannot be determined now."""
    if workflow.webhook is not None:
        return workflow.webhook
    try:
        webhook = await server.find_webhook(call.spec.resource_id, workflow)
    except ApiError as error:
        raise failures.no_webhook(call, error.reason) from None
    except NotFound:
        raise failures.no_webhook(call, "n8n has no workflow with that id.") from None
    if webhook is None:
        raise failures.no_webhook(call, "The workflow is not active in n8n, or does not have exactly one webhook.")
    return webhook


# n8n itself runs a repeated key twice (2.8.4); only a workflow that checks the header runs once. So a request whose
# answer is lost is never sent again here, but looked up.


async def send(server: N8nServer, workflow: Workflow, call: GrantedCall, key: str, *, deadline_s: float) -> Sent:
    """Send once; and again only where the webhook has moved, as nothing has run then. Raises NoReply, ToolFailure."""
    callers = server.callers
    if callers is None:
        return await _send(server, workflow, call, key, deadline_s)
    credential = await callers.of(call)
    own = replace(workflow, headers=callers.merge_headers(workflow.headers, credential))
    sent = await _send(server, own, call, key, deadline_s)
    if credential is None or not failures.is_credential_refused(sent.answer):
        return sent
    # n8n checks a credential before anything runs.
    if (other := await callers.renew(call, credential)) is not None:
        own = replace(workflow, headers=callers.merge_headers(workflow.headers, other))
        sent = await _send(server, own, call, key, deadline_s)
    if failures.is_credential_refused(sent.answer):
        raise callers.refusal(call)
    return sent


async def _send(server: N8nServer, workflow: Workflow, call: GrantedCall, key: str, deadline_s: float) -> Sent:
    webhook = await webhook_of(server, workflow, call)
    answer = await _send_to(server, workflow, webhook, call, key, deadline_s)
    if workflow.entry.path or not workflow.entry.workflow_id or not failures.is_not_registered(answer):
        return Sent(answer, webhook)
    try:
        moved = await server.find_webhook(call.spec.resource_id, workflow)
    except (ApiError, NotFound):
        return Sent(answer, webhook)
    if moved is None or (moved.method, moved.path) == (webhook.method, webhook.path):
        return Sent(answer, webhook)
    return Sent(await _send_to(server, workflow, moved, call, key, deadline_s), moved)


async def _send_to(
    server: N8nServer, workflow: Workflow, webhook: Webhook, call: GrantedCall, key: str, deadline_s: float
) -> Reply:
    # Never `/webhook-test/`: it answers only while somebody listens in the editor.
    url, body = f"{server.webhook_url}/{webhook.path}", b""
    headers = [*workflow.headers, (KEY_HEADER, key)]
    if traceparent := server.trace():
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
    name = workflow.entry.idempotency_field
    if name:
        if name in args:
            raise failures.reserved_field(call, name)
        args = {**args, name: key}
    try:
        return orjson.dumps(args)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(args, ensure_ascii=False, separators=(",", ":")).encode()


def _query(call: GrantedCall) -> dict[str, str]:
    nested = [name for name, value in call.args.items() if isinstance(value, dict | list)]
    if nested:
        raise failures.needs_flat_arguments(call, nested)
    given = {name: value for name, value in call.args.items() if value is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def facts(
    server: N8nServer, webhook: Webhook | None, execution: Execution | None, execution_id: str = ""
) -> dict[str, str]:
    """Return the facts under the names that evidence and errors use; unknown ones are left out.

    The URL of the webhook is never among them: many webhooks are protected only by their secret URL.
    """
    known = {
        "source": server.terms.name,
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


def facts_of_found(server: N8nServer, webhook: Webhook | None, found: Found) -> dict[str, str]:
    """Return the facts of an execution that was found by its key."""
    more = {"looked_up": "true"} | ({"other_executions": str(found.others)} if found.others else {})
    return facts(server, webhook, found.execution) | more


def run_evidence(call: GrantedCall, known: dict[str, str], summary: str, **more: str) -> Evidence:
    ref = known.get("execution_id") or call.call.call_id
    return Evidence(EvidenceType.TOOL, ref, f"{call.spec.name} {summary}", attributes={**known, **more})
