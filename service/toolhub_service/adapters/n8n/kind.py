"""n8n as a kind of source: its section of sources.yaml, its rules, its options, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.adapters.caller_auth import NO_AUTH, SourceAuth, auth_values, check_auth
from toolhub_service.adapters.source_kind import SourceKind, SourceOption
from toolhub_service.domain.tool import ToolKind
from toolhub_service.sections.source_config import (
    ClientTls,
    Section,
    Source,
    SourceInvalid,
    ToolName,
    Value,
    check_web,
    named_values,
)

Pointer = Annotated[str, Meta(pattern=r"^(/([^~/]|~[01])*)*$")]
"""A JSON Pointer (RFC 6901)."""
Method = Literal["POST", "PUT", "PATCH", "GET", "DELETE"]
WITHOUT_BODY = frozenset({"GET", "DELETE"})
"""Methods whose arguments go into the query."""
WORKFLOWS_MAX = 256


class BusinessError(Section, frozen=True):
    """What in an answer of status 200 means that the workflow has not done what it was asked to."""

    at: Annotated[Pointer, Meta(description="JSON Pointer into the answer, such as `/ok`.")]
    equals: Annotated[
        Any, Meta(description="The value that means failure; left out: anything but null, false and empty.")
    ] = None
    message: Annotated[
        Pointer, Meta(description="JSON Pointer to the message for the caller; empty: a generic text.")
    ] = ""


class N8nWorkflow(Section, frozen=True):
    """One workflow as a tool: by its webhook, or by its id, when its webhook is looked up through n8n's API."""

    description: Annotated[str, Meta(description="For the model: what it does, and when to use it.")] = ""
    webhook: Annotated[
        str, Meta(description="Path of its production webhook, without `/webhook/`; empty: looked up by `workflow_id`.")
    ] = ""
    workflow_id: Annotated[
        str, Meta(description="Its id in n8n; with `api_key`, empty answers are looked up by it.")
    ] = ""
    method: Annotated[
        Method,
        Meta(description="HTTP method of its webhook; arguments are the body, of GET and DELETE the query."),
    ] = "POST"
    mode: Annotated[
        Literal["sync", "async"],
        Meta(description="sync: the answer is the result; async: it is an execution id (needs `api_key`), followed."),
    ] = "sync"
    execution_id: Annotated[
        Pointer,
        Meta(description="JSON Pointer to the execution id in the answer; the header x-execution-id counts too."),
    ] = "/executionId"
    input_schema: Annotated[
        dict[str, Any] | None,
        Meta(description="JSON Schema of the arguments; left out: any object, tagged `open-schema`."),
    ] = None
    output_schema: Annotated[dict[str, Any], Meta(description="JSON Schema of the result; empty: anything.")] = (
        msgspec.field(default_factory=dict)
    )
    version: Annotated[str, Meta(description="Semantic version of the tool.")] = "1.0.0"
    headers: Annotated[
        dict[str, Value],
        Meta(description="Sent with each call, in addition to the source's headers, which they override."),
    ] = msgspec.field(default_factory=dict)
    idempotency_field: Annotated[
        str,
        Meta(description="Top-level field of the body that gets the idempotency key, besides X-Idempotency-Key."),
    ] = ""
    derived_key: Annotated[
        bool, Meta(description="A call without a key gets one: the same call of the same task runs once.")
    ] = True
    deduplicates: Annotated[
        bool,
        Meta(description="true: the workflow itself runs once per key, so an uncertain start may be sent again."),
    ] = False
    fails_when: Annotated[
        tuple[BusinessError, ...],
        Meta(description="Answers of status 200 that mean failure; the first that matches counts."),
    ] = ()

    @property
    def path(self) -> str:
        """Path of its webhook, below `/webhook/`; empty: looked up by `workflow_id`."""
        return self.webhook.strip("/")

    @property
    def is_async(self) -> bool:
        """Return whether the answer names an execution that continues, instead of being the result."""
        return self.mode == "async"


class N8nDiscovery(Section, frozen=True):
    """Workflows that are offered without being named: the active ones with a webhook."""

    tags: Annotated[tuple[str, ...], Meta(description="Only workflows that have all of these tags in n8n.")] = ()
    mode: Annotated[
        Literal["auto", "sync", "async"],
        Meta(description="auto: async where the workflow answers before it ends and its answer names the execution."),
    ] = "auto"


