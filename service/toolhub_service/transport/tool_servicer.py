"""ToolService: what agents use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1 import tool_service_pb2_grpc
from toolhub_service.domain.call import Call
from toolhub_service.domain.plan import Plan
from toolhub_service.domain.ports import Clock, Invoker, Randomness
from toolhub_service.domain.progress import Chunk, Progress
from toolhub_service.domain.result import ToolResult
from toolhub_service.runtime.sinks import SILENT
from toolhub_service.transport.call_ids import CallIds
from toolhub_service.transport.convert.call import AsksForCall, to_call, wants_struct
from toolhub_service.transport.convert.result import from_chunk, from_plan, from_progress, write_result
from toolhub_service.transport.deadlines import answer_deadline_s
from toolhub_service.transport.discovery import Discovery
from toolhub_service.transport.rpc import ServicerContext, current_principal
from toolhub_service.transport.session_terms import MAX_IN_FLIGHT, MAX_OF_ALL, NO_JOURNAL, Journal
from toolhub_service.transport.sessions import Sessions
from toolhub_service.transport.stream_sink import StreamSink

Response = TypeVar("Response", pb.InvokeResponse, pb.InvokeStreamResponse)


@dataclass(slots=True)
class ToolServicer(tool_service_pb2_grpc.ToolServiceServicer):
    """Every RPC is one call of the runtime or of discovery."""

    invoker: Invoker
    discovery: Discovery
    clock: Clock
    randomness: Randomness
    session_max_in_flight: int = MAX_IN_FLIGHT
    """Calls of one session."""
    session_max_of_all: int = MAX_OF_ALL
    """Calls of all sessions together, but for the first of each."""
    journal: Journal = NO_JOURNAL
    """Where the calls are recorded."""
    call_ids: CallIds = field(init=False)
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.call_ids = CallIds(self.clock, self.randomness)
        self.sessions = Sessions(
            self.invoker,
            self.clock,
            self.call_ids,
            self.journal,
            max_in_flight=self.session_max_in_flight,
            max_of_all=self.session_max_of_all,
        )

    async def Invoke(self, request: pb.InvokeRequest, context: ServicerContext) -> pb.InvokeResponse:
        answer = await self.invoker.invoke(self._call(request, context), SILENT)
        return _answered(pb.InvokeResponse(), answer, as_struct=wants_struct(request))

    async def InvokeStream(
        self, request: pb.InvokeStreamRequest, context: ServicerContext
    ) -> AsyncIterator[pb.InvokeStreamResponse]:
        sink = StreamSink()
        running = asyncio.create_task(self.invoker.invoke(self._call(request, context), sink))
        running.add_done_callback(lambda _: sink.close())
        try:
            async for event in sink:
                yield _stream_event(event)
            yield _answered(pb.InvokeStreamResponse(), await running, as_struct=wants_struct(request))
        finally:
            await _cancelled(running)

    async def InvokeSession(  # type: ignore[override]  # its messages come serialised; interceptors/stack.py lets them pass
        self, request_iterator: AsyncIterator[pb.InvokeSessionRequest], context: ServicerContext
    ) -> AsyncIterator[bytes]:
        async with self.sessions.opened(request_iterator, context) as session:
            while (message := await session.next_message()) is not None:
                yield message

    async def ListTools(self, request: pb.ListToolsRequest, context: ServicerContext) -> pb.ListToolsResponse:
        return self.discovery.list_tools(request, current_principal())

    async def SearchTools(self, request: pb.SearchToolsRequest, context: ServicerContext) -> pb.SearchToolsResponse:
        return await self.discovery.search_tools(request, current_principal())

    async def GetTool(self, request: pb.GetToolRequest, context: ServicerContext) -> pb.GetToolResponse:
        return self.discovery.get_tool(request, current_principal())

    async def ExportTools(self, request: pb.ExportToolsRequest, context: ServicerContext) -> pb.ExportToolsResponse:
        return self.discovery.export_tools(request, current_principal())

    def _call(self, request: AsksForCall, context: ServicerContext) -> Call:
        deadline_s = answer_deadline_s(self.clock, context)
        return to_call(request, current_principal(), call_id=self.call_ids.next(), deadline_s=deadline_s)


def _stream_event(event: Progress | Chunk) -> pb.InvokeStreamResponse:
    if isinstance(event, Progress):
        return pb.InvokeStreamResponse(progress=from_progress(event))
    return pb.InvokeStreamResponse(chunk=from_chunk(event))


def _answered(response: Response, answer: ToolResult | Plan, *, as_struct: bool) -> Response:
    if isinstance(answer, Plan):
        response.plan.CopyFrom(from_plan(answer, as_struct=as_struct))
    else:
        write_result(response.result, answer, as_struct=as_struct)
    return response


async def _cancelled(running: asyncio.Task[Any]) -> None:
    """End the call when its stream ends early; wait until it has been recorded."""
    if not running.done():
        running.cancel()
        await asyncio.wait([running])
