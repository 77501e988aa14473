"""JSON on the wire: canonical bytes, or a Struct for people and transcoders (contract, "Payloads").

A Struct's numbers are doubles: on input, a magnitude of 2^53 or more is refused; on output, a value that a Struct
cannot represent exactly is sent as JSON bytes, whatever was requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from math import isfinite
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from toolhub.v1 import approval_pb2, error_pb2, event_pb2, job_state_pb2, result_pb2, source_pb2, step_pb2, tool_pb2
from toolhub_service.domain.approval import ApprovalState
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.event import EventType
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import EvidenceType, JobState, StepName
from toolhub_service.domain.source import SourceState, Trust
from toolhub_service.domain.tool import ArgumentRole, IdempotencyMode, ToolKind, ToolState
from toolhub_service.schema import canonical_json

_EXACT_MAX = 2**53
# Levels of a Struct on output. Each takes up to three messages, and parsers refuse more than 100 nested ones.
_DEPTH_MAX = 24
# Longest value that is shown as text, in characters.
_TEXT_MAX = 2_000


class NotInStruct(ValueError):
    """A Struct cannot represent the value."""


def from_value(value: Value) -> JsonValue:
    """Return a protobuf Value as JSON; its numbers stay doubles."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return from_struct(value.struct_value)
    if kind == "list_value":
        return [from_value(item) for item in value.list_value.values]
    if kind is None or kind == "null_value":
        return None
    scalar: JsonValue = getattr(value, kind)
    return scalar


def from_struct(struct: Struct) -> dict[str, JsonValue]:
    return {key: from_value(value) for key, value in struct.fields.items()}


def to_value(json: JsonValue, depth: int = _DEPTH_MAX) -> Value:
    """Return the protobuf Value. Raises NotInStruct for integers of magnitude 2^53 or more, numbers that are not finite
    and more than `depth` levels."""
    if json is None:
        return Value(null_value=NULL_VALUE)
    if isinstance(json, bool):
        return Value(bool_value=json)
    if isinstance(json, str):
        return Value(string_value=json)
    if isinstance(json, int | float):
        if not isfinite(json) or (isinstance(json, int) and abs(json) >= _EXACT_MAX):
            raise NotInStruct(str(json)[:40])
        return Value(number_value=json)
    if not depth:
        raise NotInStruct("nested too deep")
    if isinstance(json, Mapping):
        return Value(struct_value=to_struct(json, depth - 1))
    return Value(list_value=ListValue(values=[to_value(item, depth - 1) for item in json]))


def to_struct(json: Mapping[str, JsonValue], depth: int = _DEPTH_MAX) -> Struct:
    return Struct(fields={key: to_value(value, depth) for key, value in json.items()})


def lossy_struct(json: Mapping[str, JsonValue]) -> Struct:
    """For details meant for reading: what a Struct cannot represent is shown as text."""
    return Struct(fields={key: lossy_value(value) for key, value in json.items()})


def lossy_value(json: JsonValue) -> Value:
    """The same for one value."""
    try:
        return to_value(json)
    except NotInStruct:
        return Value(string_value=_as_text(json))


def _as_text(json: JsonValue) -> str:
    try:
        return canonical_json.dumps(json).decode()[:_TEXT_MAX]
    except canonical_json.NotJson:
        return "(cannot be shown)"


def timestamp(unix_ms: int) -> Timestamp | None:
    """Return the Timestamp; None for 0, which means never or unknown."""
    return Timestamp(seconds=unix_ms // 1_000, nanos=unix_ms % 1_000 * 1_000_000) if unix_ms else None


def unix_ms(stamp: Timestamp) -> int:
    return int(stamp.seconds * 1_000 + stamp.nanos // 1_000_000)


def duration(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(seconds=whole, nanos=int((seconds - whole) * 1_000_000_000))


def seconds(span: Duration) -> float:
    return float(span.seconds) + float(span.nanos) / 1e9


# Enums: a domain member and its wire member have the same name


WIRE_ENUMS: dict[str, WireEnum] = {}
"""Tables by the full name of the protobuf enum."""


class WireEnum:
    """A two-way table between a domain enum and a protobuf enum."""

    def __init__(self, domain: type[Enum], wire: Any, prefix: str, *, unspecified: Enum | None = None) -> None:
        """`unspecified` is the domain's value for a field that is not set."""
        self.to_wire: dict[Any, Any] = {
            member: 0 if member is unspecified else wire.Value(f"{prefix}_{member.name}") for member in domain
        }
        self.to_domain: dict[int, Any] = {number: member for member, number in self.to_wire.items()}
        WIRE_ENUMS[wire.DESCRIPTOR.full_name] = self

    def filter_members(self, numbers: Iterable[int]) -> frozenset[Any]:
        """Return the members that a filter names; if the unspecified one is among them, all of them, as for an empty
        filter."""
        named = frozenset(numbers)
        return frozenset() if 0 in named else frozenset(self.to_domain[number] for number in named)


APPROVAL_STATES = WireEnum(ApprovalState, approval_pb2.ApprovalState, "APPROVAL_STATE")
KINDS = WireEnum(ToolKind, tool_pb2.ToolKind, "TOOL_KIND")
STATES = WireEnum(ToolState, tool_pb2.ToolState, "TOOL_STATE")
IDEMPOTENCY = WireEnum(IdempotencyMode, tool_pb2.IdempotencyMode, "IDEMPOTENCY_MODE")
ROLES = WireEnum(ArgumentRole, tool_pb2.ArgumentRole, "ARGUMENT_ROLE")
ERRORS = WireEnum(ErrorKind, error_pb2.ErrorKind, "ERROR_KIND")
EVENTS = WireEnum(EventType, event_pb2.EventType, "EVENT_TYPE")
EVIDENCE = WireEnum(EvidenceType, result_pb2.EvidenceType, "EVIDENCE_TYPE")
SOURCE_STATES = WireEnum(SourceState, source_pb2.SourceState, "SOURCE_STATE")
TRUST = WireEnum(Trust, source_pb2.SourceTrust, "SOURCE_TRUST")
JOB_STATES = WireEnum(JobState, job_state_pb2.JobState, "JOB_STATE")
STEPS = WireEnum(StepName, step_pb2.StepName, "STEP_NAME")
