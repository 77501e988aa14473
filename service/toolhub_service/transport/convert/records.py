"""Stored records on the wire: jobs and their histories, audit events, approvals, artifacts, pins."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from toolhub.v1 import (
    approval_pb2,
    approval_service_pb2,
    artifact_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    call_pb2,
    error_pb2,
    event_pb2,
    job_pb2,
    job_service_pb2,
    pin_pb2,
    registry_service_pb2,
)
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, Binding
from toolhub_service.domain.artifact import Artifact, ArtifactFilter
from toolhub_service.domain.call import Call, ExecContext, Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolError, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import ChainedEvent, ChainFault, Event, EventFilter, Verification
from toolhub_service.domain.job import Job, JobFilter, JobStatus
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin, PinChange, PinFilter, PinState
from toolhub_service.guards.foreign_text import escape_hidden
from toolhub_service.runtime.approvals.binding import Decision
from toolhub_service.runtime.artifacts.uploads import ArtifactHeader
from toolhub_service.schema import canonical_json, strict_json
from toolhub_service.transport.convert.call import from_artifact_ref, from_error, from_progress, write_answer
from toolhub_service.transport.convert.payload import (
    APPROVAL_STATES,
    ERRORS,
    EVENTS,
    JOB_STATES,
    WireEnum,
    duration,
    unix_ms,
)
from toolhub_service.transport.convert.tables import Reader, Writer
from toolhub_service.transport.status import RpcFailure

_JOB = Writer(job_pb2.Job, Job, Call, ExecContext, apart={"principal", "status"})
_JOB_FILTER = Reader(JobFilter, job_service_pb2.ListJobsRequest, apart={"states", "owners"})


def from_job(job: Job, *, as_struct: bool, with_result: bool = True) -> job_pb2.Job:
    """Return the message of a job; with `with_result` false, as in lists, without its result."""
    message = _JOB(job, job.call, job.call.context, principal=job.call.principal.id)
    write_status(message.status, job.status, as_struct=as_struct, with_result=with_result)
    return message


def write_status(message: job_pb2.JobStatus, status: JobStatus, *, as_struct: bool, with_result: bool = True) -> None:
    """Fill the message in place."""
    message.job_id = status.job_id
    message.sequence = status.sequence
    message.state = JOB_STATES.to_wire[status.state]
    message.at.FromMilliseconds(status.at_unix_ms)
    if status.progress is not None:
        message.progress.CopyFrom(from_progress(status.progress))
    message.artifacts.extend(from_artifact_ref(artifact) for artifact in status.artifacts)
    if status.result is None:
        return
    if status.result.error is not None:
        message.error.CopyFrom(from_error(status.result.error))
    if with_result:
        write_answer(message, status.result, as_struct=as_struct)


def to_job_filter(request: job_service_pb2.ListJobsRequest) -> JobFilter:
    """Return the filter; the unspecified state in it means every state."""
    return _JOB_FILTER(request, states=JOB_STATES.filter_members(request.states))


to_watched = Reader(JobFilter, job_service_pb2.WatchJobsRequest, apart={"states", "owners"})


def shows_struct(encoding: int) -> bool:
    """Return whether the answer to a request without arguments uses a Struct: JSON bytes unless a Struct is
    requested."""
    return bool(encoding == call_pb2.RESULT_ENCODING_STRUCT)


# Audit events

_KIND_NAMES = {kind.value: kind for kind in ErrorKind}
_EVENT = Writer(event_pb2.Event, Event, ChainedEvent, apart={"error_kind", "duration", "tenant"})
_EVENT_FILTER = Reader(
    EventFilter, event_pb2.EventFilter, apart={"types", "error_kinds", "labels", "from_unix_ms", "to_unix_ms", "owners"}
)
_VERIFICATION = Writer(
    audit_service_pb2.VerifyAuditResponse,
    Verification,
    apart={"first_bad"},
    renamed={"writers_checked": "writers"},
    nested={"faults": Writer(audit_service_pb2.ChainFault, ChainFault)},
)


def from_event(chained: ChainedEvent, tenant: str = "") -> event_pb2.Event:
    """`tenant` is that of the event's principal under the policy in force."""
    event = chained.event
    kind = _KIND_NAMES.get(event.outcome)
    return _EVENT(
        event,
        chained,
        error_kind=ERRORS.to_wire[kind] if kind else error_pb2.ERROR_KIND_UNSPECIFIED,
        duration=duration(event.duration_us / 1e6),
        tenant=tenant,
    )


