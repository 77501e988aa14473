"""Tools of the endpoint itself: to find and call others where not all are listed, and to follow long work.

They call the same functions as the protocol's methods and the RPCs, and are not in the catalog: every call that they
make passes the nine steps, and they show only what the caller may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from msgspec import Meta, Struct

from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.job import Job
from toolhub_service.domain.source import known_to
from toolhub_service.domain.tool import Annotations, ToolState
from toolhub_service.mcp_server.calling import Answered, Calling, resume_call
from toolhub_service.mcp_server.convert_calls import Context, error_to_dict, is_id, text_of
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import RUN_PROGRAM, Mode, Offer
from toolhub_service.mcp_server.plan_confirmation import refuse_declined
from toolhub_service.mcp_server.program_stubs import NONE_FOUND, stubs_of
from toolhub_service.mcp_server.relay import Client
from toolhub_service.registry.export.definitions import mcp_hints
from toolhub_service.runtime.jobs.watch import unknown
from toolhub_service.search.filters import ToolFilter
from toolhub_service.search.listing import PageRequest, Viewer, search_tools
from toolhub_service.search.search import NO_MEANING

CALL_TOOL: Final = "call_tool"

_ACTIVE: Final = ToolFilter(states=frozenset({ToolState.ACTIVE}))
_JOB_ID: Final = Meta(description="As job_start gave it.", max_length=128)
_Tool = Annotated[str, Meta(description="Name of the tool.", min_length=1, max_length=256)]
_Arguments = Annotated[dict[str, Any], Meta(description="As the tool's input schema says.")]
_Approval = Annotated[
    str, Meta(description="Of an approval that was granted for exactly this call; usually left out.", max_length=128)
]
# Many clients give a call up after a minute.
_Wait = Annotated[float, Meta(description="Seconds to wait for the end, at most.", ge=0, le=50)]


class SearchTools(Struct, frozen=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(description="What the tool should do, in a few words; empty: all.", max_length=1_000)]
    limit: Annotated[int, Meta(description="How many tools at most.", ge=1, le=50)] = 10
    stubs: (
        Annotated[bool, Meta(description="Answer Python functions for run_program, with what they take and give.")]
        | None
    ) = None


class DescribeTool(Struct, frozen=True, forbid_unknown_fields=True):
    name: _Tool


class CallTool(Struct, frozen=True, forbid_unknown_fields=True):
    name: _Tool
    arguments: _Arguments = {}
    approval_id: _Approval = ""


def named_call(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(tool, arguments) that `call_tool` is asked for. Raises MCPError."""
    try:
        asked = msgspec.convert(dict(arguments), CallTool)
    except msgspec.ValidationError as unfit:
        raise MCPError(INVALID_PARAMS, f"{unfit}. See the input schema of {CALL_TOOL}.") from unfit
    return asked.name, asked.arguments


class JobStart(Struct, frozen=True, forbid_unknown_fields=True):
    name: _Tool
    arguments: _Arguments = {}
    approval_id: _Approval = ""


class JobStatus(Struct, frozen=True, forbid_unknown_fields=True):
    job_id: Annotated[str, _JOB_ID]
    wait_s: _Wait = 0.0


class JobResult(Struct, frozen=True, forbid_unknown_fields=True):
    job_id: Annotated[str, _JOB_ID]
    wait_s: _Wait = 30.0


class JobCancel(Struct, frozen=True, forbid_unknown_fields=True):
    job_id: Annotated[str, _JOB_ID]
    reason: Annotated[str, Meta(description="Why, for the record.", max_length=500)] = ""


class Asked(NamedTuple):
    """One call of such a tool."""

    context: Context
    principal: Principal
    session_id: str
    came_back: Answered | None
    client: Client | None = None


Run = Callable[[Any, Asked], Awaitable[dict[str, Any]]]


class OwnTool(NamedTuple):
    run: Run
    input: type[Struct]
    definition: dict[str, Any]


