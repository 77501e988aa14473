"""What every core/http.* tool does: one exchange through the egress client, bounded, proved and told in plans.

A tool adds its request (http_asking.py) and what it makes of the answer (http_answer.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from toolhub_service.guards.secrets import Redactor
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.egress.client import EgressClient, HttpRequest, HttpResponse
from toolhub_service.tools.http_answer import Answer, prove_exchange, refuse_error_status
from toolhub_service.tools.http_asking import effect_of, upstream_of
from toolhub_service.tools.http_fields import DEFAULT_TIMEOUT_MS, UrlInput
from toolhub_service.tools.json_bodies import JsonBodies
from toolhub_service.tools.off_loop import off_loop_if_large
from toolhub_service.tools.tool import Tool, ToolOutput

Input = TypeVar("Input", bound=UrlInput)
Output = TypeVar("Output", bound=ToolOutput)

_ALMOST = 0.9
"""What is less by a tenth was spent on the way here."""


@dataclass(frozen=True, slots=True)
class HttpServices:
    """What every HTTP tool is constructed with."""

    client: EgressClient
    redactor: Redactor
    """For excerpts of what an upstream answered."""
    bodies: JsonBodies = field(default_factory=JsonBodies)


class HttpTool(Tool[Input, Output]):
    """Subclasses define `request` besides what every tool does."""

    default_timeout_ms: ClassVar[int] = DEFAULT_TIMEOUT_MS
    """Of the whole exchange, where the caller names no other."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services

    def request(self, args: Input) -> HttpRequest:
        """What is to be sent. Raises ToolFailure INVALID_INPUT for headers or a body that cannot be."""
        raise TypeError(f"{type(self).__name__} must define request()")

    def effects(self, args: Input, context: ToolContext) -> Sequence[str]:
        return (effect_of(self.request(args)),)

    def upstream(self, args: Input) -> str:
        return upstream_of(args.url)

    def _open(
        self, request: HttpRequest, timeout_ms: int, context: ToolContext
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """`timeout_ms` narrows the call's own deadline; less than the tool's default is the caller's choice."""
        ends_s = min(context.deadline_s, asyncio.get_running_loop().time() + timeout_ms / 1000)
        return self._services.client.open(
            request, context.constraints.egress, deadline_s=ends_s, fair_s=_ALMOST * self.default_timeout_ms / 1000
        )

    async def _answer(
        self, args: Input, context: ToolContext, *, timeout_ms: int, max_bytes: int, needs_success: bool = False
    ) -> Answer:
        """The answer, its body read and proved. Raises ToolFailure UPSTREAM_ERROR if `needs_success` and not 2xx."""
        bound_bytes = min(max_bytes, context.constraints.sandbox.max_http_bytes)
        async with self._open(self.request(args), timeout_ms, context) as response:
            if needs_success:
                await refuse_error_status(response, self._services.redactor)
            body = response.body(bound_bytes)
            data = await body.whole()
        sha256 = await off_loop_if_large(len(data), lambda _: hashlib.sha256(data).hexdigest())
        prove_exchange(context, response, len(data), sha256)
        return Answer(response, data, body.is_cut, bound_bytes)
