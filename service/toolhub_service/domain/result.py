"""The answer to a call: a result or an error, always with evidence; and what it reports on the way."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import IdentityEnum, ToolSpec
from toolhub_service.domain.verdict import Verdict

# What a running call tells of itself: how far it has come, and its output as it appears.


class Progress(Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a call has come. Steps may be bytes, rows or nodes: `unit` tells."""

    step: float
    total: float | None = None
    unit: str = ""
    message: str = ""
    eta_s: float | None = None
    details_json: bytes = b""
    """What else the tool says, a JSON object in a form of its own; empty when nothing."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of output as it appears."""

    data: bytes
    stream: str = "stdout"
    """Which output it belongs to: `stdout`, `stderr`, `rows`."""


# Where a job stands (AIP-216), and a job as results name it.


class JobState(IdentityEnum):
    QUEUED = "QUEUED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self in FINAL_STATES


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.LOST})


class JobRef(msgspec.Struct, frozen=True):
    job_id: str
    state: JobState


# The nine steps, in their one order. The value is used everywhere: file, span, metric label, audit field.


class StepName(IdentityEnum):
    RESOLVE = "resolve"
    VALIDATE_INPUT = "validate_input"
    APPLY_DEFAULTS = "apply_defaults"
    CHECK_POLICY = "check_policy"
    TAKE_BUDGET = "take_budget"
    EXECUTE = "execute"
    VALIDATE_OUTPUT = "validate_output"
    ATTACH_EVIDENCE = "attach_evidence"
    RECORD = "record"


class EvidenceType(IdentityEnum):
    TOOL = "TOOL"
    FILE = "FILE"
    URL = "URL"
    TEXT = "TEXT"
    METRIC = "METRIC"


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


class Outcome(Struct, frozen=True, gc=False):
    """What an adapter brings back from one successful execution."""

    value: JsonValue
    evidence: tuple[Evidence, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    truncated: bool = False
    raw: JsonValue = None
    """The upstream's own answer, shown only when the hub is configured to."""
    upstream_fails: bool = False
    """Whether the answer, though a result, tells of a failing upstream (HTTP 5xx): its breaker counts it."""
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
    request_id: str = ""
    """The call's: its context's, or the one that the hub minted; empty in what an older version has stored."""
    raw: JsonValue = None


# What a dry run answers: what would happen, step by step, and a digest to commit exactly that.


class StepVerdict(msgspec.Struct, frozen=True):
    step: StepName
    ok: bool
    rule_id: str = ""
    reason: str = ""
    remedy: str = ""
    error: ToolError | None = None


class Plan(msgspec.Struct, frozen=True):
    call_id: str
    tool: str
    tool_version: str
    tool_digest: str
    args: JsonObject
    defaults_applied: tuple[str, ...]
    steps: tuple[StepVerdict, ...]
    effects: tuple[str, ...]
    """What the tool says it would do, one sentence each."""
    plan_digest: str
    """Empty when a step refused: there is nothing to commit."""
    expires_at_unix_ms: int
    """0 when there is nothing to commit."""
    request_id: str
    """Of the dry run; where it named none the hub has minted one."""


# A call that has ended, with all that was learnt on the way: what metrics and traces are made of.

StepTime: TypeAlias = tuple[StepName, int, int]
"""A step, and when it began and ended in nanoseconds of the performance counter."""


class SettledCall(Struct, frozen=True, gc=False):
    call: Call
    spec: ToolSpec | None
    """None when the tool was not found."""
    verdict: Verdict | None
    """None when policy was never asked."""
    result: ToolResult
    steps: tuple[StepTime, ...]
    duration_ns: int
