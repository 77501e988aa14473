"""core/http.fetchText: a page or an API answer as text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import field

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
    GetOrPost,
    MaxBytes,
    RequestHeaders,
    TextBody,
    TimeoutMs,
    Url,
)
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class HttpFetchText(Tool["HttpFetchText.In", "HttpFetchText.Out"]):
    name = "core/http.fetchText"
    description = (
        "Request a URL and return the body as text, with status and headers. A 4xx or 5xx status is a result, not an "
        "error. Longer bodies are cut at maxBytes and marked. For JSON use core/http.fetchJson, for files "
        "core/http.downloadFile."
    )
    tags = ("http", "web")
    capabilities = frozenset({capability.NETWORK})
    annotations = Annotations(open_world=True)
    cost = CostHints(latency_ms_p50=200, latency_ms_p95=3_000)
    limits = ToolLimits(timeout_s=60.0, max_retries=2)
    guarded = GUARDED_URL_AND_METHOD
    examples = (Example("Read a page", {"url": "https://example.com/"}),)

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
        text: str
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
            text=marked_text(data, response, context, is_cut=body.is_cut),
            bytes=len(data),
        )

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        return (effect_of(_request(args)),)

    def has_side_effects(self, args: In) -> bool:
        return args.method != "GET"

    def upstream(self, args: In) -> str:
        return upstream_of(args.url)


def _request(args: HttpFetchText.In) -> HttpRequest:
    if args.body is not None and args.method == "GET":
        raise refuse_body("GET")
    headers = headers_with_type(args.headers, "text/plain; charset=utf-8" if args.body is not None else "")
    body = (args.body or "").encode("utf-8", "replace")
    return HttpRequest(args.url, args.method, headers, body, accept="text/*, */*;q=0.8")
