"""Tool definitions both ways."""

from __future__ import annotations

from toolhub.v1 import tool_pb2
from toolhub_service.domain.capability import canonical
from toolhub_service.domain.errors import HubFailure, HubStatus, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import (
    Annotations,
    CostHints,
    Example,
    GuardedArgument,
    IdempotencyMode,
    ToolLimits,
    ToolSpec,
)
from toolhub_service.schema import canonical_json, strict_json
from toolhub_service.transport.convert.enums import IDEMPOTENCY, KINDS, ROLES, STATES
from toolhub_service.transport.convert.payload import duration, seconds


def from_spec(spec: ToolSpec, *, full: bool, for_operator: bool = True) -> tool_pb2.ToolSpec:
    """A tool for the wire; without `full` the schemas and examples stay behind, and where it runs is for operators."""
    message = tool_pb2.ToolSpec(
        name=spec.name,
        version=spec.version,
        kind=KINDS.to_wire[spec.kind],
        description=spec.description,
        tags=spec.tags,
        capabilities=sorted(spec.capabilities),
        cost_hints=_from_cost(spec.cost),
        annotations=_from_annotations(spec.annotations),
        idempotency=IDEMPOTENCY.to_wire[spec.idempotency],
        default_limits=_from_limits(spec.limits),
        source=spec.source,
        endpoint=spec.endpoint if for_operator else "",
        resource_id=spec.resource_id,
        upstream=spec.upstream,
        state=STATES.to_wire[spec.state],
        state_reason=spec.state_reason,
        digest=spec.digest,
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


def _from_annotations(annotations: Annotations) -> tool_pb2.ToolAnnotations:
    return tool_pb2.ToolAnnotations(
        read_only=annotations.read_only,
        destructive=annotations.destructive,
        idempotent=annotations.idempotent,
        open_world=annotations.open_world,
        supports_progress=annotations.supports_progress,
        supports_streaming=annotations.supports_streaming,
    )


def _from_limits(limits: ToolLimits) -> tool_pb2.ToolLimits:
    return tool_pb2.ToolLimits(
        timeout=duration(limits.timeout_s),
        max_retries=limits.max_retries,
        max_result_bytes=limits.max_result_bytes,
        max_concurrency=limits.max_concurrency,
    )


def to_spec(message: tool_pb2.ToolSpec) -> ToolSpec:
    """A tool as registered over the wire. Raises HubFailure INVALID_ARGUMENT when a schema or example is not JSON."""
    spec = ToolSpec(
        name=message.name,
        version=message.version,
        kind=KINDS.to_domain[message.kind],
        description=message.description,
        tags=tuple(message.tags),
        input_schema=_to_object(message.input_schema_json, "input_schema_json"),
        output_schema=_to_object(message.output_schema_json, "output_schema_json"),
        capabilities=canonical(message.capabilities),
        cost=CostHints(
            latency_ms_p50=seconds(message.cost_hints.latency_p50) * 1_000,
            latency_ms_p95=seconds(message.cost_hints.latency_p95) * 1_000,
            is_async=message.cost_hints.is_async,
        ),
        annotations=_to_annotations(message.annotations),
        limits=_to_limits(message.default_limits),
        idempotency=IDEMPOTENCY.to_domain.get(message.idempotency, IdempotencyMode.KEYED),
        guarded=tuple(GuardedArgument(item.name, ROLES.to_domain[item.role]) for item in message.guarded),
        source=message.source or "registered",
        endpoint=message.endpoint,
        resource_id=message.resource_id,
        upstream=message.upstream,
        examples=tuple(Example(item.title, _to_object(item.args_json, "examples")) for item in message.examples),
    )
    if message.digest and message.digest != spec.digest:
        raise HubFailure(
            HubStatus.INVALID_ARGUMENT,
            "DIGEST_MISMATCH",
            f"The digest of {spec.name} is not that of the definition sent; leave it empty or send the right one.",
            tool=spec.name,
            expected=spec.digest,
        )
    return spec


def _to_annotations(message: tool_pb2.ToolAnnotations) -> Annotations:
    return Annotations(
        read_only=message.read_only,
        destructive=message.destructive,
        idempotent=message.idempotent,
        open_world=message.open_world,
        supports_progress=message.supports_progress,
        supports_streaming=message.supports_streaming,
    )


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
        raise HubFailure(HubStatus.INVALID_ARGUMENT, "NOT_JSON", f"{field}: {failure.error.message}") from failure
    if not isinstance(value, dict):
        raise HubFailure(HubStatus.INVALID_ARGUMENT, "NOT_JSON", f"{field} must be a JSON object.")
    return value
