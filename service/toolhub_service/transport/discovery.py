"""Finding tools: lists, searches, single tools, exports and watches, as far as the caller's policy lets it see.

Operators also see where a tool runs, what is quarantined, and why a source is unavailable. To other callers a
quarantined tool is invisible: its texts are exactly what nobody has accepted yet, and a model would read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from toolhub.v1 import tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.source import OPERATORS_LOGIN, LoginNeeded, SourceState, SourceStatus, known_to
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.export.definitions import Exporter
from toolhub_service.runtime.route import SEARCH_FOR_IT
from toolhub_service.search.embedding import ToolMeanings
from toolhub_service.search.filters import ToolFilter
from toolhub_service.search.hits import SearchHit
from toolhub_service.search.listing import PageRequest, Viewer, list_tools, search_tools
from toolhub_service.search.search import NO_MEANING, ToolSearch
from toolhub_service.transport.convert.tool import from_hit, from_source, from_spec, is_full, to_filter
from toolhub_service.transport.page_tokens import BytePage

_SILENT = {
    SourceState.DOWN: "It cannot be read at the moment; an operator can see why.",
    SourceState.PARTIAL: "Some of its tools could not be read; an operator can see which and why.",
}


@dataclass(slots=True)
class Discovery:
    catalog: ToolCatalog
    search: ToolSearch
    exporter: Exporter
    policy: PolicySource
    sources: Callable[[], Sequence[SourceStatus]]
    meanings: ToolMeanings | None = None
    """None: search uses words and usage only."""

    def list_tools(self, request: pb.ListToolsRequest, principal: Principal) -> pb.ListToolsResponse:
        where = check_filter(request.filter, principal)
        full = is_full(request.view, default=False)
        for_operator = is_operator(principal)
        tools = BytePage[ToolSpec, tool_pb2.ToolSpec](
            lambda spec: from_spec(spec, full=full, for_operator=for_operator), tool_pb2.ToolSpec.ByteSize
        )
        page = list_tools(
            self.catalog,
            where,
            PageRequest(request.page_size, request.page_token),
            viewer=self.viewer(principal),
            sources=known_to(principal, self.sources()),
            fitting=tools,
        )
        return pb.ListToolsResponse(
            tools=tools.rendered,
            next_page_token=page.next_token,
            total_size=page.total_size,
            # Otherwise the count would reveal that a denied tool has a guessed name or tag.
            denied_size=page.denied_size if for_operator or not (where.names or where.tags) else None,
            sources=sources_for_caller(page.sources, principal),
            revision=page.revision,
        )

    async def search_tools(self, request: pb.SearchToolsRequest, principal: Principal) -> pb.SearchToolsResponse:
        await self.search.complete()
        meaning = NO_MEANING if self.meanings is None else await self.meanings.of(request.query)
        full = is_full(request.view, default=False)
        for_operator = is_operator(principal)
        hits = BytePage[SearchHit, pb.SearchHit](
            lambda hit: from_hit(hit, full=full, for_operator=for_operator), pb.SearchHit.ByteSize
        )
        page = search_tools(
            self.search,
            request.query,
            check_filter(request.filter, principal),
            PageRequest(request.page_size, request.page_token),
            viewer=self.viewer(principal),
            sources=known_to(principal, self.sources()),
            meaning=meaning,
            fitting=hits,
        )
        return pb.SearchToolsResponse(
            hits=hits.rendered,
            next_page_token=page.next_token,
            total_size=page.total_size,
            sources=sources_for_caller(page.sources, principal),
            revision=page.revision,
            ranked_by=page.ranked_by,
            note=page.note,
        )

    def get_tool(self, request: pb.GetToolRequest, principal: Principal) -> pb.GetToolResponse:
        """Return one tool. Raises HubFailure NOT_FOUND also for a tool that the caller may not see, and
        FAILED_PRECONDITION for a quarantined one, unless an operator asks."""
        spec = self.catalog.get(request.name)
        if spec is None or not self.policy.could_allow(principal, spec):
            raise HubFailure(
                Reason.TOOL_NOT_FOUND,
                f"There is no tool named {request.name!r} that you may call. {SEARCH_FOR_IT}",
                tool=request.name,
            )
        if spec.state is ToolState.QUARANTINED and not is_operator(principal):
            raise HubFailure(
                Reason.TOOL_QUARANTINED,
                f"{spec.name} awaits an operator's decision; until then only operators can see it. Use another tool.",
                tool=spec.name,
            )
        return pb.GetToolResponse(tool=from_spec(spec, full=True, for_operator=is_operator(principal)))

    def viewer(self, principal: Principal) -> Viewer:
        tenancy = principal.tenancy
        return Viewer(
            scope=principal.id,
            allowed=lambda spec: self.policy.could_allow(principal, spec),
            revision=(self.policy.revision, principal.key, principal.permissions),
            knows=None if tenancy is None else lambda spec: tenancy.shows(spec.source),
        )


def is_operator(principal: Principal) -> bool:
    return Role.OPERATOR in principal.roles


def check_filter(message: tool_pb2.ToolFilter, principal: Principal) -> ToolFilter:
    """Return the filter. Raises HubFailure PERMISSION_DENIED for a caller that requests only what operators may see."""
    where = to_filter(message)
    if is_operator(principal) or ToolState.QUARANTINED not in where.states:
        return where
    states = where.states - {ToolState.QUARANTINED}
    if not states:
        lacks = f"{principal.id} lacks the role `operator`, which seeing quarantined tools requires."
        raise HubFailure(Reason.ROLE_MISSING, lacks, role=Role.OPERATOR.value)
    return structs.replace(where, states=states)


def sources_for_caller(statuses: Sequence[SourceStatus], principal: Principal) -> list[Any]:
    """Return the sources; their failures may contain their own texts or paths of the hub's machine, so only operators
    see these."""
    if not is_operator(principal):
        statuses = [_for_callers(status) for status in statuses]
    return [from_source(status, for_operator=False) for status in statuses]


def _for_callers(status: SourceStatus) -> SourceStatus:
    if status.state is not SourceState.NEEDS_LOGIN:
        return structs.replace(status, reason=_SILENT.get(status.state, status.reason))
    own = tuple(each for each in status.login_commands if not each.startswith(OPERATORS_LOGIN))
    reason = (
        LoginNeeded(status.name, own).error.message if own else "Its server wants a login, which an operator makes."
    )
    return structs.replace(status, reason=reason, login_commands=own)
