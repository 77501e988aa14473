"""core/http.request: any method, for APIs that change things."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from toolhub_service.domain import capability
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import shown_response_headers
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_exchange import (
    HttpServices,
    deadline_s,
    effect_of,
    headers_with_type,
    marked_text,
    prove_exchange,
    refuse_body,
    upstream_of,
)
from toolhub_service.tools.http_fields import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    GUARDED_URL_AND_METHOD,
    MaxBytes,
    RequestHeaders,
    TimeoutMs,
    Url,
)
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

Method = Annotated[
    Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    Meta(description="Which methods may be used, and where, is a matter of policy."),
]
Body = Annotated[
    str | dict[str, Any] | list[Any] | None,
    Meta(description="A string is sent as it is, an object or array as JSON. GET and HEAD take none."),
]


class HttpRequestTool(Tool["HttpRequestTool.In", "HttpRequestTool.Out"]):
    name = "core/http.request"
    description = (
        "Send an HTTP request with any method and return status, headers and body as text. A 4xx or 5xx status is a "
        "result, not an error. To read only, prefer core/http.fetchText or core/http.fetchJson."
    )
    tags = ("http", "api")
    capabilities = frozenset({capability.NETWORK})
    annotations = Annotations(destructive=True, open_world=True)
    cost = CostHints(latency_ms_p50=200, latency_ms_p95=3_000)
    limits = ToolLimits(timeout_s=60.0, max_retries=2)
    guarded = GUARDED_URL_AND_METHOD
    examples = (
        Example(
            "Create an item",
            {"url": "https://api.example.com/v1/items", "method": "POST", "body": {"name": "lamp"}},
        ),
    )

    class In(ToolInput, frozen=True):
        url: Url
        method: Method = "GET"
        headers: RequestHeaders = field(default_factory=dict)
        body: Body = None
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS
        max_bytes: MaxBytes = DEFAULT_MAX_BYTES

    class Out(ToolOutput, frozen=True):
        url: str
        """Where the answer came from, after redirects."""
        status: int
        headers: dict[str, str]
        body: str
        bytes: int
        """Of the decoded body, as far as it was read."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services

    async def run(self, args: In, context: ToolContext) -> Out:
        request = _request(args)
        max_bytes = min(args.max_bytes, context.constraints.sandbox.max_http_bytes)
        ends_s = deadline_s(args.timeout_ms, context)
        async with self._services.client.open(request, context.constraints.egress, deadline_s=ends_s) as response:
            body = response.body(max_bytes)
            data = await body.whole()
        prove_exchange(context, response, len(data), hashlib.sha256(data).hexdigest())
        return self.Out(
            url=str(response.url),
            status=response.status,
            headers=shown_response_headers(response.headers),
            body=marked_text(data, response, context, is_cut=body.is_cut),
            bytes=len(data),
        )

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        return (effect_of(_request(args)),)

    def has_side_effects(self, args: In) -> bool:
        return args.method not in {"GET", "HEAD"}

    def upstream(self, args: In) -> str:
        return upstream_of(args.url)


def _request(args: HttpRequestTool.In) -> HttpRequest:
    if args.body is None:
        return HttpRequest(args.url, args.method, headers_with_type(args.headers, ""))
    if args.method in {"GET", "HEAD"}:
        raise refuse_body(args.method)
    if isinstance(args.body, str):
        content, content_type = args.body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    else:
        content, content_type = msgspec.json.encode(args.body), "application/json"
    return HttpRequest(args.url, args.method, headers_with_type(args.headers, content_type), content)
