"""RegistryService: what operators use. Sources and pins are the desk's, changes of the catalog ToolNews's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import registry_service_pb2_grpc, source_pb2, tool_pb2
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.source import SourceStatus
from toolhub_service.domain.source_ports import SourceDesk
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState
from toolhub_service.registry.catalog import ToolCatalog, ToolReport
from toolhub_service.registry.names import CORE_NAMESPACE
from toolhub_service.transport.convert.discovery import from_snapshot, from_source, is_full
from toolhub_service.transport.convert.tool import from_spec, to_spec
from toolhub_service.transport.pin_pages import PinPages
from toolhub_service.transport.rpc import ServicerContext, current_principal
from toolhub_service.transport.tool_watch import ToolNews

_SOURCED = frozenset({ToolKind.MCP, ToolKind.LANGCHAIN})
"""Kinds that only a source can offer: without one nobody knows where such a tool runs."""


@dataclass(slots=True)
class RegistryServicer(registry_service_pb2_grpc.RegistryServiceServicer):
    catalog: ToolCatalog
    audit: AuditLog
    clock: Clock
    desk: SourceDesk
    adapted: Collection[ToolKind]
    """Kinds of tools that an adapter runs; a tool of another kind is kept as UNAVAILABLE until there is one."""
    alone: bool = True
    """False when several processes share the port: a registration would reach one of them only."""
    news: ToolNews = field(init=False)

    def __post_init__(self) -> None:
        self.news = ToolNews(self.catalog)

    async def RegisterTool(self, request: pb.RegisterToolRequest, context: ServicerContext) -> pb.RegisterToolResponse:
        (registered,) = await self._register([request.tool], upsert=request.upsert)
        return pb.RegisterToolResponse(tool=registered, revision=self.catalog.revision)

    async def RegisterTools(
        self, request: pb.RegisterToolsRequest, context: ServicerContext
    ) -> pb.RegisterToolsResponse:
        registered = await self._register(request.tools, upsert=request.upsert)
        return pb.RegisterToolsResponse(tools=registered, revision=self.catalog.revision)

    async def UnregisterTool(
        self, request: pb.UnregisterToolRequest, context: ServicerContext
    ) -> pb.UnregisterToolResponse:
        self._check_alone()
        spec = self.catalog.get(request.name)
        self.catalog.unregister(request.name)
        await self._remember(EventType.TOOL_UNREGISTERED, [spec] if spec else [])
        return pb.UnregisterToolResponse(revision=self.catalog.revision)

    async def GetSnapshot(self, request: pb.GetSnapshotRequest, context: ServicerContext) -> pb.GetSnapshotResponse:
        response = from_snapshot(self.catalog.snapshot(), full=is_full(request.view, default=False))
        response.sources.extend(_told(self.desk.statuses()))
        return response

    async def ListSources(self, request: pb.ListSourcesRequest, context: ServicerContext) -> pb.ListSourcesResponse:
        return pb.ListSourcesResponse(sources=_told(self.desk.statuses()))

    async def RefreshSources(
        self, request: pb.RefreshSourcesRequest, context: ServicerContext
    ) -> pb.RefreshSourcesResponse:
        statuses = await self.desk.refresh(list(request.sources))
        return pb.RefreshSourcesResponse(sources=_told(statuses), revision=self.catalog.revision)

    async def ListPins(self, request: pb.ListPinsRequest, context: ServicerContext) -> pb.ListPinsResponse:
        return await PinPages(self.desk, self.catalog).page(request)

    async def DecidePin(self, request: pb.DecidePinRequest, context: ServicerContext) -> pb.DecidePinResponse:
        return await PinPages(self.desk, self.catalog).decided(request, by=current_principal().id)

    async def WatchTools(
        self, request: pb.WatchToolsRequest, context: ServicerContext
    ) -> AsyncIterator[pb.WatchToolsResponse]:
        async with aclosing(self.news.told(request, full=is_full(request.view, default=False))) as messages:
            async for message in messages:
                yield message

    async def _register(self, messages: Iterable[tool_pb2.ToolSpec], *, upsert: bool) -> list[tool_pb2.ToolSpec]:
        self._check_alone()
        specs = [self._runnable(to_spec(message)) for message in messages]
        self._check_unsourced(specs)
        report = self.catalog.register_all(specs, replace=upsert)
        if not report.applied:
            raise _refused(report.refused)
        await self._remember(EventType.TOOL_REGISTERED, specs)
        return [from_spec(spec, full=True) for spec in specs]

    def _runnable(self, spec: ToolSpec) -> ToolSpec:
        """The built-in adapter runs only what it was started with, sources theirs; other kinds need an adapter."""
        if spec.kind in self.adapted and spec.kind is not ToolKind.CORE and spec.kind not in _SOURCED:
            return spec
        reason = f"no adapter of this hub runs {spec.kind.value} tools that are registered over the wire"
        return replace(spec, state=ToolState.UNAVAILABLE, state_reason=reason)

    def _check_unsourced(self, specs: Iterable[ToolSpec]) -> None:
        """What a source offers is read from it and pinned; nobody may slip a definition in under its name."""
        sources = {status.name for status in self.desk.statuses()} - {CORE_NAMESPACE}  # the catalog guards that
        for spec in specs:
            owner = spec.name.partition("/")[0]
            if owner in sources or (owner := spec.source) in sources:
                raise HubFailure(
                    HubStatus.PERMISSION_DENIED,
                    "SOURCE_OWNS_NAME",
                    f"{spec.name} would stand among the tools of the source {owner!r}, which are read from it alone: "
                    "choose another namespace and leave `source` empty.",
                    tool=spec.name,
                    source=owner,
                )

    def _check_alone(self) -> None:
        if not self.alone:
            raise HubFailure(
                HubStatus.FAILED_PRECONDITION,
                "SEVERAL_WORKERS",
                "This hub runs several workers and a registration would reach one only: configure the tool.",
            )

    async def _remember(self, type: EventType, specs: Iterable[ToolSpec]) -> None:
        principal = current_principal()
        for spec in specs:
            await self.audit.append_durably(
                Event(
                    type=type,
                    at_unix_ms=self.clock.unix_ms(),
                    principal=principal.id,
                    tool=spec.name,
                    tool_digest=spec.digest,
                    outcome="ok",
                )
            )


def _refused(reports: Sequence[ToolReport]) -> HubFailure:
    """The first refusal, which names its tool; all or nothing was asked for."""
    first = reports[0].refusal
    assert first is not None  # a refused report carries its refusal
    more = f" ({len(reports) - 1} more were refused; nothing was registered.)" if len(reports) > 1 else ""
    message = first.message + more
    return HubFailure(first.status, first.reason, message, retry_after_s=first.retry_after_s, **first.metadata)


def _told(statuses: Sequence[SourceStatus]) -> list[source_pb2.SourceStatus]:
    return [from_source(status, for_operator=True) for status in statuses]
