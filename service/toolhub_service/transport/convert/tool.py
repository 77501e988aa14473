"""Tool definitions in both directions; filters, pages, hits and sources of tools."""

from __future__ import annotations

from toolhub.v1 import registry_service_pb2, source_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import SourceStatus
from toolhub_service.domain.tool import (
    REGISTERED_SOURCE,
    Annotations,
    CostHints,
    Example,
    GuardedArgument,
    IdempotencyMode,
    ToolLimits,
    ToolSpec,
    canonical_capabilities,
)
from toolhub_service.registry.snapshot import Totals
from toolhub_service.schema import canonical_json, strict_json
from toolhub_service.search.filters import LISTED, ToolFilter
from toolhub_service.search.hits import Reason as SearchReason
from toolhub_service.search.hits import SearchHit
from toolhub_service.transport.convert.payload import (
    IDEMPOTENCY,
    KINDS,
    ROLES,
    STATES,
    duration,
    seconds,
)
from toolhub_service.transport.convert.tables import Reader, Writer

_TO_ANNOTATIONS = Reader(Annotations, tool_pb2.ToolAnnotations)
_SPEC = Writer(
    tool_pb2.ToolSpec,
    ToolSpec,
    apart={
        *("capabilities", "cost_hints", "endpoint"),
        *("input_schema_json", "output_schema_json", "guarded", "examples"),
    },
    renamed={"default_limits": "limits"},
    nested={
        "annotations": Writer(tool_pb2.ToolAnnotations, Annotations),
        "default_limits": Writer(tool_pb2.ToolLimits, ToolLimits),
    },
)
_HIT = Writer(
    pb.SearchHit,
    SearchHit,
    apart={"tool"},
    renamed={"matched_fields": "fields", "matched_terms": "terms"},
    nested={"reasons": Writer(pb.SearchReason, SearchReason, renamed={"rank": "place"})},
)
_SOURCE = Writer(
    source_pb2.SourceStatus,
    SourceStatus,
    apart={"endpoint", "refresh_duration", "breaker", "server", "diagnostics"},
    renamed={"source": "name", "message": "reason", "tools": "tool_count", "quarantined": "quarantined_count"},
)


def from_spec(spec: ToolSpec, *, full: bool, for_operator: bool = True) -> tool_pb2.ToolSpec:
    """Return a tool's message; without `full` it has no schemas and examples, and only operators see where the tool
    runs."""
    message = _SPEC(
        spec,
        capabilities=sorted(spec.capabilities),
        cost_hints=_from_cost(spec.cost),
        endpoint=spec.endpoint if for_operator else "",
    )
    if full:
        message.input_schema_json = canonical_json.dumps(spec.input_schema)
        message.output_schema_json = canonical_json.dumps(spec.output_schema)
        for argument in spec.guarded:
            message.guarded.add(name=argument.name, role=ROLES.to_wire[argument.role])
        for example in spec.examples:
            message.examples.add(title=example.title, args_json=canonical_json.dumps(example.args))
    return message


def _from_cost(cost: CostHints) -> tool_pb2.CostHints:
    return tool_pb2.CostHints(
        latency_p50=duration(cost.latency_ms_p50 / 1_000) if cost.latency_ms_p50 else None,
        latency_p95=duration(cost.latency_ms_p95 / 1_000) if cost.latency_ms_p95 else None,
        is_async=cost.is_async,
    )


