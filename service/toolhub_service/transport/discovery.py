"""Finding tools: lists, searches, single tools and exports, as far as the caller's policy lets it see.

Operators see besides where a tool runs, what is quarantined, and why a source is silent. To anybody else a quarantined
tool shows nothing: its words are the very thing that nobody has accepted yet, and a model would read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolhub.v1 import tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.reasons import Reason
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.embedding import ToolMeanings
from toolhub_service.registry.export import Dialect, Exporter
from toolhub_service.registry.listing import PageRequest, Viewer, list_tools, search_tools, silent_sources
from toolhub_service.registry.search import NO_MEANING, ToolFilter, ToolSearch
from toolhub_service.schema import canonical_json
from toolhub_service.transport.convert.tool import from_hit, from_source, from_spec, is_full, to_filter

_DIALECTS: dict[int, Dialect] = {
    pb.EXPORT_FORMAT_OPENAI: Dialect.OPENAI,
    pb.EXPORT_FORMAT_ANTHROPIC: Dialect.ANTHROPIC,
    pb.EXPORT_FORMAT_MCP: Dialect.MCP,
}


_SILENT = {
    SourceState.DOWN: "It cannot be read at the moment; an operator sees why.",
    SourceState.PARTIAL: "Not all of its tools could be read; an operator sees which and why.",
}


@dataclass(slots=True)
class Discovery:
    catalog: ToolCatalog
    search: ToolSearch
    exporter: Exporter
    policy: PolicySource
    sources: Callable[[], Sequence[SourceStatus]]
    meanings: ToolMeanings | None = None
    """None: search goes by words and use."""

    def list_tools(self, request: pb.ListToolsRequest, principal: Principal) -> pb.ListToolsResponse:
        page = list_tools(
            self.catalog,
            _meant(request.filter, principal),
            PageRequest(request.page_size, request.page_token),
            viewer=self._viewer(principal),
            sources=self.sources(),
        )
        full = is_full(request.view, default=False)
        return pb.ListToolsResponse(
            tools=[from_spec(spec, full=full, for_operator=_oversees(principal)) for spec in page.tools],
            next_page_token=page.next_token,
            total_size=page.total_size,
            sources=_sources(page.sources, principal),
            revision=page.revision,
        )

    async def search_tools(self, request: pb.SearchToolsRequest, principal: Principal) -> pb.SearchToolsResponse:
        await self.search.complete()
        meaning = NO_MEANING if self.meanings is None else await self.meanings.of(request.query)
        page = search_tools(
            self.search,
            request.query,
            _meant(request.filter, principal),
            PageRequest(request.page_size, request.page_token),
            viewer=self._viewer(principal),
            sources=self.sources(),
            meaning=meaning,
        )
        full = is_full(request.view, default=False)
        return pb.SearchToolsResponse(
            hits=[from_hit(hit, full=full, for_operator=_oversees(principal)) for hit in page.hits],
            next_page_token=page.next_token,
            total_size=page.total_size,
            sources=_sources(page.sources, principal),
            revision=page.revision,
            ranked_by=page.ranked_by,
            note=page.note,
        )

    def get_tool(self, request: pb.GetToolRequest, principal: Principal) -> pb.GetToolResponse:
        """NOT_FOUND also for a tool the caller may not know of. Raises HubFailure FAILED_PRECONDITION for one that is
        quarantined, unless an operator asks."""
        spec = self.catalog.get(request.name)
        if spec is None or not self.policy.could_allow(principal.id, spec):
            raise HubFailure(
                Reason.TOOL_NOT_FOUND,
                f"There is no tool named {request.name!r} that you could call; SearchTools finds one by what it does.",
                tool=request.name,
            )
        if spec.state is ToolState.QUARANTINED and not _oversees(principal):
            raise HubFailure(
                Reason.TOOL_QUARANTINED,
                f"{spec.name} waits for an operator and is shown to nobody else until then. Use another tool.",
                tool=spec.name,
            )
        return pb.GetToolResponse(tool=from_spec(spec, full=True, for_operator=_oversees(principal)))

    def export_tools(self, request: pb.ExportToolsRequest, principal: Principal) -> pb.ExportToolsResponse:
        where = to_filter(request.filter)
        export = self.exporter.export(_DIALECTS[request.format], self._callable(where, principal))
        return pb.ExportToolsResponse(
            tools_json=canonical_json.dumps(list(export.tools)),
            names=export.names,
            total_size=len(export.tools),
            sources=_sources(silent_sources(self.sources(), where), principal),
            revision=export.revision,
        )

    def _callable(self, where: ToolFilter, principal: Principal) -> list[ToolSpec]:
        """A model is only offered what it can call: ACTIVE tools that policy could allow."""
        return [
            spec
            for spec in self.catalog.all()
            if spec.state is ToolState.ACTIVE and where.matches(spec) and self.policy.could_allow(principal.id, spec)
        ]

    def _viewer(self, principal: Principal) -> Viewer:
        return Viewer(
            scope=principal.id,
            allowed=lambda spec: self.policy.could_allow(principal.id, spec),
            revision=self.policy.revision,
        )


def _oversees(principal: Principal) -> bool:
    return Role.OPERATOR in principal.roles


def _meant(message: tool_pb2.ToolFilter, principal: Principal) -> ToolFilter:
    """Raises HubFailure PERMISSION_DENIED for who asks for nothing but what operators alone may see."""
    where = to_filter(message)
    if _oversees(principal) or ToolState.QUARANTINED not in where.states:
        return where
    states = where.states - {ToolState.QUARANTINED}
    if not states:
        lacks = f"{principal.id} lacks the role 'operator', which alone sees quarantined tools."
        raise HubFailure(Reason.ROLE_MISSING, lacks, role=Role.OPERATOR.value)
    return replace(where, states=states)


def _sources(statuses: Sequence[SourceStatus], principal: Principal) -> list[Any]:
    """Why a source is silent is said in its own words, or with paths of the hub's machine: to operators only."""
    told = statuses if _oversees(principal) else [_told_to_all(status) for status in statuses]
    return [from_source(status, for_operator=False) for status in told]


def _told_to_all(status: SourceStatus) -> SourceStatus:
    return replace(status, reason=_SILENT.get(status.state, status.reason))