class N8nSource(Source, frozen=True, tag="n8n"):
    """An n8n server whose workflows are tools."""

    url: Annotated[
        Value, Meta(description="http:// or https:// base of the server, a path before `/webhook` included.")
    ] = ""
    api_key: Annotated[
        Value,
        Meta(
            description="API key of n8n's public API, preferably a reference; needed to follow, look up, "
            "stop and discover executions."
        ),
    ] = ""
    headers: Annotated[dict[str, Value], Meta(description="Sent to each webhook, such as its header auth.")] = (
        msgspec.field(default_factory=dict)
    )
    auth: Annotated[SourceAuth, Meta(description="Whose credentials webhooks are called with.")] = NO_AUTH
    workflows: Annotated[
        dict[ToolName, N8nWorkflow], Meta(description="Tools by their names.", max_length=WORKFLOWS_MAX)
    ] = msgspec.field(default_factory=dict)
    discover: Annotated[
        N8nDiscovery | None, Meta(description="Offer active webhook workflows automatically; `{}` for all of them.")
    ] = None
    trust: Annotated[
        Literal["always", "first-use", "approval"],
        Meta(description="When a discovered workflow may be called; those under `workflows` always may."),
    ] = "first-use"
    api_path: Annotated[str, Meta(description="Path of the public API.")] = "/api/v1"
    webhook_path: Annotated[str, Meta(description="Path of production webhooks (N8N_ENDPOINT_WEBHOOK).")] = "/webhook"
    tls: Annotated[ClientTls, Meta(description="Certificates.")] = ClientTls()
    connect_timeout_s: Annotated[float, Meta(description="Seconds to connect.", gt=0, le=300)] = 10.0
    max_response_bytes: Annotated[int, Meta(description="Largest answer read.", ge=1024)] = 8 * 1024 * 1024


def _check_source(place: str, source: N8nSource) -> None:
    if not source.url:
        raise SourceInvalid(f"{place}.url: must not be empty")
    check_web(f"{place}.url", source.url)
    check_auth(f"{place}.auth", source.auth)
    if not source.workflows and source.discover is None:
        raise SourceInvalid(f"{place}: needs `workflows`, or `discover: {{}}` to offer every active webhook workflow")
    if source.discover is not None and not source.api_key:
        raise SourceInvalid(f"{place}.discover: requires `api_key`, because workflows are found through the public API")
    for name, workflow in source.workflows.items():
        _check_workflow(f"{place}.workflows.{name}", workflow, has_key=bool(source.api_key))


def _check_workflow(place: str, workflow: N8nWorkflow, *, has_key: bool) -> None:
    if not workflow.webhook and not workflow.workflow_id:
        raise SourceInvalid(f"{place}: needs `webhook`, or `workflow_id` to have its webhook looked up")
    if not has_key and not workflow.webhook:
        raise SourceInvalid(f"{place}.workflow_id: without `webhook` it needs the source's `api_key`")
    if not has_key and workflow.mode == "async":
        raise SourceInvalid(f"{place}.mode: async needs the source's `api_key`, by which executions are followed")
    if "://" in workflow.webhook or ".." in workflow.webhook.split("/"):
        raise SourceInvalid(f"{place}.webhook: must be a path below `/webhook/`, such as `send-message`")
    if workflow.idempotency_field and workflow.method in WITHOUT_BODY:
        raise SourceInvalid(f"{place}.idempotency_field: a {workflow.method} has no body")


def _values(source: N8nSource) -> Iterator[tuple[str, Value]]:
    yield "url", source.url
    yield from named_values("headers", source.headers)
    yield "api_key", source.api_key
    yield from auth_values(source.auth)
    for name, workflow in source.workflows.items():
        yield from named_values(f"workflows.{name}.headers", workflow.headers)


def _entry_of(given: Mapping[str, Any]) -> dict[str, Any]:
    if not any(given[name] for name in ("webhooks", "jobs", "discover", "tags")):
        raise SourceInvalid("Give workflows with --webhook NAME=PATH or --job NAME=PATH, or use --discover.")
    entry: dict[str, Any] = {"api_key": given["api_key"]} if given["api_key"] else {}
    workflows = {name: {"webhook": path.strip("/")} for name, path in given["webhooks"].items()}
    workflows |= {name: {"webhook": path.strip("/"), "mode": "async"} for name, path in given["jobs"].items()}
    if workflows:
        entry["workflows"] = workflows
    if given["discover"] or given["tags"]:
        entry["discover"] = {"tags": list(given["tags"])} if given["tags"] else {}
    return entry


N8N = SourceKind(
    ToolKind.N8N,
    N8nSource,
    {
        N8nWorkflow: "workflows: one workflow of n8n",
        BusinessError: "fails_when",
        N8nDiscovery: "discover",
    },
    _check_source,
    "toolhub_service.adapters.n8n.adapter:N8nOpener",
    values=_values,
    preview="toolhub_service.adapters.n8n.definitions:preview",
    options=(
        SourceOption("api_key", "--api-key", "API key of n8n's public API.", "VALUE", is_secret=True),
        SourceOption(
            "webhooks", "--webhook", "Offer this n8n webhook as a tool; repeatable.", "NAME=PATH", is_pairs=True
        ),
        SourceOption("jobs", "--job", "Offer this n8n webhook as a job; repeatable.", "NAME=PATH", is_pairs=True),
        SourceOption("discover", "--discover", "Offer every active n8n workflow that has a webhook.", is_switch=True),
        SourceOption("tags", "--tag", "Offer workflows with this tag; repeatable, all must match.", is_many=True),
    ),
    entry_of=_entry_of,
    registering="An n8n tool is a webhook that the hub calls as its source: name it under `workflows` of a source of "
    "kind n8n in sources.yaml, or let `discover` find it",
)
