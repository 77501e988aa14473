"""ToolService: for agents."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from msgspec import structs

from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1 import tool_service_pb2_grpc
from toolhub_service.aio.turns import Turns
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import Clock, Invoker, Randomness
from toolhub_service.domain.result import SILENT, Chunk, Progress
from toolhub_service.domain.source import known_to
from toolhub_service.domain.storage import StorageUse
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.faces.table import Face, Faces
from toolhub_service.registry.export.definitions import Dialect, Export, describe_briefly
from toolhub_service.registry.export.stubs_typescript import PYTHON, TYPESCRIPT, StubFormat
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.storage_use import StorageReport
from toolhub_service.schema import canonical_json
from toolhub_service.search.listing import PageRequest, ToolPage, list_tools
from toolhub_service.search.page_tokens import UNCOUNTED
from toolhub_service.transport.convert.call import (
    MODES,
    answer_deadline_s,
    from_chunk,
    from_progress,
    to_call,
    wants_struct,
    write_answer,
)
from toolhub_service.transport.convert.tool import to_filter
from toolhub_service.transport.discovery import Discovery, sources_for_caller
from toolhub_service.transport.page_tokens import BytePage
from toolhub_service.transport.rpc import CALLER, ServicerContext, current_principal
from toolhub_service.transport.session import Journal, Sessions
from toolhub_service.transport.status import RpcFailure
from toolhub_service.transport.tool_watches import ToolWatches

# Events of one call on their way to its stream: bounded, and never blocking the execution.

_EVENTS_MAX = 1_024
# Initial metadata of InvokeStream: the id of the call in the audit log.
CALL_ID_HEADER = "toolhub-call-id"
# Limit for output that waits for the reader, so that a stream without a reader costs no more.
_HELD_MAX_BYTES = 1024 * 1024


class StreamSink:
    """Queue of one call's events. A slow reader loses the oldest ones; the result still contains the whole output."""

    def __init__(self) -> None:
        self._events: deque[Progress | Chunk] = deque()
        self._held_bytes = 0
        self._ready = asyncio.Event()
        self._closed = False

    def progress(self, progress: Progress) -> None:
        if self._events and isinstance(self._events[-1], Progress):
            self._events.pop()  # only the newest matters
        self._hold(progress, 0)

    def chunk(self, chunk: Chunk) -> None:
        self._hold(chunk, len(chunk.data))

    def _hold(self, event: Progress | Chunk, size_bytes: int) -> None:
        self._events.append(event)
        self._held_bytes += size_bytes
        while len(self._events) > _EVENTS_MAX or (self._held_bytes > _HELD_MAX_BYTES and len(self._events) > 1):
            self._next()
        self._ready.set()

    def _next(self) -> Progress | Chunk:
        event = self._events.popleft()
        if isinstance(event, Chunk):
            self._held_bytes -= len(event.data)
        return event

    def close(self) -> None:
        """Accept no more events: the iteration ends once all have been read."""
        self._closed = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[Progress | Chunk]:
        while True:
            while self._events:
                yield self._next()
            if self._closed:
                return
            self._ready.clear()
            await self._ready.wait()


