"""Converts a tools/call to a call of the hub, and its result to MCP."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio
from mcp.server.context import ServerRequestContext
from msgspec import structs

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call, ExecContext, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.result import Chunk, Plan, Progress, ToolResult
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.registry.export.definitions import Dialect
from toolhub_service.schema import canonical_json, strict_json

Context = ServerRequestContext[Any, Any]

META_PREFIX: Final = "toolhub/"
"""Prefix of the hub's own entries of `_meta`."""
ARTIFACT_URI: Final = "toolhub://artifacts/"

_AT_ONCE_BYTES: Final = 32 * 1024
_WORD_MAX_CHARS: Final = 128
# Pause between notifications, so that a tool that reports each row does not flood its client.
_PROGRESS_EVERY_S: Final = 0.1


# As runtime/attach_evidence.py writes it.
_CUT_MARK: Final = re.compile(r"\[cut: \d+ of \d+ items left out\]")
# As the contract has them (proto/toolhub/v1/rules.proto): an id may become a folder's name.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}", re.ASCII)
_PLAN: Final = re.compile(r"[A-Za-z0-9._-]{0,512}", re.ASCII)
_PURPOSE_MAX_CHARS: Final = 1_024
_REQUEST_ID_HEADER: Final = "toolhub-request-id"


def is_id(text: str) -> bool:
    """Return whether it is a valid id of the hub: stores are queried with no other, as over gRPC."""
    return _ID.fullmatch(text) is not None


def id_of(context: Context, name: str) -> str:
    """Return an id that the client sends in `_meta` under the hub's prefix; empty when there is no valid one."""
    value = dict(context.meta or {}).get(META_PREFIX + name)
    return value if isinstance(value, str) and is_id(value) else ""


def sent_plan(context: Context) -> str:
    """Return the plan that a program sends in `_meta`; empty when there is no valid one."""
    value = dict(context.meta or {}).get(f"{META_PREFIX}plan_digest")
    return value if isinstance(value, str) and _PLAN.fullmatch(value) else ""


def client_of(context: Context) -> str:
    """Return the client's name and version, as it reports them unverified."""
    asked = context.session.client_params
    if asked is None:
        return ""
    named = f"{asked.client_info.name} {asked.client_info.version}"
    # It becomes a label of the audit log and a line for people: no control characters, and bounded.
    if not named.isprintable():
        named = "".join(char for char in named if char.isprintable())
    return named[:_WORD_MAX_CHARS].strip()


def context_of(context: Context, principal: Principal, session_id: str) -> ExecContext:
    """Return the context. Calls of one session, or of one client without sessions, share a workspace.

    A client that opens a session for each call names the shared workspace in `_meta` or a header.
    """
    client = client_of(context)
    kept_with = session_id or f"{principal.id}\n{client}"
    sent = "" if context.request is None else context.request.headers.get(_REQUEST_ID_HEADER, "")
    named = id_of(context, "request_id") or (sent if _ID.fullmatch(sent) else "")
    # A digest, because the id becomes a folder's name, and a session's id gives access to it.
    request_id = named or f"mcp_{hashlib.sha256(kept_with.encode()).hexdigest()[:24]}"
    labels = {"entrance": "mcp", "mcp_era": context.protocol_version}
    if client:
        labels["mcp_client"] = client
    return ExecContext(request_id=request_id, session_id=id_of(context, "session_id"), labels=labels)


def purpose_of(context: Context) -> str:
    """Return the client's purpose, else that the call came by MCP, as the protocol has no field for it."""
    sent = dict(context.meta or {}).get(f"{META_PREFIX}purpose")
    if isinstance(sent, str) and 0 < len(sent) <= _PURPOSE_MAX_CHARS:
        return sent
    return f"Called over MCP by {client_of(context) or 'a client without a name'}"


def call_of(
    tool: str,
    arguments: Mapping[str, Any],
    principal: Principal,
    context: ExecContext,
    *,
    call_id: str,
    purpose: str = "",
    approval_id: str = "",
    plan_digest: str = "",
    idempotency_key: str = "",
) -> Call:
    """Return the call; never raises: invalid input is refused at step 2, answered and recorded."""
    args: JsonObject = {}
    args_error, raw = None, b""
    try:
        raw = canonical_json.dumps(dict(arguments))
    except canonical_json.NotJson as unfit:
        args_error = ToolError(kind=ErrorKind.INVALID_INPUT, message=f"The arguments are no JSON: {unfit}.")
    is_large = len(raw) > _AT_ONCE_BYTES
    if raw and not is_large:
        args, args_error = _read(raw)
    return Call(
        call_id=call_id,
        tool=tool if tool.isascii() and tool.isprintable() else on_one_line(tool),
        args=args,
        args_error=args_error,
        principal=principal,
        context=context,
        purpose=purpose,
        approval_id=approval_id,
        plan_digest=plan_digest,
        idempotency_key=idempotency_key,
        args_form=Dialect.MCP.value,
        # Searching the bytes saves most calls a traversal of their arguments; a false hit only costs that traversal.
        names_artifacts=b"$artifact" in raw,
        unread=partial(_read, raw) if is_large else None,
        unread_bytes=len(raw) if is_large else 0,
    )


def _read(raw: bytes) -> tuple[JsonObject, ToolError | None]:
    try:
        value = (strict_json.loads_bounded if len(raw) > _AT_ONCE_BYTES else strict_json.loads)(raw)
    except ToolFailure as failure:
        return {}, failure.error
    assert isinstance(value, dict)  # written from a mapping
    return value, None


# While it runs


