"""Entries of sources.yaml whose tools are workflows of another system: n8n and ComfyUI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.settings.document import Section
from toolhub_service.settings.source_terms import ClientTls, Source, Value

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
Pointer = Annotated[str, Meta(pattern=r"^(/([^~/]|~[01])*)*$")]
"""A JSON Pointer (RFC 6901)."""
WORKFLOWS_MAX = 256


class BusinessError(Section, frozen=True):
    """What in an answer of status 200 means that the workflow has not done what it was asked to."""

    at: Annotated[Pointer, Meta(description="JSON Pointer into the answer, such as `/ok`.")]
    equals: Annotated[
        Any, Meta(description="The value there that means failure; left out: anything but null, false and empty.")
    ] = None
    message: Annotated[Pointer, Meta(description="JSON Pointer to what the caller is told; empty: a general text.")] = (
        ""
    )


class N8nWorkflow(Section, frozen=True):
    """One workflow as a tool: by its webhook, or by its id, when its webhook is looked up through n8n's API."""

    description: Annotated[str, Meta(description="For the model: what it does, and when to use it.")] = ""
    webhook: Annotated[
        str, Meta(description="Path of its production webhook, without `/webhook/`; empty: looked up by `workflow_id`.")
    ] = ""
    workflow_id: Annotated[
        str, Meta(description="Its id in n8n; with `api_key`, answers that say nothing are looked up by it.")
    ] = ""
    method: Annotated[
        Literal["POST", "PUT", "PATCH", "GET", "DELETE"],
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
        dict[str, Value], Meta(description="Sent with each call of it, besides the source's; they win.")
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
        Meta(description="true: the workflow itself runs once for one key, so a start in doubt may be sent again."),
    ] = False
    fails_when: Annotated[
        tuple[BusinessError, ...],
        Meta(description="Answers of status 200 that mean failure; the first that matches counts."),
    ] = ()


class N8nDiscovery(Section, frozen=True):
    """Workflows that are offered without being named: the active ones with a webhook."""

    tags: Annotated[tuple[str, ...], Meta(description="Only workflows that bear all of these tags in n8n.")] = ()
    mode: Annotated[
        Literal["auto", "sync", "async"],
        Meta(
            description="auto: async where the workflow answers before it has ended and its answer names the execution."
        ),
    ] = "auto"


class N8nSource(Source, frozen=True, tag="n8n"):
    """An n8n server whose workflows are tools."""

    url: Annotated[
        Value, Meta(description="http:// or https:// base of the server, a path before `/webhook` included.")
    ] = ""
    api_key: Annotated[
        Value, Meta(description="Of n8n's public API, best a reference: to follow, look up, stop and discover.")
    ] = ""
    headers: Annotated[dict[str, Value], Meta(description="Sent to each webhook, such as its header auth.")] = (
        msgspec.field(default_factory=dict)
    )
    workflows: Annotated[
        dict[ToolName, N8nWorkflow], Meta(description="Tools by their names.", max_length=WORKFLOWS_MAX)
    ] = msgspec.field(default_factory=dict)
    discover: Annotated[
        N8nDiscovery | None, Meta(description="Offer active webhook workflows by themselves; `{}` for all of them.")
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


class ComfyUiBackend(Section, frozen=True):
    url: Annotated[Value, Meta(description="http:// or https:// base of the ComfyUI server.")]
    headers: Annotated[dict[str, Value], Meta(description="Sent with each request, for a proxy before it.")] = (
        msgspec.field(default_factory=dict)
    )


class ComfyUiSource(Source, frozen=True, tag="comfyui"):
    """ComfyUI servers that run templates: a graph and a sidecar that says what of it is an argument."""

    url: Annotated[Value, Meta(description="Base of the one server; or `backends`.")] = ""
    headers: Annotated[dict[str, Value], Meta(description="Sent with each request, with `url`.")] = msgspec.field(
        default_factory=dict
    )
    backends: Annotated[
        dict[ToolName, ComfyUiBackend],
        Meta(description="Several servers by name; the one with the shortest queue is used."),
    ] = msgspec.field(default_factory=dict)
    templates: Annotated[
        tuple[str, ...],
        Meta(description="Sidecar files (JSON or YAML), or folders of them, from the folder of sources.yaml."),
    ] = ()
    timeout_s: Annotated[
        float,
        Meta(
            description="Seconds a job of its tools gets, from submission to end, its wait in the queue included.", gt=0
        ),
    ] = 3_600.0
    strip_metadata: Annotated[
        bool, Meta(description="Remove the graph that ComfyUI writes into PNG, JPEG, WebP and GIF files.")
    ] = True
    tls: Annotated[ClientTls, Meta(description="Certificates.")] = ClientTls()
    connect_timeout_s: Annotated[float, Meta(description="Seconds to connect.", gt=0, le=300)] = 10.0
    read_timeout_s: Annotated[
        float, Meta(description="Seconds to wait for an answer; the server stalls for seconds after each run.", ge=5)
    ] = 30.0
    lost_after_s: Annotated[
        float, Meta(description="Seconds a job must be unknown to its server before it is LOST.", gt=0)
    ] = 15.0