@dataclass(slots=True)
class ToolServicer(tool_service_pb2_grpc.ToolServiceServicer):
    """Each RPC is one call of the runtime or of discovery."""

    invoker: Invoker
    discovery: Discovery
    clock: Clock
    randomness: Randomness
    session_max_in_flight: int
    """Most calls in flight of one session."""
    session_max_of_all: int
    """Most calls in flight of all sessions together, except the first of each."""
    journal: Journal
    """The log that records the calls."""
    news: ToolWatches
    server: pb.ServerInfo
    """The answer of GetServerInfo."""
    turns: Turns = field(default_factory=Turns)
    faces: Faces | None = None
    """None: the hub has no faces, only its own names."""
    storage: StorageReport | None = None
    """None: nothing that callers store is counted."""
    call_ids: CallIds = field(init=False)
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.call_ids = CallIds(self.clock, self.randomness)
        self.sessions = Sessions(
            self.invoker,
            self.clock,
            self.call_ids,
            self.journal,
            self.turns,
            max_in_flight=self.session_max_in_flight,
            max_of_all=self.session_max_of_all,
            faces=self.faces,
        )

    def _behind(self, face: str) -> Invoker:
        """Return the invoker for an RPC that names a face. Raises HubFailure FACE_NOT_FOUND."""
        return self.invoker if self.faces is None else self.faces.behind(face)

    async def Invoke(self, request: pb.InvokeRequest, context: ServicerContext) -> pb.InvokeResponse:
        caller = CALLER.get()
        call = to_call(
            request,
            caller.principal,
            call_id=self.call_ids.next(),
            deadline_s=answer_deadline_s(self.clock, context),
            mode=MODES[request.mode],
        )
        answer = await (self._behind(caller.face) if caller.face else self.invoker).invoke(call, SILENT)
        response = pb.InvokeResponse()
        write_answer(response, answer, as_struct=wants_struct(request))
        return response

    async def InvokeStream(
        self, request: pb.InvokeStreamRequest, context: ServicerContext
    ) -> AsyncIterator[pb.InvokeStreamResponse]:
        caller = CALLER.get()
        invoker = self._behind(caller.face)
        call = to_call(
            request,
            caller.principal,
            call_id=self.call_ids.next(),
            deadline_s=answer_deadline_s(self.clock, context),
            mode=MODES[request.mode],
        )
        # At once: a caller that cancels before the first event can still name the call.
        await context.send_initial_metadata(((CALL_ID_HEADER, call.call_id),))
        sink = StreamSink()
        running = asyncio.create_task(invoker.invoke(call, sink))
        running.add_done_callback(lambda _: sink.close())
        try:
            async for event in sink:
                yield (
                    pb.InvokeStreamResponse(progress=from_progress(event))
                    if isinstance(event, Progress)
                    else pb.InvokeStreamResponse(chunk=from_chunk(event))
                )
            response = pb.InvokeStreamResponse()
            write_answer(response, await running, as_struct=wants_struct(request))
            yield response
        finally:
            if not running.done():  # the stream ended early: the call ends, too, and is recorded
                running.cancel()
                await asyncio.wait([running])

    async def InvokeSession(  # type: ignore[override]  # its messages come serialised; front.py lets them pass
        self, request_iterator: AsyncIterator[pb.InvokeSessionRequest], context: ServicerContext
    ) -> AsyncIterator[bytes]:
        async with self.sessions.open_session(request_iterator, context) as session:
            while (message := await session.next_message()) is not None:
                yield message

    async def ListTools(self, request: pb.ListToolsRequest, context: ServicerContext) -> pb.ListToolsResponse:
        return self.discovery.list_tools(request, current_principal())

    async def SearchTools(self, request: pb.SearchToolsRequest, context: ServicerContext) -> pb.SearchToolsResponse:
        return await self.discovery.search_tools(request, current_principal())

    async def GetTool(self, request: pb.GetToolRequest, context: ServicerContext) -> pb.GetToolResponse:
        return self.discovery.get_tool(request, current_principal())

    async def WatchTools(
        self, request: pb.ToolServiceWatchToolsRequest, context: ServicerContext
    ) -> AsyncIterator[pb.ToolServiceWatchToolsResponse]:
        async with aclosing(self.news.visible(request, self.discovery, current_principal())) as messages:
            async for message in messages:
                yield message

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: ServicerContext
    ) -> pb.GetServerInfoResponse:
        principal = current_principal()
        roles = sorted(role.value for role in principal.roles)
        return pb.GetServerInfoResponse(
            server=self.server,
            principal=principal.id,
            roles=roles,
            tenant=principal.tenant,
            groups=sorted(principal.groups),
            storage=[_of_use(use) for use in await self._stored_by(principal)] if request.storage else (),
        )

    async def _stored_by(self, principal: Principal) -> Sequence[StorageUse]:
        return () if self.storage is None else await self.storage.of(principal)

    async def ExportTools(self, request: pb.ExportToolsRequest, context: ServicerContext) -> pb.ExportToolsResponse:
        caller = CALLER.get()
        if caller.face and self.faces is not None:
            return self._export_face(request, self.faces.face(caller.face), caller.principal)
        return export_tools(self.discovery, request, caller.principal)

    def _export_face(self, request: pb.ExportToolsRequest, face: Face, principal: Principal) -> pb.ExportToolsResponse:
        """Return the face's tools that can run now, in the order of its table: one page, without a filter."""
        if request.format not in _FACE_FORMATS:
            wrong = (("format", "must be OPENAI, ANTHROPIC or MCP for the tools of a face"),)
            raise RpcFailure(Reason.MALFORMED_REQUEST, f"format {wrong[0][1]}.", field_violations=wrong)
        catalog = self.discovery.catalog
        policy = self.discovery.policy
        exporter = self.discovery.exporter

        def can_run(tool: str) -> ToolSpec | None:
            spec = catalog.get(tool)
            is_offered = spec is not None and spec.state is ToolState.ACTIVE and policy.could_allow(principal, spec)
            return spec if is_offered else None

        shown = {row.name: spec for row in face.tools.values() if (spec := row.tool_for_model(can_run)) is not None}
        dialect = DIALECTS[request.format]
        definitions = [exporter.definition(dialect, name, describe_briefly(spec)) for name, spec in shown.items()]
        return pb.ExportToolsResponse(
            tools_json=canonical_json.dumps(definitions),
            names={name: spec.name for name, spec in shown.items()},
            total_size=len(shown),
            revision=catalog.revision,
        )