class ProgressSink:
    """Passes the newest progress on, at most ten times a second."""

    def __init__(self) -> None:
        self._newest: Progress | None = None
        self._ready = asyncio.Event()
        self._last = -1.0

    def progress(self, progress: Progress) -> None:
        # Only the newest is kept: a slow client misses steps, and memory does not grow.
        self._newest = progress
        self._ready.set()

    def chunk(self, chunk: Chunk) -> None:
        """The result carries the whole output."""

    async def send(self, context: Context) -> None:
        """Until cancelled."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            newest = self._newest
            # The protocol requires rising values.
            if newest is not None and newest.step > self._last:
                self._last = newest.step
                message = newest.message or (f"{newest.step:g} {newest.unit}" if newest.unit else None)
                await context.session.report_progress(newest.step, newest.total, message)
            await asyncio.sleep(_PROGRESS_EVERY_S)


async def invoke(invoker: Invoker, call: Call, context: Context) -> ToolResult | Plan:
    """Make the call, report its progress, and end it with the request: recorded, before anything continues."""
    sink = ProgressSink()
    running = asyncio.create_task(invoker.invoke(call, sink))
    wants_progress = dict(context.meta or {}).get("progress_token") is not None
    telling = asyncio.create_task(sink.send(context)) if wants_progress else None
    try:
        await asyncio.wait({running})
        return running.result()
    finally:
        if telling is not None:
            telling.cancel()
        if not running.done():
            running.cancel()
            with anyio.CancelScope(shield=True):  # anyio cancels again at each await
                await asyncio.wait({running})


# The answer


def answer_of(
    answer: ToolResult | Plan, blocks: list[dict[str, Any]] | None = None, *, is_value_of_blocks: bool = False
) -> dict[str, Any]:
    """Return a CallToolResult. `blocks`: the content blocks of an upstream server, with links to artifacts;
    `is_value_of_blocks`: whether the value consists of them only."""
    assert isinstance(answer, ToolResult)  # no dry run was requested
    own = (answer.said or {}).get("_meta")
    meta: dict[str, JsonValue] = {**(own if isinstance(own, Mapping) else {}), META_PREFIX + "call_id": answer.call_id}
    for name in ("truncated", "replayed"):
        if getattr(answer, name):
            meta[META_PREFIX + name] = True
    if answer.error is not None:
        refused = error_to_dict(answer.error) if blocks is None else reported_error_to_dict(answer.error, blocks)
        return refused | {"_meta": {**meta, **refused["_meta"]}}
    if answer.job is not None:
        return job_started(answer.job.job_id, answer.job.state.value) | {"_meta": meta}
    result: dict[str, Any] = {"content": blocks, "isError": False, "resultType": "complete", "_meta": meta}
    if blocks is None:
        result["content"] = [{"type": "text", "text": text_of(answer.value)}, *map(resource_link, answer.artifacts)]
    if not is_value_of_blocks and isinstance(answer.value, dict):
        result["structuredContent"] = _without_cut_marks(answer.value) if answer.truncated else answer.value
    return result


def _without_cut_marks(value: JsonValue) -> JsonValue:
    """Return the value without items that count what was cut: clients validate it against the output schema.

    The text of the answer has them.
    """
    if isinstance(value, dict):
        return {name: _without_cut_marks(each) for name, each in value.items()}
    if isinstance(value, list):
        kept = value[:-1] if value and isinstance(value[-1], str) and _CUT_MARK.fullmatch(value[-1]) else value
        return [_without_cut_marks(each) for each in kept]
    return value


def text_of(value: JsonValue) -> str:
    return value if isinstance(value, str) else canonical_json.dumps(value).decode()


def resource_link(artifact: ArtifactRef) -> dict[str, Any]:
    """Return a link to an artifact, which `resources/read` returns to its owner."""
    return {
        "type": "resource_link",
        "uri": ARTIFACT_URI + artifact.artifact_id,
        "name": artifact.name or artifact.artifact_id,
        "mimeType": artifact.media_type or "application/octet-stream",
        "size": artifact.size_bytes,
    }


def job_started(job_id: str, state: str) -> dict[str, Any]:
    text = f"It runs as job {job_id} ({state}). Ask job_status for it, and job_result when it has ended."
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"job_id": job_id, "state": state},
        "isError": False,
        "resultType": "complete",
    }


def reported_error_to_dict(error: ToolError, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an error that a tool of an MCP server reported, with the server's own blocks and structured content."""
    details = dict(error.details)
    structured = details.pop("structuredContent", None)
    details.pop("content", None)
    refused = error_to_dict(structs.replace(error, details=details))
    refused["content"] += blocks
    if structured is not None:
        refused["structuredContent"] = structured
    return refused


def error_to_dict(error: ToolError) -> dict[str, Any]:
    """Return the error, as a text for a model and as a structure."""
    error_shown: dict[str, JsonValue] = {
        "kind": error.kind.value,
        "message": error.message,
        "retryable": error.invites_retry,
        "details": dict(error.details),
    }
    if error.invited_after_s is not None:
        error_shown["retryAfterS"] = error.invited_after_s
    if error.violations:
        error_shown["violations"] = [
            {"path": each.path, "keyword": each.keyword, "message": each.message, "hint": each.hint}
            for each in error.violations
        ]
    # Not as structuredContent: clients validate that against the tool's output schema, and would show the model
    # nothing.
    return {
        "content": [{"type": "text", "text": f"{error.kind.value}: {error.message}"}],
        "isError": True,
        "resultType": "complete",
        "_meta": {META_PREFIX + "error": error_shown},
    }
