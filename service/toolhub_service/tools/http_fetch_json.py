"""core/http.fetchJson: an API answer as a JSON value, read strictly."""

from __future__ import annotations

from typing import Any

from toolhub_service.domain import capability
from toolhub_service.domain.errors import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits
from toolhub_service.guards.headers import shown_response_headers
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import HttpRequest
from toolhub_service.tools.http_answer import Answer, excerpt_of, too_large, too_many_values
from toolhub_service.tools.http_asking import fetch_request
from toolhub_service.tools.http_exchange import HttpTool
from toolhub_service.tools.http_fields import GUARDED_URL_AND_METHOD, AnswerHead, FetchInput
from toolhub_service.tools.json_bodies import is_large


class HttpFetchJson(HttpTool["HttpFetchJson.In", "HttpFetchJson.Out"]):
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

    class In(FetchInput, frozen=True):
        pass

    class Out(AnswerHead, frozen=True):
        json: Any
        bytes: int
        """Of the decoded body."""

    async def run(self, args: In, context: ToolContext) -> Out:
        answer = await self._answer(
            args, context, timeout_ms=args.timeout_ms, max_bytes=args.max_bytes, needs_success=True
        )
        if answer.is_cut:
            raise too_large(answer.response, answer.max_bytes)
        context.is_large = is_large(answer.data)
        return self.Out(
            url=str(answer.response.url),
            status=answer.response.status,
            headers=shown_response_headers(answer.response.headers),
            json=await self._value(answer),
            bytes=len(answer.data),
        )

    def request(self, args: In) -> HttpRequest:
        return fetch_request(args, content_type="application/json", accept="application/json")

    def has_side_effects(self, args: In) -> bool:
        return args.method != "GET"

    async def _value(self, answer: Answer) -> JsonValue:
        try:
            return await self._services.bodies.read(answer.data)
        except ToolFailure as failure:
            response = answer.response
            if failure.error.details.get("reason") == "too_many_values":
                raise too_many_values(response) from None
            raise refuse(
                ErrorKind.UPSTREAM_ERROR,
                f"{response.url.host} answered with something that is not strict JSON. {failure.error.message} "
                "Use core/http.fetchText to see it as text.",
                retryable=False,
                upstream=Upstream(response.status, excerpt_of(answer.data, response, self._services.redactor)),
            ) from None
