"""core/http.request: any method, for APIs that change things."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from toolhub_service.domain import capability
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import shown_response_headers
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_answer import marked_text
from toolhub_service.tools.http_asking import headers_with_type, refuse_body
from toolhub_service.tools.http_exchange import HttpTool
from toolhub_service.tools.http_fields import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    GUARDED_URL_AND_METHOD,
    AnswerHead,
    MaxBytes,
    RequestHeaders,
    TimeoutMs,
    UrlInput,
)

Method = Annotated[
    Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    Meta(description="Which methods may be used, and where, is a matter of policy."),
]
Body = Annotated[
    str | dict[str, Any] | list[Any] | None,
    Meta(description="A string is sent as it is, an object or array as JSON. GET and HEAD take none."),
]


class HttpRequestTool(HttpTool["HttpRequestTool.In", "HttpRequestTool.Out"]):
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

    class In(UrlInput, frozen=True):
        method: Method = "GET"
        headers: RequestHeaders = field(default_factory=dict)
        body: Body = None
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS
        max_bytes: MaxBytes = DEFAULT_MAX_BYTES

    class Out(AnswerHead, frozen=True):
        body: str
        bytes: int
        """Of the decoded body, as far as it was read."""

    async def run(self, args: In, context: ToolContext) -> Out:
        answer = await self._answer(args, context, timeout_ms=args.timeout_ms, max_bytes=args.max_bytes)
        return self.Out(
            url=str(answer.response.url),
            status=answer.response.status,
            headers=shown_response_headers(answer.response.headers),
            body=marked_text(answer, context),
            bytes=len(answer.data),
        )

    def request(self, args: In) -> HttpRequest:
        if args.body is None:
            return HttpRequest(args.url, args.method, headers_with_type(args.headers, ""))
        if args.method in {"GET", "HEAD"}:
            raise refuse_body(args.method)
        if isinstance(args.body, str):
            content, content_type = args.body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
        else:
            content, content_type = msgspec.json.encode(args.body), "application/json"
        return HttpRequest(args.url, args.method, headers_with_type(args.headers, content_type), content)

    def has_side_effects(self, args: In) -> bool:
        return args.method not in {"GET", "HEAD"}
