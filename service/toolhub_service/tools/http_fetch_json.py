"""core/http.fetchJson: an API answer as a JSON value, read strictly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import field

from toolhub_service.domain import capability
from toolhub_service.domain.errors import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import shown_response_headers
from toolhub_service.schema import strict_json
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest, HttpResponse
from toolhub_service.tools.http_exchange import (
    HttpServices,
    deadline_s,
    effect_of,
    excerpt_of,
    headers_with_type,
    prove_exchange,
    refuse_body,
    refuse_error_status,
    too_large,
    upstream_of,
)
from toolhub_service.tools.http_fields import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    GUARDED_URL_AND_METHOD,
    GetOrPost,
    MaxBytes,
    RequestHeaders,
    TextBody,
    TimeoutMs,
    Url,
)
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class HttpFetchJson(Tool["HttpFetchJson.In", "HttpFetchJson.Out"]):
    name = "core/http.fetchJson"
    description = (
        "Request a URL and return the body as a JSON value. A status other than 2xx and a body that is not JSON are "
        "errors that carry an excerpt. For other content use core/http.fetchText."
    )
    tags = ("http", "web", "json")
    capabilities = frozenset({capability.NETWORK})
    annotations = Annotations(open_world=True)
    cost = CostHints(latency_ms_p50=200, latency_ms_p95=3_000)
    limits = ToolLimits(timeout_s=60.0, max_retries=2)
    guarded = GUARDED_URL_AND_METHOD
    examples = (Example("Ask an API", {"url": "https://api.example.com/v1/items?limit=10"}),)

    class In(ToolInput, frozen=True):
        url: Url
        method: GetOrPost = "GET"
        headers: RequestHeaders = field(default_factory=dict)
        body: TextBody = None
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS
        max_bytes: MaxBytes = DEFAULT_MAX_BYTES

    class Out(ToolOutput, frozen=True):
        url: str
        """Where the answer came from, after redirects."""
        status: int
        headers: dict[str, str]
        json: Any
        bytes: int
        """Of the decoded body."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services

    async def run(self, args: In, context: ToolContext) -> Out:
        request = _request(args)
        max_bytes = min(args.max_bytes, context.constraints.sandbox.max_http_bytes)
        ends_s = deadline_s(args.timeout_ms, context)
        async with self._services.client.open(request, context.constraints.egress, deadline_s=ends_s) as response:
            await refuse_error_status(self._services, response)
            body = response.body(max_bytes)
            data = await body.whole()
        prove_exchange(context, response, len(data), hashlib.sha256(data).hexdigest())
        if body.is_cut:
            raise too_large(response, max_bytes)
        return self.Out(
            url=str(response.url),
            status=response.status,
            headers=shown_response_headers(response.headers),
            json=self._value(data, response),
            bytes=len(data),
        )

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        return (effect_of(_request(args)),)

    def has_side_effects(self, args: In) -> bool:
        return args.method != "GET"

    def upstream(self, args: In) -> str:
        return upstream_of(args.url)

    def _value(self, data: bytes, response: HttpResponse) -> JsonValue:
        try:
            return strict_json.loads(data, max_bytes=len(data))
        except ToolFailure as failure:
            raise refuse(
                ErrorKind.UPSTREAM_ERROR,
                f"{response.url.host} answered with something that is not strict JSON. {failure.error.message} "
                "Use core/http.fetchText to see it as text.",
                retryable=False,
                upstream=Upstream(response.status, excerpt_of(self._services, data, response)),
            ) from None


def _request(args: HttpFetchJson.In) -> HttpRequest:
    if args.body is not None and args.method == "GET":
        raise refuse_body("GET")
    headers = headers_with_type(args.headers, "application/json" if args.body is not None else "")
    body = (args.body or "").encode("utf-8", "replace")
    return HttpRequest(args.url, args.method, headers, body, accept="application/json")
