"""core/http.head: status and headers alone, to judge size and freshness before fetching."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import field

from toolhub_service.domain import capability
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import judge_request_headers, shown_response_headers
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_exchange import HttpServices, deadline_s, effect_of, prove_exchange, upstream_of
from toolhub_service.tools.http_fields import DEFAULT_TIMEOUT_MS, GUARDED_URL, RequestHeaders, TimeoutMs, Url
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class HttpHead(Tool["HttpHead.In", "HttpHead.Out"]):
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

    class In(ToolInput, frozen=True):
        url: Url
        headers: RequestHeaders = field(default_factory=dict)
        timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS

    class Out(ToolOutput, frozen=True):
        url: str
        """Where the answer came from, after redirects."""
        status: int
        headers: dict[str, str]

    def __init__(self, services: HttpServices) -> None:
        self._services = services

    async def run(self, args: In, context: ToolContext) -> Out:
        request = HttpRequest(args.url, "HEAD", judge_request_headers(args.headers))
        ends_s = deadline_s(args.timeout_ms, context)
        async with self._services.client.open(request, context.constraints.egress, deadline_s=ends_s) as response:
            prove_exchange(context, response, 0)
        shown = shown_response_headers(response.headers)
        return self.Out(url=str(response.url), status=response.status, headers=shown)

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        return (effect_of(HttpRequest(args.url, "HEAD")),)

    def upstream(self, args: In) -> str:
        return upstream_of(args.url)
