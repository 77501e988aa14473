"""What a call leaves as: a result or an error, always with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.job_state import JobRef
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.step import StepName


class EvidenceType(Enum):
    TOOL = "TOOL"
    FILE = "FILE"
    URL = "URL"
    TEXT = "TEXT"
    METRIC = "METRIC"

    __hash__ = object.__hash__
    """By identity, for a member is a singleton: Enum's own hash is Python code, and this is a key on every call."""


class Evidence(NamedTuple):
    """One proof of what was done. Never a secret."""

    type: EvidenceType
    ref: str
    """What it points at: a call id, a workspace path, a URL without credentials."""
    summary: str
    created_at_unix_ms: int = 0
    """Wall clock; set by attach_evidence when left 0."""
    sha256: str = ""
    """Hex digest of the content it speaks of; empty when there is none."""
    attributes: Mapping[str, str] = MappingProxyType({})


class Outcome(NamedTuple):
    """What an adapter brings back from one successful execution."""

    value: JsonValue
    evidence: tuple[Evidence, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    truncated: bool = False
    raw: JsonValue = None
    """The upstream's own answer, shown only when the hub is configured to."""
    upstream_fails: bool = False
    """Whether the answer, though a result, tells of a failing upstream (HTTP 5xx): its breaker hears of it."""
    is_large: bool = False
    """Whether so many values are in it that they are checked and written in a thread."""


class ToolResult(NamedTuple):
    """The answer to a call, whatever happened."""

    ok: bool
    call_id: str
    tool: str
    value: JsonValue = None
    error: ToolError | None = None
    evidence: tuple[Evidence, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    job: JobRef | None = None
    tool_version: str = ""
    tool_digest: str = ""
    attempts: int = 0
    """How often the adapter was asked; 0 when the call never reached it."""
    replayed: bool = False
    truncated: bool = False
    defaults_applied: tuple[str, ...] = ()
    """JSON Pointers of the arguments that the hub filled in."""
    durations_us: Mapping[StepName, int] = MappingProxyType({})
    raw: JsonValue = None
