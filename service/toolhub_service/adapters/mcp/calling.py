"""One `tools/call`, from its request to its result. It is sent once; only an answer to a question sends it again.

The request's read timeout is a little shorter than the hub's deadline: at either, as at a cancellation, the SDK tells
the server to cancel.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final

from mcp import MCPError
from mcp.shared.inbound import mcp_param_headers
from mcp_types import HEADER_MISMATCH

from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.answers import (
    ERROR_BLOCKS_MAX,
    error_details,
    is_plain_text,
    own_meta,
    read_as_declared,
    reported_error,
    said_beside,
)
from toolhub_service.adapters.mcp.idle import IdleLimit
from toolhub_service.adapters.mcp.link import McpLink, McpServer, McpSession
from toolhub_service.adapters.mcp.questions.elicitation import Questions, form_of
from toolhub_service.adapters.mcp.questions.relay import MISSING_CAPABILITY, Relayed
from toolhub_service.adapters.mcp.requests import SendOptions
from toolhub_service.adapters.mcp.wire.repairs import take_remarks
from toolhub_service.adapters.upstream import (
    EXCERPT_MAX_CHARS,
    TraceMeta,
    as_object,
    as_string,
    kept_bytes,
    kept_json,
    one_line,
)
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome, Progress
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.repaired_json import repair_evidence

# The value of a result (CallToolResult, as JSON) has one of two shapes:
#
#     structured content, as it is        where the tool sent some, or declares some and sent it as a text
#     {"text": "…", "content": [...]}     else: its text blocks joined by line breaks, and all its blocks in
#                                         their order where others than plain texts are among them
#
# Blocks and `_meta` that the value does not have are in `Outcome.said`.
#
# Binary blocks (images, audio, blobs) and texts of resources beyond 16 KiB are kept as artifacts, and a block says
# which, with size and sha256; beside structured content all binary blocks are kept so. Where nothing can be kept, the
# block says why, and the outcome is `truncated`.

BLOCKS_MAX: Final = 1_000
INLINE_MAX_BYTES: Final = 16 * 1024  # of base64, or of a resource's text
_BESIDE_MAX_CHARS: Final = 256 * 1024  # of texts beside a value; an MCP client is never sent more
_ERROR_TEXT_MAX_BYTES: Final = 4 * 1024  # of a resource's text in an error
RAW_MAX_BYTES: Final = 64 * 1024
_HUBS_OWN: Final = frozenset({"artifact", "bytes", "sha256", "dropped"})
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def text_of(result: JsonObject) -> str:
    """Return the text blocks of a result, joined by line breaks."""
    return "\n".join(str(block["text"]) for block in _blocks(result) if _is_text(block))


def is_result(result: JsonObject) -> bool:
    """Return whether it has the members that a result needs at least."""
    return isinstance(result.get("content"), list | tuple) or "structuredContent" in result


async def outcome_of(
    result: JsonObject,
    call: GrantedCall,
    artifacts: ArtifactService | None,
    *,
    server: str,
    protocol: str,
    redact: Redact = str,
    keep_raw: bool = False,
) -> Outcome:
    """Return the outcome of a result. `artifacts`: stores what is too large for a value; None: nothing is stored.
    `server`: its own name for itself, bounded. Raises ToolFailure OUTPUT_SCHEMA_INVALID for a text in place of the
    structured content that the tool declares."""
    result, repairs = take_remarks(result)
    # Each block is processed on the event loop, so their number is bounded.
    sent = _blocks(result)
    blocks = sent[:BLOCKS_MAX]
    others = [block for block in blocks if not _is_text(block)]
    # A null counts only where the tool's schema declares structured content; other servers send it for "none".
    is_structured = result.get("structuredContent") is not None or (
        "structuredContent" in result and bool(call.spec.output_schema)
    )
    keeping = LargeParts(call.call, artifacts, 0 if is_structured else INLINE_MAX_BYTES)
    is_plain = not others and all(map(is_plain_text, blocks))
    shown = blocks if is_plain else [await keeping.shown(unkept(block)) for block in blocks]
    value: JsonValue = result.get("structuredContent")
    beside: Sequence[JsonObject] = shown if is_structured or (is_plain and len(shown) > 1) else ()
    if not is_structured:
        plain: JsonObject = {"text": "\n".join([str(block["text"]) for block in blocks if _is_text(block)])}
        value = plain if is_plain else {**plain, "content": list(shown)}
        if call.spec.output_schema:
            value, is_structured = read_as_declared(call.spec, value, redact)
            beside = shown if is_structured else beside
    if sum(len(str(block["text"])) for block in beside if _is_text(block)) > _BESIDE_MAX_CHARS:
        # The value has the texts too, unless it is structured: then each large one becomes an artifact.
        beside = [await keeping.contents(block) for block in beside] if is_structured else ()
    dropped = len(sent) - len(blocks)
    attributes = {
        "source": call.spec.source,
        "server": server,
        "protocol": protocol,
        "remote_tool": call.spec.resource_id,
        "structured": "true" if is_structured else "false",
    }
    if others:
        attributes["other_blocks"] = str(len(others))
    if dropped:
        attributes["dropped_blocks"] = str(dropped)
    summary = f"{call.spec.name} answered{f' by {server}' if server else ''}"
    proof = Evidence(EvidenceType.TOOL, call.call.call_id, summary, attributes=attributes)
    return Outcome(
        value=value,
        evidence=(proof, *repair_evidence(call.call.call_id, repairs)),
        artifacts=tuple(keeping.refs),
        truncated=keeping.is_incomplete or dropped > 0,
        raw=kept_json(result, RAW_MAX_BYTES) if keep_raw else None,
        said=said_beside(value, beside, own_meta(result)),
    )


def unkept(block: JsonObject) -> JsonObject:
    """Return the block without the members by which only the hub says that a part became an artifact or could not."""
    # Otherwise a server could claim an artifact that the hub never stored.
    plain = {place: member for place, member in block.items() if place not in _HUBS_OWN}
    if (resource := as_object(plain.get("resource"))) is not None:
        plain["resource"] = {place: member for place, member in resource.items() if place not in _HUBS_OWN}
    return plain


class LargeParts:
    """Moves the large parts of one result into artifacts."""

    def __init__(
        self,
        call: Call,
        artifacts: ArtifactService | None,
        inline_max_bytes: int,
        text_max_bytes: int = INLINE_MAX_BYTES,
    ) -> None:
        """Up to `inline_max_bytes` of base64 and `text_max_bytes` of a resource's text stay in the result."""
        self._call = call
        self.artifacts = artifacts
        self._inline_max_bytes = inline_max_bytes
        self._text_max_bytes = text_max_bytes
        self.refs: list[ArtifactRef] = []
        self.is_incomplete = False

    async def shown(self, block: JsonObject) -> JsonObject:
        """Return the block in a form that a value can hold; a text stays, as the whole value is cut."""
        resource = as_object(block.get("resource"))
        if resource is not None:
            return {**block, "resource": await self.contents(resource)}
        return block if _is_text(block) else await self._lightened(block, "data")

    async def contents(self, resource: JsonObject) -> JsonObject:
        """Return the contents of a resource in a form that a value can hold."""
        return await self._lightened(resource, "blob", "text")

    async def _lightened(self, holder: JsonObject, *places: str) -> JsonObject:
        """Return the holder without the members that are too large; the others stay."""
        place = next((place for place in places if isinstance(holder.get(place), str)), "")
        carried = as_string(holder.get(place))
        if len(carried) <= (self._text_max_bytes if place == "text" else self._inline_max_bytes):
            return holder
        rest = {key: value for key, value in holder.items() if key != place}
        try:
            data = carried.encode("utf-8", "replace") if place == "text" else binascii.a2b_base64(carried)
        except ValueError:
            self.is_incomplete = True
            return {**rest, "dropped": "it is not base64"}
        media_type = as_string(holder.get("mimeType"))
        facts, refs = await kept_bytes(data, self._call, self.artifacts, media_type=media_type, name=_file_name(holder))
        self.refs += refs
        self.is_incomplete |= not refs
        return {**rest, **facts}


