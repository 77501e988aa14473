"""Enums by name: a domain member and its wire member are called alike, and a test holds them to it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from toolhub.v1 import error_pb2, event_pb2, job_state_pb2, result_pb2, source_pb2, step_pb2, tool_pb2
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.event import EventType
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.source import SourceState, Trust
from toolhub_service.domain.step import StepName
from toolhub_service.domain.tool import ArgumentRole, IdempotencyMode, ToolKind, ToolState


class WireEnum:
    """A table both ways between a domain enum and a protobuf enum."""

    def __init__(self, domain: type[Enum], wire: Any, prefix: str) -> None:
        self.to_wire: dict[Any, Any] = {member: wire.Value(f"{prefix}_{member.name}") for member in domain}
        self.to_domain: dict[int, Any] = {number: member for member, number in self.to_wire.items()}


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
