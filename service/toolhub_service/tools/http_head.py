"""core/http.head: status and headers alone, to judge size and freshness before fetching."""

from __future__ import annotations

from msgspec import field

from toolhub_service.domain import capability
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import judge_request_headers, shown_response_headers
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_answer import prove_exchange
from toolhub_service.tools.http_exchange import HttpTool
from toolhub_service.tools.http_fields import (
    DEFAULT_TIMEOUT_MS,
    GUARDED_URL,
    AnswerHead,
    RequestHeaders,
    TimeoutMs,
    UrlInput,
)


class HttpHead(HttpTool["HttpHead.In", "HttpHead.Out"]):
    name = "core/http.head"
    description = (
        "Ask for the status and headers of a URL without its body (HEAD): size, type, ETag, freshness. "
        "Any status is a result, not an error."
    )
    tags = ("http", "web")
    capabilities = frozenset({capability.NETWORK})
    annotations = Annotations(read_only=True, idempotent=True, open_world=True)
    cost = CostHints(latency_ms_p50=100, latency_ms_p95=2_000)
    limits = ToolLimits(timeout_s=60.0, max_retries=2)
    guarded = GUARDED_URL
    examples = (Example("Is it worth fetching?", {"url": "https://example.com/big.zip"}),)

    class In(UrlInput, frozen=True):
        headers: RequestHeaders = field(default_factory=dict)
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS

    class Out(AnswerHead, frozen=True):
        pass

    async def run(self, args: In, context: ToolContext) -> Out:
        async with self._open(self.request(args), args.timeout_ms, context) as response:
            prove_exchange(context, response, 0)
        shown = shown_response_headers(response.headers)
        return self.Out(url=str(response.url), status=response.status, headers=shown)

    def request(self, args: In) -> HttpRequest:
        return HttpRequest(args.url, "HEAD", judge_request_headers(args.headers))
