"""Jobs as the protocol's tasks: the extension of 2026-07-28 (SEP-2663), and the tasks of 2025-11-25 (SEP-1686).

A task is a job of the hub, its id the job's: what `job_start` and the RPCs start can be followed here, and the other
way round. Only the principal who started it can see it; an unknown id and another principal's get the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PaginatedRequestParams,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.result import FINAL_STATES, JobState, ToolResult
from toolhub_service.mcp_server.convert_calls import Context, is_id
from toolhub_service.mcp_server.cursors import Cursors
from toolhub_service.mcp_server.elicitation import Prompt, how_to_approve
from toolhub_service.mcp_server.engine import Engine

EXTENSION: Final = "io.modelcontextprotocol/tasks"
OLDER_VERSION: Final = "2025-11-25"
"""The only version of the older protocol that has tasks."""
RELATED: Final = "io.modelcontextprotocol/related-task"

_LISTEN: Final = "subscriptions/listen"
_MESSAGE_MAX_CHARS: Final = 500
_PAGE: Final = 50
# (for tasks that have lasted so many seconds, milliseconds between questions)
_POLL_MS: Final = ((10.0, 500), (120.0, 2_000))
_POLL_SLOW_MS: Final = 5_000
# Of questions that a client has answered while its task still waits.
_ANSWERED_MAX: Final = 10_000


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


def declares_tasks(context: Context) -> bool:
    """Return whether this very request declares the extension: nothing is inferred from earlier ones."""
    known = context.session.client_capabilities
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in ((known and known.extensions) or {})


def asks_for_task(context: Context) -> bool:
    """Return whether a `tools/call` of 2025-11-25 is to be answered with a task."""
    is_call = context.method == "tools/call" and context.protocol_version == OLDER_VERSION
    return is_call and isinstance((context.params or {}).get("task"), Mapping)


def asks_for_task_updates(context: Context) -> bool:
    """Return whether a request to listen names tasks. The hub sends no news of them, so that a client polls each."""
    notifications = (context.params or {}).get("notifications")
    return context.method == _LISTEN and isinstance(notifications, Mapping) and "taskIds" in notifications


Visible = Callable[[Call, ToolResult], Awaitable[dict[str, Any]]]
"""(call, its result) -> the CallToolResult that the caller may see."""


class Tasks:
    """Handlers of `tasks/…`, and the answer to a call that has become a task."""

    def __init__(self, engine: Engine, principal_of: Callable[[Context], Principal], visible: Visible) -> None:
        self._engine = engine
        self._principal_of = principal_of
        self._visible = visible
        self._cursors = Cursors(engine.state_key)
        self._answered: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add_to(self, server: Server[Any]) -> None:
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)
        server.add_request_handler("tasks/update", UpdateParams, self.update)
        server.add_request_handler("tasks/result", TaskParams, self.result)
        server.add_request_handler("tasks/list", PaginatedRequestParams, self.list)
        server.extensions = {**server.extensions, EXTENSION: {}}

    def job_to_created(self, context: Context, job: Job) -> dict[str, Any]:
        """Return a CreateTaskResult. The job is in the store already."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {**self._job_to_task(job), "resultType": "task"}
        return {"task": {**self._older(job), "status": "working"}}  # it must begin so

    # The extension of 2026-07-28, and what it shares with 2025-11-25

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        job = await self._of_caller(context, params)
        result = job.status.result
        if context.protocol_version == OLDER_VERSION:
            task = self._older(job)
            if task["status"] == "failed" and result is not None:
                task["statusMessage"] = _first_text(await self._visible(job.call, result))
            return task
        task = self._job_to_task(job)
        if task["status"] == "completed" and result is not None:
            task["result"] = await self._visible(job.call, result)
        prompt = self._prompt(job)
        if prompt is not None and prompt.mode(context) and (job.job_id, _key(prompt)) not in self._answered:
            task |= {"status": "input_required", "inputRequests": {_key(prompt): prompt.request(context)}}
        return {**task, "resultType": "complete"}

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        job = await self._of_caller(context, params)
        is_older = context.protocol_version == OLDER_VERSION
        # 2025-11-25 requires an error for a task that has ended; the newer extension acknowledges it.
        if is_older and (job.state.is_final or job.cancel_reason is not None):
            raise MCPError(INVALID_PARAMS, f"Cannot cancel task: it is {self._older(job)['status']} already.")
        job = await self._cancel_job(job, "The client cancelled its task.")
        return self._older(job) if is_older else {}

    async def update(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        """Take a user's answer to the question of a waiting task. It never approves anything."""
        job = await self._of_caller(context, params, is_newer=True)
        prompt = self._prompt(job)
        response = params.input_responses.get(_key(prompt)) if prompt is not None else None
        action = response.get("action") if isinstance(response, dict) else None
        if prompt is not None and action is not None:
            self._answered[job.job_id, _key(prompt)] = None
            if len(self._answered) > _ANSWERED_MAX:
                self._answered.popitem(last=False)
            if action == "decline":
                await self._cancel_job(job, "The client's user declined.")
        return {}

    # Only 2025-11-25

    async def result(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Return what the call would have answered, once it is over: the request stays open until then."""
        job = await self._of_caller(context, params, is_newer=False)
        while job.status.result is None:
            async with aclosing(self._engine.watch.watch(job, job.status.sequence)) as entries:
                async for _ in entries:
                    pass
            job = await self._engine.jobs.get(job.call.principal, job.job_id)
        answer = await self._visible(job.call, job.status.result)
        return {**answer, "_meta": {**answer.get("_meta", {}), RELATED: {"taskId": job.job_id}}}

    async def list(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        _check_version(context, is_newer=False)
        principal = self._principal_of(context)
        where = JobFilter(principal=principal.id)
        # One more than a page shows whether another one follows.
        cursor = self._cursors.open(params.cursor, principal, "tasks")
        jobs, _ = await self._engine.jobs.page(principal, where, after=_cursor(cursor), limit=_PAGE + 1)
        listed: dict[str, Any] = {"tasks": [self._older(job) for job in jobs[:_PAGE]]}
        if len(jobs) > _PAGE:
            listed["nextCursor"] = f"{jobs[_PAGE - 1].created_at_unix_ms}:{jobs[_PAGE - 1].job_id}"
        return self._cursors.seal(listed, principal, "tasks")

    # Whose, and how it looks

    async def _of_caller(self, context: Context, params: TaskParams, *, is_newer: bool | None = None) -> Job:
        """Return the caller's own job. Raises the same MCPError for an unknown id and for another principal's."""
        _check_version(context, is_newer=is_newer)
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            check_declared(context)
            _check_routing(context, params.task_id)
        principal = self._principal_of(context)
        try:
            job = await self._engine.jobs.get(principal, params.task_id) if is_id(params.task_id) else None
        except ToolFailure as refused:
            if refused.error.kind is not ErrorKind.NOT_FOUND:
                raise
            job = None
        # Operators see every job, but not as a task: its result is for its caller.
        if job is None or job.call.principal.id != principal.id:
            raise MCPError(INVALID_PARAMS, "Failed to retrieve task: there is none of yours with this id.")
        return job

    async def _cancel_job(self, job: Job, reason: str) -> Job:
        return await self._engine.jobs.cancel(job.call.principal, job.job_id, reason)

    def _prompt(self, job: Job) -> Prompt | None:
        """Return what a client may ask its user about this task; None: it waits for nobody."""
        if job.state is not JobState.AWAITING_APPROVAL:
            return None
        url = self._engine.approval_page(job.approval_id)
        message = f"{job.call.tool} waits for approval {job.approval_id}. {how_to_approve(job.approval_id, url)}."
        return Prompt(job.approval_id, f"{message} It goes on by itself then; decline to give it up.", url)

    def _job_to_task(self, job: Job) -> dict[str, Any]:
        """Return a Task of 2026-07-28, in which a failed call is completed: `failed` is for protocol errors."""
        over = job.expires_at_unix_ms or job.deadline_unix_ms + self._engine.job_keep_ms
        task: dict[str, Any] = {
            "taskId": job.job_id,
            "status": _status(job),
            "createdAt": _iso(job.created_at_unix_ms),
            "lastUpdatedAt": _iso(job.status.at_unix_ms),
            "ttlMs": max(0, over - job.created_at_unix_ms),
            "pollIntervalMs": self._poll_ms(job),
        }
        prompt = self._prompt(job)
        message = prompt.message if prompt is not None else _message(job)
        if message:
            task["statusMessage"] = excerpt(message, _MESSAGE_MAX_CHARS)
        return task

    def _older(self, job: Job) -> dict[str, Any]:
        """Return a Task of 2025-11-25: a failed call is failed, and a cancelled one stays cancelled, whatever its
        result."""
        names = {"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}
        task = {names.get(name, name): value for name, value in self._job_to_task(job).items()}
        if job.cancel_reason is not None:
            task["status"] = "cancelled"
        elif job.state in FINAL_STATES - {JobState.SUCCEEDED, JobState.CANCELLED}:
            task["status"] = "failed"
        return task

    def _poll_ms(self, job: Job) -> int:
        if job.state is JobState.AWAITING_APPROVAL:
            return _POLL_SLOW_MS
        lasted_s = (self._engine.clock.unix_ms() - job.created_at_unix_ms) / 1_000
        return next((poll_ms for until_s, poll_ms in _POLL_MS if lasted_s < until_s), _POLL_SLOW_MS)


def check_declared(context: Context) -> None:
    """Raise MCPError when the request does not declare the extension, as the extension requires."""
    if not declares_tasks(context):
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Missing required client capability: declare the extension {EXTENSION}, or ask job_status.",
            {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )


def _check_version(context: Context, *, is_newer: bool | None) -> None:
    """`is_newer`: whether the method exists in the newer protocol or in the older one; None: in both."""
    version = context.protocol_version
    is_known = (is_newer is not False and version in MODERN_PROTOCOL_VERSIONS) or (
        is_newer is not True and version == OLDER_VERSION
    )
    if not is_known:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)


def _check_routing(context: Context, task_id: str) -> None:
    """Check that a proxy's routing key equals what is requested."""
    header = None if context.request is None else context.request.headers.get(MCP_NAME_HEADER)
    if header is not None and decode_header_value(header) != task_id:
        raise MCPError(HEADER_MISMATCH, "The Mcp-Name header is not the taskId of the request.")


def _status(job: Job) -> str:
    if not job.state.is_final:
        return "working"
    return "cancelled" if job.state is JobState.CANCELLED else "completed"


def _message(job: Job) -> str:
    if job.state is JobState.QUEUED:
        return "It waits for its turn."
    if job.state is JobState.CANCELLING:
        return "It is asked to stop."
    progress = job.status.progress
    if job.state.is_final or progress is None:
        return ""
    total = "" if progress.total is None else f" of {progress.total:g}"
    step = f"{progress.step:g}{total} {progress.unit}".strip()
    return f"{progress.message} ({step})" if progress.message else step


def _key(prompt: Prompt) -> str:
    """Of a question: a task asks each approval's once."""
    return f"approval-{prompt.approval_id}"


def _first_text(answer: Mapping[str, Any]) -> str:
    return excerpt(str(answer["content"][0]["text"]), _MESSAGE_MAX_CHARS)


def _cursor(cursor: str | None) -> tuple[int, str] | None:
    """Return the position of a cursor. Raises MCPError."""
    if not cursor:
        return None
    created_at, _, job_id = cursor.partition(":")
    # `isdigit` alone accepts digits of other scripts, and a longer number is no time that stores can hold.
    if not (created_at.isascii() and created_at.isdigit() and len(created_at) < 16 and is_id(job_id)):
        raise MCPError(INVALID_PARAMS, "The cursor is none of this list: leave it out.")
    return int(created_at), job_id


def _iso(unix_ms: int) -> str:
    """Return RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
