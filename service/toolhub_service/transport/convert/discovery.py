"""Filters, pages, hits and sources of tools."""

from __future__ import annotations

from toolhub.v1 import registry_service_pb2, source_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.capability import canonical
from toolhub_service.domain.source import SourceStatus
from toolhub_service.registry.filter import LISTED, ToolFilter
from toolhub_service.registry.hit import SearchHit
from toolhub_service.registry.snapshot import Snapshot
from toolhub_service.transport.convert.enums import KINDS, SOURCE_STATES, STATES, TRUST
from toolhub_service.transport.convert.payload import duration, timestamp
from toolhub_service.transport.convert.tool import from_spec

BREAKERS = {
    "": source_pb2.BREAKER_STATE_UNSPECIFIED,
    "CLOSED": source_pb2.BREAKER_STATE_CLOSED,
    "HALF_OPEN": source_pb2.BREAKER_STATE_HALF_OPEN,
    "OPEN": source_pb2.BREAKER_STATE_OPEN,
}
_DIAGNOSTICS_MAX = 200
"""Lines."""


def to_filter(message: tool_pb2.ToolFilter) -> ToolFilter:
    return ToolFilter(
        names=tuple(message.names),
        kinds=frozenset(KINDS.to_domain[kind] for kind in message.kinds if kind),
        capabilities=canonical(message.capabilities),
        tags=frozenset(message.tags),
        sources=frozenset(message.sources),
        states=frozenset(STATES.to_domain[state] for state in message.states if state) or LISTED.states,
    )


def is_full(view: int, *, default: bool) -> bool:
    """Whether schemas and examples are wanted."""
    return default if view == tool_pb2.TOOL_VIEW_UNSPECIFIED else view == tool_pb2.TOOL_VIEW_FULL


def from_hit(hit: SearchHit, *, full: bool, for_operator: bool) -> pb.SearchHit:
    return pb.SearchHit(
        tool=from_spec(hit.tool, full=full, for_operator=for_operator),
        score=hit.score,
        matched_fields=hit.fields,
        matched_terms=hit.terms,
        reasons=[
            pb.SearchReason(
                part=reason.part,
                word=reason.word,
                fields=reason.fields,
                score=reason.score,
                rank=reason.place,
                found=reason.found,
            )
            for reason in hit.reasons
        ],
    )


def from_source(status: SourceStatus, *, for_operator: bool) -> source_pb2.SourceStatus:
    """Where it stands and what it says of itself are for operators only."""
    return source_pb2.SourceStatus(
        source=status.name,
        kind=KINDS.to_wire[status.kind],
        state=SOURCE_STATES.to_wire[status.state],
        message=status.reason,
        tools=status.tool_count,
        quarantined=status.quarantined_count,
        refreshed_at=timestamp(status.refreshed_at_unix_ms),
        next_refresh_at=timestamp(status.next_refresh_at_unix_ms),
        endpoint=status.endpoint if for_operator else "",
        refresh_duration=duration(status.latency_ms / 1_000) if status.latency_ms else None,
        breaker=BREAKERS[status.breaker],
        server=status.server if for_operator else "",
        protocol=status.protocol,
        trust=TRUST.to_wire[status.trust],
        diagnostics=status.diagnostics[-_DIAGNOSTICS_MAX:] if for_operator else (),
    )


def from_snapshot(snapshot: Snapshot, *, full: bool) -> registry_service_pb2.GetSnapshotResponse:
    totals = snapshot.totals
    return registry_service_pb2.GetSnapshotResponse(
        revision=snapshot.revision,
        tools=[from_spec(spec, full=full) for spec in snapshot.tools],
        totals=registry_service_pb2.SnapshotTotals(
            tools=totals.tools,
            by_kind={kind.name: count for kind, count in totals.by_kind.items()},
            by_state={state.name: count for state, count in totals.by_state.items()},
            by_source=dict(totals.by_source),
        ),
    )
