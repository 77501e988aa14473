"""One `tools/call` and what comes of it, up to a result. It is sent once; only an answer to a question sends it again.

The deadline goes along as the request's read timeout, a little earlier than the hub's own: at either, as at a
cancellation, the SDK tells the server to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import mcp_param_headers

from toolhub_service.adapters.mcp import asking, content, failures, wire
from toolhub_service.adapters.mcp.breakage import Breakage
from toolhub_service.adapters.mcp.link import McpSession
from toolhub_service.adapters.mcp.reporting import Reporter
from toolhub_service.adapters.mcp.server import McpServer
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import Outcome
from toolhub_service.guards.redaction import Redact

MARGIN_S: Final = 0.05
"""By how much the server's time is shorter than the hub's, so that the server hears of it from us; at most a tenth."""
KEY_META: Final = "toolhub/idempotencyKey"
TRACE_META: Final = "traceparent"
_STATE_ONLY_PAUSE_S: Final = 0.1
"""When a server only says that it is not ready yet (SEP-2322)."""

Trace = Callable[[], str]
"""The W3C traceparent of what runs now; empty when there is none."""


def no_trace() -> str:
    return ""


class Calling:
    """How tools are called: what is the same for all servers and calls."""

    def __init__(
        self,
        redact: Redact,
        *,
        desk: ArtifactDesk | None = None,
        trace: Trace = no_trace,
        keep_raw: bool = False,
    ) -> None:
        """`desk`: where large content goes; `keep_raw`: whether outcomes carry the server's own answer (bounded)."""
        self.redact = redact
        self._desk = desk
        self._trace = trace
        self._keep_raw = keep_raw

    async def result(
        self,
        server: McpServer,
        call: GrantedCall,
        reporter: Reporter | None,
        *,
        task_ttl_ms: int = 0,
        extension: str = "",
        key: str = "",
    ) -> tuple[JsonObject, McpSession]:
        """The final answer, and who gave it. Raises ToolFailure, QuestionAsked.

        `task_ttl_ms`: ask for a task that is kept so long (2025-11-25); `extension`: what the call declares
        (2026-07-28). Each is ignored in the other era. `key`: goes along where the call has no idempotency key.
        """
        step = asking.resumed(call)
        while True:
            session = await server.link.session(call.deadline_s)
            more = {"task": {"ttl": task_ttl_ms}} if task_ttl_ms and not session.is_modern else {}
            params = self.params(call, {**step.params, **more}, key)
            try:
                answer = await self._ask(
                    server, session, call, params, reporter, extension if session.is_modern else ""
                )
            except ToolFailure as failure:
                if asking.begins_anew(step, failure):
                    continue
                raise
            if answer.get("resultType") != "input_required":
                return answer, session
            asking.go_on(step, answer, call, server.elicitation, self.redact)
            if not step.answers:
                await asyncio.sleep(_STATE_ONLY_PAUSE_S)

    def params(self, call: GrantedCall, more: dict[str, Any], key: str = "") -> dict[str, Any]:
        """Of a `tools/call`."""
        params: dict[str, Any] = {"name": call.spec.resource_id, "arguments": dict(call.args), **more}
        key = call.idempotency_key or key
        meta = {KEY_META: key} if key else {}
        trace = self._trace()
        if trace:
            meta[TRACE_META] = trace
        if meta:
            params["_meta"] = meta
        return params

    async def _ask(
        self,
        server: McpServer,
        session: McpSession,
        call: GrantedCall,
        params: dict[str, Any],
        reporter: Reporter | None,
        extension: str = "",
    ) -> JsonObject:
        """One `tools/call`. Raises ToolFailure."""
        timeout_s = time_left_s(call)
        if timeout_s is not None and timeout_s <= 0:
            raise failures.timed_out(call)
        mirrored = server.headers_of(call.spec) if session.is_modern else None
        try:
            return await wire.ask(
                session.client.session,
                "tools/call",
                params,
                timeout_s=timeout_s,
                on_progress=reporter,
                headers=mcp_param_headers(mirrored, call.args) if mirrored else None,
                extension=extension,
                lane=session.lane,
            )
        except MCPError as error:
            _notice(server, session, error)
            raise failures.answered(call, error, self.redact) from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # python-sdk #3560: the SDK cancels who waits on a connection that dies.
            server.link.lost(session, "its connection broke")
            raise failures.broken(call, Breakage.LOST) from None
        except (OSError, TimeoutError) as error:
            server.link.lost(session, "its connection broke")
            raise failures.broken(call, Breakage.LOST) from error

    async def outcome(self, server: McpServer, session: McpSession, call: GrantedCall, result: JsonObject) -> Outcome:
        """What a final result says. Raises ToolFailure when the tool, or the operator, calls it an error."""
        if result.get("resultType", "complete") != "complete" or not content.is_result(result):
            raise failures.outside_protocol(call, "what it sent is no result of a tool")
        if result.get("isError") is True:
            raise failures.tool_said(call, content.text_of(result), self.redact)
        finds_error = server.overrides.of(call.spec.resource_id).finds_error
        if finds_error is not None and finds_error(text := content.text_of(result)):
            raise failures.tool_said(call, text, self.redact)
        by = content.Answerer(session.server, session.protocol)
        return await content.outcome_of(result, call, by, self._desk, keep_raw=self._keep_raw)


def time_left_s(call: GrantedCall) -> float | None:
    """Seconds that the server has; None: no bound."""
    if call.deadline_s == inf:
        return None
    left_s = call.deadline_s - asyncio.get_running_loop().time()
    return left_s - min(MARGIN_S, left_s / 10)


def _notice(server: McpServer, session: McpSession, error: MCPError) -> None:
    """What an error says about more than its call."""
    if failures.is_closed(error):
        server.link.lost(session, "its connection is closed")
    elif failures.is_lost_session(error):
        server.link.lost(session, "the server does not know the session any more")
    elif error.error.code == failures.HEADER_MISMATCH:
        server.changed()


def _is_cancelled() -> bool:
    """Whether somebody asked for it, and not the SDK on its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