def _of_use(use: StorageUse) -> pb.StorageUse:
    return pb.StorageUse(
        kind=use.kind.value,
        used_bytes=use.used_bytes,
        soft_bytes=use.soft_bytes,
        max_bytes=use.bound.max_bytes,
        limit=use.bound.limit,
        tenant=use.tenant,
    )


# ExportTools: tools in the format of a model's interface, or as functions of programs.

_STUBS: dict[int, StubFormat] = {
    pb.EXPORT_FORMAT_PYTHON_STUBS: PYTHON,
    pb.EXPORT_FORMAT_TYPESCRIPT: TYPESCRIPT,
}
DIALECTS: dict[int, Dialect] = {
    pb.EXPORT_FORMAT_OPENAI: Dialect.OPENAI,
    pb.EXPORT_FORMAT_ANTHROPIC: Dialect.ANTHROPIC,
    pb.EXPORT_FORMAT_MCP: Dialect.MCP,
    pb.EXPORT_FORMAT_OPENAI_STRICT: Dialect.OPENAI_STRICT,
    pb.EXPORT_FORMAT_GEMINI: Dialect.GEMINI,
}
# Arguments for a face are translated by its table, and those of other forms by the schema of the hub's tool.
_FACE_FORMATS = frozenset({pb.EXPORT_FORMAT_OPENAI, pb.EXPORT_FORMAT_ANTHROPIC, pb.EXPORT_FORMAT_MCP})


def export_tools(discovery: Discovery, request: pb.ExportToolsRequest, principal: Principal) -> pb.ExportToolsResponse:
    """Return a page of exported tools. Raises HubFailure INVALID_ARGUMENT for a bad page."""
    stubs = _STUBS.get(request.format)
    if stubs is not None:
        return _export_stubs(discovery, request, principal, stubs)
    dialect = DIALECTS[request.format]
    may_need_plan = partial(discovery.policy.could_require_plan, principal)
    tools = BytePage[ToolSpec, _Exported](
        lambda spec: _export_one_tool(discovery.exporter.export(dialect, [spec], may_need_plan)), _size_of
    )
    page = _export_page(discovery, request, principal, dialect.value, tools)
    definitions = b"[" + b",".join(tool.definition_json for tool in tools.rendered) + b"]"
    return _export(page, principal, {tool.exported: tool.name for tool in tools.rendered}, definitions)


def _export_stubs(
    discovery: Discovery, request: pb.ExportToolsRequest, principal: Principal, stubs: StubFormat
) -> pb.ExportToolsResponse:
    names = discovery.exporter.functions()
    tools = BytePage[ToolSpec, ToolSpec](
        lambda spec: spec, lambda spec: len(stubs.function(spec, names[spec.name].function).encode())
    )
    page = _export_page(discovery, request, principal, stubs.name, tools)
    named = {str(names[spec.name]): spec.name for spec in tools.rendered}
    return _export(page, principal, named, b"[]", stubs.whole(tools.rendered, names))


def _export_page(
    discovery: Discovery,
    request: pb.ExportToolsRequest,
    principal: Principal,
    form: str,
    tools: BytePage[ToolSpec, Any],
) -> ToolPage:
    """Return the tools offered to a model: only ACTIVE ones that policy could allow."""
    viewer = discovery.viewer(principal)
    return list_tools(
        discovery.catalog,
        to_filter(request.filter),
        PageRequest(request.page_size, request.page_token, UNCOUNTED, f"export {form}"),
        viewer=structs.replace(viewer, allowed=lambda spec: spec.state is ToolState.ACTIVE and viewer.allowed(spec)),
        sources=known_to(principal, discovery.sources()),
        fitting=tools,
    )


def _export(
    page: ToolPage, principal: Principal, names: dict[str, str], definitions: bytes, text: str = ""
) -> pb.ExportToolsResponse:
    return pb.ExportToolsResponse(
        tools_json=definitions,
        text=text,
        names=names,
        total_size=page.total_size,
        sources=sources_for_caller(page.sources, principal),
        revision=page.revision,
        next_page_token=page.next_token,
    )


class _Exported(NamedTuple):
    """One tool in a model's format."""

    exported: str
    name: str
    definition_json: bytes


def _export_one_tool(export: Export) -> _Exported:
    """Return the export's only tool."""
    ((exported, name),) = export.names.items()
    return _Exported(exported, name, canonical_json.dumps(export.tools[0]))


def _size_of(tool: _Exported) -> int:
    return len(tool.definition_json) + len(tool.exported) + len(tool.name)