def _blocks(result: JsonObject) -> Sequence[JsonObject]:
    content = result.get("content")
    if not isinstance(content, list | tuple):
        return ()
    # Some servers send bare strings, which can only be meant as texts.
    texts = ({"type": "text", "text": block} if isinstance(block, str) else block for block in content)
    return [block for block in texts if isinstance(block, Mapping)]


def _is_text(block: JsonObject) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _file_name(holder: JsonObject) -> str:
    """Return the last part of a resource's URI as a file name if it is harmless, else an empty one."""
    name = as_string(holder.get("uri")).rpartition("/")[2]
    return name if _FILE_NAME.fullmatch(name) else ""


def _is_finite(number: float) -> bool:
    """Return whether a double can hold it: an integer of a server may have any number of digits."""
    try:
        return isfinite(number)
    except OverflowError:
        return False


# Progress reaches the hub's sink at most 50 times a second: an early report replaces the one that waits, and one timer
# passes it on, so that the newest is never lost.

PAUSE_S: Final = 0.02
MESSAGE_MAX_CHARS: Final = 500


class Reporter:
    """The SDK's progress callback of one call."""

    __slots__ = ("_loop", "_next_s", "_sink", "_timer", "_waiting", "idle")

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._next_s = 0.0
        self._waiting: tuple[float, float | None, str | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle = IdleLimit(0.0)
        """Of the call, which each report renews."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.idle.renew()
        # JSON parsers accept NaN and integers beyond the range of a float; neither can be passed on.
        if not _is_finite(progress):
            return
        self._waiting = (progress, total, message)
        if self._loop.time() >= self._next_s:
            self._forward()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_s, self._forward)

    def close(self) -> None:
        """Pass on the report that waits; the call has ended."""
        if self._waiting is not None:
            self._forward()

    def _forward(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is None:
            return
        step, total, message = self._waiting
        self._waiting = None
        self._next_s = self._loop.time() + PAUSE_S
        known_total = total if total is not None and _is_finite(total) else None
        shown = one_line(message, MESSAGE_MAX_CHARS) if message else ""
        self._sink.progress(Progress(step=step, total=known_total, message=shown))


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
        relayed = self._relayed(server, call)
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
                answer = await _sent(server.link, call, session, method, params, options, relayed, idle)
            except MCPError as error:
                failure = self._failure(server, call, error, relayed)
                if questions.restarts(failure):
                    continue
                raise failure from error
            if answer.get("resultType") != "input_required":
                return answer, session
            if relayed is not None and relayed.gives(as_object(answer.get("inputRequests")) or {}):
                questions.relayed(await relayed.answers(questions.take_relayed(answer), form_of))
                continue
            questions.take(answer)
            if not questions.answers:
                # A server that asks nothing only needs more time; without a pause the hub would poll it in a busy loop.
                await asyncio.sleep(_STATE_ONLY_PAUSE_S)

    def _relayed(self, server: McpServer, call: GrantedCall) -> Relayed | None:
        client, allowed = call.call.client, server.link.terms.relay
        return None if client is None or not allowed else Relayed(call, client, allowed, self.redact)

    def _failure(self, server: McpServer, call: GrantedCall, error: MCPError, relayed: Relayed | None) -> ToolFailure:
        # The tool's schema names other headers than the hub sent: the hub's list of tools is outdated.
        if error.error.code == HEADER_MISMATCH:
            server.changed()
        if error.error.code == MISSING_CAPABILITY and relayed is not None:
            relayed.missing(error.error.data)
        return failures.answered(call, error, self.redact)

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
        keeping = LargeParts(call.call, self.artifacts, 0, _ERROR_TEXT_MAX_BYTES)
        structured = result.get("structuredContent")
        shown = [await keeping.shown(unkept(block)) for block in _blocks(result)[:ERROR_BLOCKS_MAX]]
        details = error_details(shown, structured, EXCERPT_MAX_CHARS, self.redact)
        return failures.reported_failure(call, reported_error(text_of(result), structured), self.redact, details)


async def _sent(
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
        async with idle.applied():
            with link.running.entered(relayed, call.call.principal.id):
                return await link.send(session, method, params, **options)
    except TimeoutError:
        raise failures.idled(call, idle.limit_s) from None


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
