"""RegistryService: for operators. `SourceService` handles sources and pins, ToolWatches follows the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from toolhub.v1 import pin_pb2, registry_service_pb2_grpc, source_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.domain.call import Role
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.source import SourceService, SourceStatus, known_to
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.foreign_text import without_controls
from toolhub_service.registry.catalog import ToolCatalog, naming_entry, unknown_tool
from toolhub_service.registry.discovery.decisions import find_pin
from toolhub_service.registry.discovery.sources import unknown_source
from toolhub_service.registry.snapshot import totals_of
from toolhub_service.search.filters import ToolFilter
from toolhub_service.search.listing import PageRequest, Viewer, list_tools
from toolhub_service.search.page_tokens import UNCOUNTED
from toolhub_service.transport.convert.records import from_pin, from_whole_pin, is_approval, to_pin_filter
from toolhub_service.transport.convert.tool import from_source, from_spec, from_totals, is_full, to_spec
from toolhub_service.transport.page_tokens import (
    PAGE_MAX,
    PAGE_MAX_BYTES,
    BytePage,
    page_limit,
    read_pin_cursor,
    write_pin_cursor,
)
from toolhub_service.transport.rpc import ServicerContext, current_principal
from toolhub_service.transport.tool_watches import ToolWatches

_WHOLE_PINS_MAX = 100
_EVERY = ToolFilter(states=frozenset())


@dataclass(slots=True)
class RegistryServicer(registry_service_pb2_grpc.RegistryServiceServicer):
    catalog: ToolCatalog
    audit: AuditLog
    clock: Clock
    sources: SourceService
    alone: bool = True
    """False when several processes share the port: a tool removed from the catalog alone would be removed in one of
    them only."""
    news: ToolWatches = field(init=False)

    def __post_init__(self) -> None:
        self.news = ToolWatches(self.catalog)

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
        spec = self.catalog.get(request.name)
        tenancy = current_principal().tenancy
        source = request.name.partition("/")[0] if spec is None else spec.source
        if tenancy is not None and not tenancy.shows(source):
            spec = None
        elif spec is not None:
            self._check_changes(source)
        is_there = tenancy is None or tenancy.owns(source)
        if not (is_there and await self.sources.unregister(request.name)):
            if not self.alone:
                raise HubFailure(
                    Reason.SEVERAL_WORKERS,
                    "This hub runs several workers, and only one of them would remove the tool. Exclude it in the "
                    "configuration of its source (`tools: {NAME: {offered: false}}`).",
                )
            if not is_there:
                raise unknown_tool(request.name)
            self.catalog.unregister(request.name)
        await self._audit(EventType.TOOL_UNREGISTERED, [spec] if spec else [])
        return pb.UnregisterToolResponse(revision=self.catalog.revision)

    async def GetSnapshot(self, request: pb.GetSnapshotRequest, context: ServicerContext) -> pb.GetSnapshotResponse:
        full = is_full(request.view, default=False)
        tools = BytePage[ToolSpec, tool_pb2.ToolSpec](
            lambda spec: from_spec(spec, full=full), tool_pb2.ToolSpec.ByteSize
        )
        asked = PageRequest(request.page_size, request.page_token, UNCOUNTED, "snapshot")
        viewer = None
        totals = self.catalog.snapshot().totals
        if (tenancy := current_principal().tenancy) is not None:
            viewer = Viewer(f"tenant {tenancy.name}", lambda spec: tenancy.shows(spec.source), knows=_any)
            totals = totals_of([spec for spec in self.catalog.all() if tenancy.shows(spec.source)])
        page = list_tools(self.catalog, _EVERY, asked, viewer=viewer, fitting=tools)
        if page.changed:
            raise HubFailure(
                Reason.CATALOG_CHANGED,
                "The catalog changed between two pages. Start again without a page_token.",
            )
        return pb.GetSnapshotResponse(
            revision=page.revision,
            tools=tools.rendered,
            totals=from_totals(totals),
            sources=self._statuses(),
            next_page_token=page.next_token,
        )

    async def ListSources(self, request: pb.ListSourcesRequest, context: ServicerContext) -> pb.ListSourcesResponse:
        return pb.ListSourcesResponse(sources=self._statuses())

    async def RefreshSources(
        self, request: pb.RefreshSourcesRequest, context: ServicerContext
    ) -> pb.RefreshSourcesResponse:
        asked = list(request.sources)
        principal = current_principal()
        if principal.tenancy is not None:
            if (hidden := next((name for name in asked if not principal.may_know_source(name)), None)) is not None:
                raise unknown_source(hidden)
            asked = asked or [status.name for status in known_to(principal, self.sources.statuses())]
        statuses = await self.sources.refresh(asked)
        return pb.RefreshSourcesResponse(sources=_statuses(statuses), revision=self.catalog.revision)

    async def ListPins(self, request: pb.ListPinsRequest, context: ServicerContext) -> pb.ListPinsResponse:
        """Newest first."""
        whole = request.view == tool_pb2.TOOL_VIEW_FULL
        limit = page_limit(request.page_size, _WHOLE_PINS_MAX if whole else PAGE_MAX)
        after = read_pin_cursor(request.page_token)
        where = to_pin_filter(request, current_principal())
        found, total = await self.sources.pins(where, after=after, limit=limit + 1)
        shown = await self._whole_pins(found[:limit]) if whole else [from_pin(pin) for pin in found[:limit]]
        token = ""
        if len(shown) < len(found):
            last = found[len(shown) - 1]
            token = write_pin_cursor((last.seen_at_unix_ms, last.source, last.tool, last.digest))
        return pb.ListPinsResponse(pins=shown, next_page_token=token, total_size=total)

    async def DecidePin(self, request: pb.DecidePinRequest, context: ServicerContext) -> pb.DecidePinResponse:
        if not self._is_there(request.source):
            find_pin((), request.source, request.tool, request.digest)
        self._check_changes(request.source)
        pin = await self.sources.decide(
            request.source,
            request.tool,
            request.digest,
            approve=is_approval(request.decision),
            by=current_principal().id,
            comment=without_controls(request.comment),
        )
        message = from_whole_pin(pin, await self.sources.approved_version(pin))
        spec = self.catalog.get(pin.tool)
        if spec is not None:
            message.tool_spec.CopyFrom(from_spec(spec, full=True))
        return pb.DecidePinResponse(pin=message, revision=self.catalog.revision)

    async def WatchTools(
        self, request: pb.WatchToolsRequest, context: ServicerContext
    ) -> AsyncIterator[pb.WatchToolsResponse]:
        full = is_full(request.view, default=False)
        async with aclosing(self.news.messages(request, current_principal(), full=full)) as messages:
            async for message in messages:
                yield message

    async def _register(self, messages: Sequence[tool_pb2.ToolSpec], *, upsert: bool) -> list[tool_pb2.ToolSpec]:
        wanted = []
        for index, message in enumerate(messages):
            with naming_entry(index, message.name, of=len(messages)):
                wanted.append(to_spec(message))
                self._check_changes(message.name.partition("/")[0])
        specs = await self.sources.register(wanted, replace=upsert, by=current_principal().id)
        await self._audit(EventType.TOOL_REGISTERED, specs)
        return [from_spec(spec, full=True) for spec in specs]

    def _statuses(self) -> list[source_pb2.SourceStatus]:
        """Return the sources that the caller may see."""
        return _statuses(known_to(current_principal(), self.sources.statuses()))

    def _is_there(self, source: str) -> bool:
        """Return whether the caller may see the source. Without tenants, or for a caller that sees all, this is not
        checked."""
        tenancy = current_principal().tenancy
        if tenancy is None or tenancy.owns(source):
            return True
        return tenancy.shows(source) and any(status.name == source for status in self.sources.statuses())

    def _check_changes(self, source: str) -> None:
        """Raises HubFailure NOT_FOUND for a source that the caller may not see, PERMISSION_DENIED for one that its
        tenant shares with others, because its operators would decide for those, too."""
        if not self._is_there(source):
            raise unknown_source(source)
        tenancy = current_principal().tenancy
        if tenancy is not None and not tenancy.owns(source):
            raise HubFailure(
                Reason.ROLE_MISSING,
                f"The source `{source}` is not your tenant's alone. Ask an operator of the whole hub, who can also "
                "list it under `sources` of your tenant in policy.yaml.",
                role=Role.OPERATOR.value,
                service="toolhub.v1.RegistryService",
            )

    async def _whole_pins(self, pins: Sequence[Pin]) -> list[pin_pb2.Pin]:
        """Return as many from the beginning as a page can hold, at least one."""
        shown: list[pin_pb2.Pin] = []
        size = 0
        for pin in pins:
            message = from_whole_pin(pin, await self.sources.approved_version(pin))
            size += message.ByteSize()
            if shown and size > PAGE_MAX_BYTES:
                break
            shown.append(message)
            await asyncio.sleep(0)  # a diff takes milliseconds; other calls run between two of them
        return shown

    async def _audit(self, type: EventType, specs: Iterable[ToolSpec]) -> None:
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


def _any(_: ToolSpec) -> bool:
    return True


def _statuses(statuses: Sequence[SourceStatus]) -> list[source_pb2.SourceStatus]:
    return [from_source(status, for_operator=True) for status in statuses]
