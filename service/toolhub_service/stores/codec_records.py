"""The wire form of what stores keep: one Struct for each domain type that msgspec cannot write and read by itself.

Fields bear the domain's names in the domain's order; those at their default are left out, unknown ones are passed over
and missing ones take their default, so that replicas of neighbouring versions read one another. A record that stands
alone carries its format as `v`; a change that older readers would misread takes the next number, and they refuse it.
JSON values are kept as JSON text, for msgpack's integers end at 64 bits. Dataclasses without JSON values inside
(`Progress`, `ArtifactRef`, `JobRef`, `Upstream`, `Principal`) are written as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from toolhub_service.domain.approval import ApprovalState
from toolhub_service.domain.artifact import OCTETS, ArtifactRef
from toolhub_service.domain.call import Mode
from toolhub_service.domain.errors import ErrorKind, Upstream
from toolhub_service.domain.job_state import JobRef, JobState
from toolhub_service.domain.pin import PinChange, PinState
from toolhub_service.domain.principal import Principal
from toolhub_service.domain.progress import Progress
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.step import StepName

NULL: Final = b"null"
EMPTY: Final = b"{}"
"""JSON text; msgspec leaves a default out when it is the same object."""


class Part(msgspec.Struct, omit_defaults=True, gc=False):
    """Lies inside a record."""


class Record(Part, tag_field="v", tag=1):
    """Stands alone."""


class ViolationPart(Part):
    path: str
    keyword: str
    message: str
    expected: bytes = NULL
    hint: str = ""


class ErrorPart(Part):
    kind: ErrorKind
    message: str
    retryable: bool | None = None
    retry_after_s: float | None = None
    violations: tuple[ViolationPart, ...] = ()
    details: bytes = EMPTY
    upstream: Upstream | None = None


class EvidencePart(Part):
    type: EvidenceType
    ref: str
    summary: str
    created_at_unix_ms: int = 0
    sha256: str = ""
    attributes: Mapping[str, str] = {}


class ResultRecord(Record):
    """A ToolResult; its `raw` is not kept."""

    ok: bool
    call_id: str
    tool: str
    value: bytes = NULL
    error: ErrorPart | None = None
    evidence: tuple[EvidencePart, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    job: JobRef | None = None
    tool_version: str = ""
    tool_digest: str = ""
    attempts: int = 0
    replayed: bool = False
    truncated: bool = False
    defaults_applied: tuple[str, ...] = ()
    durations_us: Mapping[StepName, int] = {}


class StatusRecord(Record):
    job_id: str
    sequence: int
    state: JobState
    at_unix_ms: int
    progress: Progress | None = None
    result: ResultRecord | None = None
    artifacts: tuple[ArtifactRef, ...] = ()


class BudgetPart(Part):
    timeout_s: float | None = None
    max_retries: int | None = None
    max_tool_calls: int | None = None


class ContextPart(Part):
    request_id: str = ""
    task_id: str = ""
    session_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    permissions: frozenset[str] | None = None
    budget: BudgetPart = msgspec.field(default_factory=BudgetPart)
    labels: Mapping[str, str] = {}


class CallPart(Part):
    call_id: str
    tool: str
    args: bytes
    principal: Principal
    context: ContextPart = msgspec.field(default_factory=ContextPart)
    args_error: ErrorPart | None = None
    purpose: str = ""
    idempotency_key: str = ""
    mode: Mode = Mode.EXECUTE
    plan_digest: str = ""
    approval_id: str = ""
    deadline_s: float | None = None
    job_id: str = ""
    names_artifacts: bool = False


class RemoteMarkPart(Part):
    key: str
    remote_id: str = ""
    accepted: bool = False
    endpoint: str = ""
    details: Mapping[str, str] = {}


class JobRecord(Record):
    """A Job, whole; or without `status` and the call's `args`, where a store keeps these apart."""

    job_id: str
    call: CallPart
    tool_version: str
    tool_digest: str
    args_digest: str
    created_at_unix_ms: int
    deadline_unix_ms: int
    status: StatusRecord | None = None
    version: int = 1
    state_since_unix_ms: int = 0
    approval_id: str = ""
    runner: str = ""
    runs: int = 0
    begun: bool = False
    remote: RemoteMarkPart | None = None
    cancel_reason: str | None = None
    expires_at_unix_ms: int = 0
    trace_parent: str = ""
    cancelled_by: str = ""


class KeyRecordRecord(Record):
    owner: str
    call_id: str
    args_digest: str
    tool_digest: str
    lease_until_unix_ms: int
    expires_at_unix_ms: int
    result: ResultRecord | None = None


class BindingPart(Part):
    principal: str
    tool: str
    tool_digest: str
    args_digest: str
    policy_revision: str
    job_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    question_digest: str = ""
    workspace: str = ""
    state: str = ""


class QuestionPart(Part):
    message: str
    schema: bytes
    continuation: str = ""


class ApprovalRecord(Record):
    approval_id: str
    binding: BindingPart
    state: ApprovalState
    tool_version: str
    args_summary_json: str
    rule_id: str
    reason: str
    purpose: str
    call_id: str
    request_id: str
    requested_at_unix_ms: int
    expires_at_unix_ms: int
    approvers: tuple[str, ...] = ()
    decided_at_unix_ms: int = 0
    decided_by: str = ""
    comment: str = ""
    used_at_unix_ms: int = 0
    used_by_call_id: str = ""
    version: int = 1


class AnsweringRecord(ApprovalRecord, tag=2, kw_only=True):
    """An approval that answers a tool's question. Who knows no questions must not take it for a yes to a rule."""

    question: QuestionPart
    round: int
    covers_rule_id: str = ""
    answer: bytes | None = None


class ArtifactRecord(Record):
    artifact_id: str
    sha256: str
    size_bytes: int
    principal: str
    created_at_unix_ms: int
    expires_at_unix_ms: int
    media_type: str = OCTETS
    name: str = ""
    task_id: str = ""
    call_id: str = ""


class PinRecord(Record):
    source: str
    tool: str
    digest: str
    definition: bytes
    state: PinState
    change: PinChange = PinChange.NONE
    previous_digest: str = ""
    renamed_from: str = ""
    findings: tuple[str, ...] = ()
    seen_at_unix_ms: int = 0
    decided_at_unix_ms: int = 0
    decided_by: str = ""
    comment: str = ""
    version: int = 1


class UseRecord(Record):
    """A ToolUse."""

    tenant: str
    tool: str
    agent: str
    purpose: str
    at_unix_ms: int