class OwnTools:
    def __init__(self, engine: Engine, offer: Offer, calling: Calling) -> None:
        self._engine = engine
        self._offer = offer
        self._calling = calling
        reads = Annotations(read_only=True)
        acts = Annotations(destructive=True, open_world=True)
        finding = [
            _own("search_tools", self._search, SearchTools, reads, "Find tools by what they do. The answer says "
                 "whether it is complete."),
            _own("describe_tool", self._describe, DescribeTool, reads, "A tool's description and schemas."),
            _own(CALL_TOOL, self._call, CallTool, acts, "Call a tool that search_tools or describe_tool has shown."),
        ]  # fmt: skip
        following = [
            _own("job_start", self._start, JobStart, acts, "Start a tool as a job, for work that may take longer than "
                 "a minute. Answers at once with the job's id. The job goes on without you; where an approver must "
                 "decide first, it waits and then goes on by itself."),
            _own("job_status", self._status, JobStatus, reads, "How far a job has come: its state, its latest "
                 "progress, and the approval that it waits for. Also of jobs that you began elsewhere."),
            _own("job_result", self._result, JobResult, reads, "What a job has answered, as the tool itself would "
                 "have; waits for its end for wait_s seconds. If it is not over then, ask again."),
            _own("job_cancel", self._cancel, JobCancel, Annotations(idempotent=True), "Ask a job to stop. It may take "
                 "a moment, or end otherwise if it was faster: job_status tells."),
        ]  # fmt: skip
        self._all = dict([*finding, *following])
        offer.reserve(self._all)
        self._finding = [tool.definition for _, tool in finding]
        self._following = [tool.definition for _, tool in following]

    def definitions(self, mode: Mode, principal: Principal) -> list[dict[str, Any]]:
        """Return their definitions for a list; each can be called in any mode."""
        if mode == "full":
            return self._following
        program = self._offer.program_tool(principal)
        finding = self._finding[:1] if mode == "program" else self._finding
        return [*finding, *([program] if program else []), *self._following]

    def get(self, name: str) -> OwnTool | None:
        return self._all.get(name)

    async def run(self, own: OwnTool, arguments: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
        """A CallToolResult, or an InputRequiredResult."""
        try:
            args = msgspec.convert(dict(arguments), own.input)
        except msgspec.ValidationError as unfit:
            return error_to_dict(
                ToolError(kind=ErrorKind.INPUT_SCHEMA_INVALID, message=f"{unfit}. See the input schema.")
            )
        try:
            return await own.run(args, asked)
        except ToolFailure as refused:
            return error_to_dict(refused.error)

    # Finding

    async def _search(self, args: SearchTools, asked: Asked) -> dict[str, Any]:
        engine = self._engine
        principal = asked.principal
        await engine.search.complete()
        meaning = NO_MEANING if engine.meanings is None else await engine.meanings.of(args.query)
        viewer = Viewer(
            scope=principal.id,
            allowed=lambda spec: engine.policy.could_allow(principal, spec),
            revision=(engine.policy.revision, principal.key, principal.permissions),
        )
        page = search_tools(
            engine.search,
            args.query,
            _ACTIVE,
            PageRequest(args.limit),
            viewer=viewer,
            sources=known_to(principal, engine.sources()),
            meaning=meaning,
        )
        in_stubs = self._offer.mode_for(principal) == "program" if args.stubs is None else args.stubs
        if in_stubs:
            return _text(stubs_of([hit.tool for hit in page.hits], self._offer.functions(), page))
        tools = [
            {"name": self._offer.name_of(hit.tool.name), "title": hit.tool.name, "description": hit.tool.description}
            for hit in page.hits
        ]
        more = page.total_size - len(tools)
        silent = [source.name for source in page.sources]
        found: dict[str, Any] = {
            "tools": tools,
            "total": page.total_size,
            "more": more,
            "complete": not (more or silent),
        }
        if silent:
            found["sourcesNotRead"] = silent
        notes = [page.note] if page.note else []
        if not tools:
            notes.append(NONE_FOUND)
        if notes:
            found["note"] = " ".join(notes)
        return _to_tool_result(found)

    async def _describe(self, args: DescribeTool, asked: Asked) -> dict[str, Any]:
        own = self.get(args.name)
        if own is not None:
            return _to_tool_result(own.definition)
        if args.name == RUN_PROGRAM and (program := self._offer.program_tool(asked.principal)):
            return _to_tool_result(program)
        spec = self._offer.visible(asked.principal, self._offer.tool_of(args.name))
        if spec is None:
            return error_to_dict(self._offer.absence(asked.principal, args.name))
        return _to_tool_result(self._offer.definition(asked.principal, spec).tool)

    async def _call(self, args: CallTool, asked: Asked) -> dict[str, Any]:
        call = self._calling.call(
            asked.context,
            asked.principal,
            asked.session_id,
            args.name,
            args.arguments,
            approval_id=args.approval_id,
            client=asked.client,
        )
        return await self._calling.make(asked.context, call, asked.came_back)

    # Following long work

    async def _start(self, args: JobStart, asked: Asked) -> dict[str, Any]:
        call = self._calling.call(
            asked.context, asked.principal, asked.session_id, args.name, args.arguments, args.approval_id
        )
        if asked.came_back is not None:
            if asked.came_back.declines_plan:
                return error_to_dict(refuse_declined(args.name))
            call = resume_call(call, asked.came_back)
        job = await self._calling.submit(call)
        result = job.status.result
        if result is not None and result.error is not None:  # refused: there is nothing to follow
            planned = await self._calling.confirm_plan(asked.context, call, result.error)
            if not isinstance(planned, Call):
                return planned or await self._calling.visible(call, result)
            job = await self._calling.submit(planned)
            result = job.status.result
            if result is not None and result.error is not None:
                changed = self._calling.refuse_changed_plan(planned, result.error)
                return changed or await self._calling.visible(planned, result)
        return _to_tool_result(_status_of(job))

    async def _status(self, args: JobStatus, asked: Asked) -> dict[str, Any]:
        return _to_tool_result(_status_of(await self._wait_for_job(args.job_id, args.wait_s, asked)))

    async def _result(self, args: JobResult, asked: Asked) -> dict[str, Any]:
        job = await self._wait_for_job(args.job_id, args.wait_s, asked)
        if job.status.result is None:
            return _to_tool_result(_status_of(job) | {"note": "It is not over. Ask again."})
        # To an operator, who sees every job, what belongs to its caller is not given: artifacts are not theirs.
        return await self._calling.visible(job.call._replace(principal=asked.principal), job.status.result)

    async def _cancel(self, args: JobCancel, asked: Asked) -> dict[str, Any]:
        _check_id(args.job_id)
        return _to_tool_result(_status_of(await self._engine.jobs.cancel(asked.principal, args.job_id, args.reason)))

    async def _wait_for_job(self, job_id: str, wait_s: float, asked: Asked) -> Job:
        """Return the job, when it is over or the time is. Raises ToolFailure NOT_FOUND unless it is the caller's."""
        _check_id(job_id)
        job = await self._engine.jobs.get(asked.principal, job_id)
        if job.state.is_final or not wait_s:
            return job
        try:
            async with asyncio.timeout(wait_s), aclosing(self._engine.watch.watch(job, job.status.sequence)) as entries:
                async for status in entries:
                    progress = status.progress
                    if progress is not None:
                        await asked.context.session.report_progress(
                            progress.step, progress.total, progress.message or None
                        )
        except TimeoutError:
            pass  # The time that the caller allowed; the job goes on, and its state is the answer.
        return await self._engine.jobs.get(asked.principal, job_id)


def _check_id(job_id: str) -> None:
    """Raises ToolFailure NOT_FOUND for what can be no job's."""
    if not is_id(job_id):
        raise unknown(job_id)


def _own(name: str, run: Run, input: type[Struct], annotations: Annotations, description: str) -> tuple[str, OwnTool]:
    (schema,), parts = msgspec.json.schema_components([input], ref_template="#/$defs/{name}")
    flat = {key: value for key, value in parts[input.__name__].items() if key != "title"}
    assert schema  # it refers to the part
    definition = {
        "name": name,
        "description": description,
        "inputSchema": flat,
        "annotations": mcp_hints(annotations),
    }
    return name, OwnTool(run, input, definition)


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False, "resultType": "complete"}


def _to_tool_result(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": text_of(value)}],
        "structuredContent": value,
        "isError": False,
        "resultType": "complete",
    }


def _status_of(job: Job) -> dict[str, Any]:
    status: dict[str, Any] = {"job_id": job.job_id, "state": job.state.value, "is_over": job.state.is_final}
    progress = job.status.progress
    if progress is not None:
        status["progress"] = {"step": progress.step, "total": progress.total, "message": progress.message}
    if job.approval_id:
        status["approval_id"] = job.approval_id
    return status