def to_spec(message: tool_pb2.ToolSpec) -> ToolSpec:
    """Return the definition of a tool registered over the wire. Raises HubFailure INVALID_ARGUMENT when a schema or
    example is not JSON."""
    spec = ToolSpec(
        name=message.name,
        version=message.version,
        kind=KINDS.to_domain[message.kind],
        description=message.description,
        tags=tuple(message.tags),
        input_schema=_to_object(message.input_schema_json, "input_schema_json"),
        output_schema=_to_object(message.output_schema_json, "output_schema_json"),
        capabilities=canonical_capabilities(message.capabilities),
        cost=CostHints(
            latency_ms_p50=seconds(message.cost_hints.latency_p50) * 1_000,
            latency_ms_p95=seconds(message.cost_hints.latency_p95) * 1_000,
            is_async=message.cost_hints.is_async,
        ),
        annotations=_TO_ANNOTATIONS(message.annotations),
        limits=_to_limits(message.default_limits),
        idempotency=IDEMPOTENCY.to_domain.get(message.idempotency, IdempotencyMode.KEYED),
        guarded=tuple(GuardedArgument(item.name, ROLES.to_domain[item.role]) for item in message.guarded),
        source=message.source or REGISTERED_SOURCE,
        endpoint=message.endpoint,
        resource_id=message.resource_id,
        upstream=message.upstream,
        examples=tuple(Example(item.title, _to_object(item.args_json, "examples")) for item in message.examples),
    )
    if message.digest and message.digest != spec.digest:
        raise HubFailure(
            Reason.DIGEST_MISMATCH,
            f"The digest does not match the definition of {spec.name}. Leave it empty, or send the right one.",
            tool=spec.name,
            expected=spec.digest,
        )
    return spec


def _to_limits(message: tool_pb2.ToolLimits) -> ToolLimits:
    default = ToolLimits()
    return ToolLimits(
        timeout_s=seconds(message.timeout) if message.HasField("timeout") else default.timeout_s,
        max_retries=message.max_retries if message.HasField("max_retries") else default.max_retries,
        max_result_bytes=message.max_result_bytes or default.max_result_bytes,
        max_concurrency=message.max_concurrency,
    )


def _to_object(data: bytes, field: str) -> JsonObject:
    try:
        value = strict_json.loads(data) if data else {}
    except ToolFailure as failure:
        raise HubFailure(Reason.NOT_JSON, f"{field}: {failure.error.message}") from failure
    if not isinstance(value, dict):
        raise HubFailure(Reason.NOT_JSON, f"{field} must be a JSON object.")
    return value


# Discovery

BREAKERS = {
    "": source_pb2.BREAKER_STATE_UNSPECIFIED,
    "CLOSED": source_pb2.BREAKER_STATE_CLOSED,
    "HALF_OPEN": source_pb2.BREAKER_STATE_HALF_OPEN,
    "OPEN": source_pb2.BREAKER_STATE_OPEN,
}
# Most lines.
_DIAGNOSTICS_MAX = 200


def to_filter(message: tool_pb2.ToolFilter) -> ToolFilter:
    return ToolFilter(
        names=tuple(message.names),
        kinds=KINDS.filter_members(message.kinds),
        capabilities=canonical_capabilities(message.capabilities),
        tags=frozenset(message.tags),
        sources=frozenset(message.sources),
        states=STATES.filter_members(message.states) if message.states else LISTED.states,
    )


def is_full(view: int, *, default: bool) -> bool:
    """Return whether schemas and examples are requested."""
    return default if view == tool_pb2.TOOL_VIEW_UNSPECIFIED else view == tool_pb2.TOOL_VIEW_FULL


def from_hit(hit: SearchHit, *, full: bool, for_operator: bool) -> pb.SearchHit:
    return _HIT(hit, tool=from_spec(hit.tool, full=full, for_operator=for_operator))


def from_source(status: SourceStatus, *, for_operator: bool) -> source_pb2.SourceStatus:
    """Return a source's message; its address and what it says of itself are for operators only."""
    return _SOURCE(
        status,
        endpoint=status.endpoint if for_operator else "",
        refresh_duration=duration(status.latency_ms / 1_000) if status.latency_ms else None,
        breaker=BREAKERS[status.breaker],
        server=status.server if for_operator else "",
        diagnostics=status.diagnostics[-_DIAGNOSTICS_MAX:] if for_operator else (),
    )


def from_totals(totals: Totals) -> registry_service_pb2.SnapshotTotals:
    return registry_service_pb2.SnapshotTotals(
        tools=totals.tools,
        by_kind={kind.name: count for kind, count in totals.by_kind.items()},
        by_state={state.name: count for state, count in totals.by_state.items()},
        by_source=dict(totals.by_source),
    )
