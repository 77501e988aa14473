"""One `tools/call`, from its request to its result. It is sent once; only an answer to a question sends it again.

The request's read timeout is a little shorter than the hub's deadline: at either, as at a cancellation, the SDK tells
the server to cancel.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any, Final

from mcp import MCPError
from mcp.shared.inbound import mcp_param_headers
from mcp_types import HEADER_MISMATCH

from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.answers import (
    ERROR_BLOCKS_MAX,
    error_details,
    reported_error,
)
from toolhub_service.adapters.mcp.idle import IdleLimit
from toolhub_service.adapters.mcp.link import McpLink, McpServer, McpSession
from toolhub_service.adapters.mcp.progress import Reporter
from toolhub_service.adapters.mcp.questions.elicitation import Questions, form_of
from toolhub_service.adapters.mcp.questions.relay import MISSING_CAPABILITY, Relayed
from toolhub_service.adapters.mcp.requests import SendOptions
from toolhub_service.adapters.mcp.result_value import (
    ERROR_TEXT_MAX_BYTES,
    LargeParts,
    blocks_of,
    is_result,
    outcome_of,
    text_of,
    unkept,
)
from toolhub_service.adapters.mcp.transports.repairs import take_remarks
from toolhub_service.adapters.upstream import (
    EXCERPT_MAX_CHARS,
    TraceMeta,
    as_object,
)
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import Outcome
from toolhub_service.guards.secrets import Redact

# How much shorter the server's timeout is than the hub's, so that it is cancelled in time; at most a tenth.
MARGIN_S: Final = 0.05
KEY_META: Final = "toolhub/idempotencyKey"
_STATE_ONLY_PAUSE_S: Final = 0.1  # when a server only answers that it is not ready yet (SEP-2322)


class ToolCaller:
    """Calls tools of any server."""

    def __init__(
        self,
        redact: Redact,
        *,
        artifacts: ArtifactService | None = None,
        trace: TraceMeta = dict,
        keep_raw: bool = False,
    ) -> None:
        """`artifacts`: stores large content; `keep_raw`: whether outcomes contain the server's answer, bounded."""
        self.redact = redact
        self.artifacts = artifacts
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
        method: str = "tools/call",
        fields: JsonObject | None = None,
    ) -> tuple[JsonObject, McpSession]:
        """Return the final answer and the session that gave it. Raises ToolFailure, QuestionAsked.

        `fields`: sent instead of a tool's name and arguments with a method other than `tools/call`. `task_ttl_ms`: ask
        for a task that is kept for this long (2025-11-25); `extension`: what the call declares (2026-07-28). Each is
        ignored in the other version. `key`: sent when the call has no idempotency key.
        """
        questions = Questions(call, server.elicitation, self.redact)
        relayed = self._relay_for(server, call)
        idle = _idle_limit(call, reporter, relayed)
        while True:
            session = await server.link.session(call.deadline_s)
            more = {"task": {"ttl": task_ttl_ms}} if task_ttl_ms and not session.is_modern else {}
            params = self._params(call, fields, {**questions.params, **more}, key)
            timeout_s = time_left_s(call)
            if timeout_s is not None and timeout_s <= 0:
                raise failures.no_time_left(call)
            try:
                options: SendOptions = {"timeout_s": timeout_s, "on_progress": reporter, "extension": extension}
                if session.is_modern and fields is None and (names := server.headers_of(call.spec)):
                    options["headers"] = mcp_param_headers(names, call.args)
                answer = await _send(
                    server.link,
                    call,
                    session,
                    method=method,
                    params=params,
                    options=options,
                    relayed=relayed,
                    idle=idle,
                )
            except MCPError as error:
                failure = self._failure(server, call, error, relayed)
                if questions.restarts(failure):
                    continue
                raise failure from error
            if answer.get("resultType") != "input_required":
                return answer, session
            if relayed is not None and relayed.gives(as_object(answer.get("inputRequests")) or {}):
                questions.set_answers(await relayed.answers(questions.take_requests(answer), form_of))
                continue
            questions.take(answer)
            if not questions.answers:
                # A server that asks nothing only needs more time; without a pause the hub would poll it in a busy loop.
                await asyncio.sleep(_STATE_ONLY_PAUSE_S)

    def _relay_for(self, server: McpServer, call: GrantedCall) -> Relayed | None:
        client, allowed = call.call.client, server.link.terms.relay
        return None if client is None or not allowed else Relayed(call, client, allowed, self.redact)

    def _failure(self, server: McpServer, call: GrantedCall, error: MCPError, relayed: Relayed | None) -> ToolFailure:
        # The tool's schema names other headers than the hub sent: the hub's list of tools is outdated.
        if error.error.code == HEADER_MISMATCH:
            server.changed()
        if error.error.code == MISSING_CAPABILITY and relayed is not None:
            relayed.missing(error.error.data)
        return failures.protocol_failure(call, error, self.redact)

    def _params(
        self, call: GrantedCall, fields: JsonObject | None, more: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        of_tool = {"name": call.spec.resource_id, "arguments": dict(call.args)}
        params: dict[str, Any] = {**(of_tool if fields is None else fields), **more}
        key = call.idempotency_key or key
        meta = {KEY_META: key} if key else {}
        meta |= self._trace()  # SEP-414
        if meta:
            params["_meta"] = meta
        return params

    async def outcome(self, server: McpServer, session: McpSession, call: GrantedCall, result: JsonObject) -> Outcome:
        """Return the outcome of a final result. Raises ToolFailure when the tool, or the operator's pattern, declares
        an error."""
        if result.get("resultType", "complete") != "complete" or not is_result(result):
            raise failures.outside_protocol(call, "its response is not a tool result")
        if result.get("isError") is True:
            raise await self._reported_failure(call, take_remarks(result)[0])
        finds_error = server.overrides.finds_error(call.spec.resource_id)
        if finds_error is not None and finds_error(text := text_of(result)):
            raise failures.reported_failure(call, text, self.redact)
        return await outcome_of(
            result,
            call,
            self.artifacts,
            server=session.server,
            protocol=session.protocol,
            redact=self.redact,
            keep_raw=self._keep_raw,
        )

    async def _reported_failure(self, call: GrantedCall, result: JsonObject) -> ToolFailure:
        """Return the failure, which keeps the blocks and the structure of the result; all bytes become artifacts."""
        keeping = LargeParts(call.call, self.artifacts, 0, ERROR_TEXT_MAX_BYTES)
        structured = result.get("structuredContent")
        shown = [await keeping.block_value(unkept(block)) for block in blocks_of(result)[:ERROR_BLOCKS_MAX]]
        details = error_details(shown, structured, EXCERPT_MAX_CHARS, self.redact)
        return failures.reported_failure(call, reported_error(text_of(result), structured), self.redact, details)


async def _send(
    link: McpLink,
    call: GrantedCall,
    session: McpSession,
    method: str,
    params: dict[str, Any],
    options: SendOptions,
    relayed: Relayed | None,
    idle: IdleLimit,
) -> JsonObject:
    """Return the server's answer; the call's client may be asked meanwhile. Raises MCPError, and ToolFailure for a call
    that was idle for too long."""
    if relayed is not None:
        options["capabilities"], options["on_log"] = relayed.capabilities, relayed.on_log
    try:
        async with idle.enforce():
            with link.running.enter(relayed, call.call.principal.id):
                return await link.send(session, method, params, **options)
    except TimeoutError:
        raise failures.idle_timeout(call, idle.limit_s) from None


def _idle_limit(call: GrantedCall, *users: Reporter | Relayed | None) -> IdleLimit:
    """Return the limit of one call, which these renew or suspend."""
    idle = IdleLimit(call.spec.limits.idle_timeout_s)
    for user in users:
        if user is not None:
            user.idle = idle
    return idle


def time_left_s(call: GrantedCall) -> float | None:
    """Return the seconds that the server has; None: no limit."""
    if call.deadline_s == inf:
        return None
    left_s = call.deadline_s - asyncio.get_running_loop().time()
    return left_s - min(MARGIN_S, left_s / 10)