def to_filter(message: event_pb2.EventFilter) -> EventFilter:
    return _EVENT_FILTER(
        message,
        types=frozenset(EVENTS.to_domain[number] for number in message.types),
        error_kinds=frozenset(ERRORS.to_domain[number] for number in message.error_kinds),
        labels=dict(message.labels),
        from_unix_ms=unix_ms(message.since) if message.HasField("since") else 0,
        to_unix_ms=unix_ms(message.until) if message.HasField("until") else 0,
    )


def from_verification(verification: Verification) -> audit_service_pb2.VerifyAuditResponse:
    message = _VERIFICATION(verification)
    if message.faults:
        message.first_bad.CopyFrom(message.faults[0])
    return message


# Approvals

_APPROVAL = Writer(approval_pb2.Approval, Approval, Binding, apart={"args_summary_json", "question"})
_APPROVAL_FILTER = Reader(ApprovalFilter, approval_service_pb2.ListApprovalsRequest, apart={"states", "owners"})


def from_approval(approval: Approval) -> approval_pb2.Approval:
    summary_json = approval.args_summary_json.encode()
    return _APPROVAL(approval, approval.binding, args_summary_json=summary_json, question=_from_question(approval))


def to_approval_filter(request: approval_service_pb2.ListApprovalsRequest) -> ApprovalFilter:
    return _APPROVAL_FILTER(request, states=APPROVAL_STATES.filter_members(request.states))


def is_approval(decision: int) -> bool:
    """Return whether the decision is an approval; the envelope has been validated, so it is one or a rejection."""
    return decision == approval_pb2.DECISION_APPROVE


def to_decision(decision: int) -> Decision:
    return ApprovalState.APPROVED if is_approval(decision) else ApprovalState.REJECTED


def to_answer(answer_json: bytes) -> JsonObject | None:
    """Return the answer; None when there is none. Raises ToolFailure INVALID_INPUT when it is not a JSON object."""
    if not answer_json:
        return None
    answer = strict_json.loads(answer_json)
    if not isinstance(answer, dict):
        raise refuse(ErrorKind.INVALID_INPUT, "The answer must be a JSON object with the requested fields.")
    return answer


def from_refused_answer(error: ToolError) -> RpcFailure:
    """INVALID_ARGUMENT, with a violation for each place where the answer does not fit the question."""
    fields = tuple((f"answer_json{violation.path}", violation.message) for violation in error.violations)
    violations = fields or (("answer_json", error.message),)
    return RpcFailure(Reason.ANSWER_UNFIT, error.message, field_violations=violations)


def _from_question(approval: Approval) -> approval_pb2.Question | None:
    """Return what is shown of a question: never its continuation or its answer."""
    question = approval.question
    if question is None:
        return None
    schema_json = canonical_json.dumps(question.schema)
    return approval_pb2.Question(message=question.message, schema_json=schema_json, round=approval.round)


# Artifacts


from_artifact = Writer(artifact_pb2.Artifact, Artifact)
to_header = Reader(ArtifactHeader, artifact_service_pb2.ArtifactHeader)
_ARTIFACT_FILTER = Reader(ArtifactFilter, artifact_service_pb2.ListArtifactsRequest, apart={"principal", "owners"})


