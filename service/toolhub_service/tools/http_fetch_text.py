"""core/http.fetchText: a page or an API answer as text."""

from __future__ import annotations

from toolhub_service.domain import capability
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import shown_response_headers
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_answer import marked_text
from toolhub_service.tools.http_asking import fetch_request
from toolhub_service.tools.http_exchange import HttpTool
from toolhub_service.tools.http_fields import GUARDED_URL_AND_METHOD, AnswerHead, FetchInput


class HttpFetchText(HttpTool["HttpFetchText.In", "HttpFetchText.Out"]):
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

    class In(FetchInput, frozen=True):
        pass

    class Out(AnswerHead, frozen=True):
        text: str
        bytes: int
        """Of the decoded body, as far as it was read."""

    async def run(self, args: In, context: ToolContext) -> Out:
        answer = await self._answer(args, context, timeout_ms=args.timeout_ms, max_bytes=args.max_bytes)
        return self.Out(
            url=str(answer.response.url),
            status=answer.response.status,
            headers=shown_response_headers(answer.response.headers),
            text=marked_text(answer, context),
            bytes=len(answer.data),
        )

    def request(self, args: In) -> HttpRequest:
        return fetch_request(args, content_type="text/plain; charset=utf-8", accept="text/*, */*;q=0.8")

    def has_side_effects(self, args: In) -> bool:
        return args.method != "GET"