def to_artifact_filter(request: artifact_service_pb2.ListArtifactsRequest, caller: Principal) -> ArtifactFilter:
    """Return the filter. Raises HubFailure PERMISSION_DENIED for another principal's artifacts, unless all may be
    read."""
    may_read_all = Role.AUDITOR in caller.roles
    if not may_read_all and request.principal not in ("", caller.id):
        lacks = f"{caller.id} lacks the role `auditor`, which listing what others own requires."
        raise HubFailure(Reason.ROLE_MISSING, lacks, role=Role.AUDITOR.value)
    if may_read_all:
        return _ARTIFACT_FILTER(request, principal=request.principal, owners=caller.owners)
    return _ARTIFACT_FILTER(request, principal=caller.id, owners=None)


# Pins

# A text is split at its own line ends, so that one changed sentence of a long description is one changed line of the
# diff. Both sides are cut before they are compared: difflib's worst case is quadratic, and the texts are untrusted.

DIFF_MAX_BYTES = 64 * 1024
_COMPARED_MAX_CHARS = 128 * 1024
_COMPARED_MAX_LINES = 1_500
_ESCAPE = re.compile(r"\\(.)")


def pin_diff(before: JsonObject, after: JsonObject, *, approved: str, seen: str) -> str:
    """Return a unified diff of at most 64 KiB, empty when both are equal; `approved` and `seen` name the two sides."""
    lines = difflib.unified_diff(_lines(before), _lines(after), approved, seen, lineterm="")
    return "\n".join(_cut_lines(lines))


def _lines(definition: JsonObject) -> list[str]:
    text = json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False)
    shown = escape_hidden(text[:_COMPARED_MAX_CHARS])[:_COMPARED_MAX_CHARS]
    lines = _ESCAPE.sub(lambda found: found.group() + ("\n" if found.group(1) == "n" else ""), shown).splitlines()
    if len(text) > _COMPARED_MAX_CHARS or len(lines) > _COMPARED_MAX_LINES:
        return [*lines[:_COMPARED_MAX_LINES], f"… cut; the whole definition has {len(text):,} characters"]
    return lines


def _cut_lines(lines: Iterator[str]) -> Iterator[str]:
    left = DIFF_MAX_BYTES - 100
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            yield "… the difference goes on; it was cut at 64 KiB"
            return
        yield line


PIN_STATES = WireEnum(PinState, pin_pb2.PinState, "PIN_STATE")
PIN_CHANGES = WireEnum(PinChange, pin_pb2.PinChange, "PIN_CHANGE", unspecified=PinChange.NONE)
# As in a list: without diff, definition and tool.
from_pin = Writer(pin_pb2.Pin, Pin, apart={"diff", "tool_spec", "definition_json"})
_PIN_FILTER = Reader(PinFilter, registry_service_pb2.ListPinsRequest, apart={"states", "sources"})
_DEFINITION_MAX_BYTES = 256 * 1024


def from_whole_pin(pin: Pin, approved: Pin | None) -> pin_pb2.Pin:
    """Return the pin with its definition and the diff to the approved one."""
    message = from_pin(pin)
    definition = json.dumps(pin.definition, sort_keys=True, separators=(",", ":")).encode()  # as `pin_digest` reads it
    message.definition_json = definition if len(definition) <= _DEFINITION_MAX_BYTES else b""
    if approved is not None and approved.key != pin.key:
        message.diff = pin_diff(
            approved.definition,
            pin.definition,
            approved=f"approved {approved.tool} {approved.digest[:12]}",
            seen=f"seen {pin.tool} {pin.digest[:12]}",
        )
    return message


def to_pin_filter(request: registry_service_pb2.ListPinsRequest, caller: Principal) -> PinFilter:
    sources = None if caller.tenancy is None else caller.tenancy.shows
    return _PIN_FILTER(request, states=PIN_STATES.filter_members(request.states), sources=sources)
