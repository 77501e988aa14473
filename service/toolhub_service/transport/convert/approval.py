"""Approvals on the wire."""

from __future__ import annotations

import grpc

from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.domain.errors import ErrorKind, ToolError, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.runtime.approval_record import Decision
from toolhub_service.schema import canonical_json, strict_json
from toolhub_service.transport.convert.enums import WireEnum
from toolhub_service.transport.convert.payload import timestamp
from toolhub_service.transport.status import RpcFailure

APPROVAL_STATES = WireEnum(ApprovalState, approval_pb2.ApprovalState, "APPROVAL_STATE")


def from_approval(approval: Approval) -> approval_pb2.Approval:
    binding = approval.binding
    return approval_pb2.Approval(
        approval_id=approval.approval_id,
        state=APPROVAL_STATES.to_wire[approval.state],
        principal=binding.principal,
        tool=binding.tool,
        tool_version=approval.tool_version,
        tool_digest=binding.tool_digest,
        args_digest=binding.args_digest,
        args_summary_json=approval.args_summary_json.encode(),
        policy_revision=binding.policy_revision,
        rule_id=approval.rule_id,
        reason=approval.reason,
        purpose=approval.purpose,
        call_id=approval.call_id,
        job_id=binding.job_id,
        request_id=approval.request_id,
        requested_at=timestamp(approval.requested_at_unix_ms),
        expires_at=timestamp(approval.expires_at_unix_ms),
        decided_at=timestamp(approval.decided_at_unix_ms),
        decided_by=approval.decided_by,
        comment=approval.comment,
        used_at=timestamp(approval.used_at_unix_ms),
        agent_id=binding.agent_id,
        user_id=binding.user_id,
        question=_from_question(approval),
        covers_rule_id=approval.covers_rule_id,
    )


def to_approval_filter(request: pb.ListApprovalsRequest) -> ApprovalFilter:
    """The unspecified state in a filter means every state."""
    every = approval_pb2.APPROVAL_STATE_UNSPECIFIED in request.states
    states = () if every else request.states
    return ApprovalFilter(
        states=frozenset(APPROVAL_STATES.to_domain[state] for state in states),
        principal=request.principal,
        tool=request.tool,
    )


def to_decision(decision: int) -> Decision:
    """The envelope has been validated: it is a yes or a no."""
    return ApprovalState.APPROVED if decision == approval_pb2.DECISION_APPROVE else ApprovalState.REJECTED


def to_answer(answer_json: bytes) -> JsonObject | None:
    """None when there is none. Raises ToolFailure INVALID_INPUT for what is no JSON object."""
    if not answer_json:
        return None
    answer = strict_json.loads(answer_json)
    if not isinstance(answer, dict):
        raise refuse(ErrorKind.INVALID_INPUT, "An answer is a JSON object whose members are what was asked for.")
    return answer


def from_refused_answer(error: ToolError) -> RpcFailure:
    """INVALID_ARGUMENT, with a violation for each place at which the answer does not fit the question."""
    fields = tuple((f"answer_json{violation.path}", violation.message) for violation in error.violations)
    violations = fields or (("answer_json", error.message),)
    return RpcFailure(grpc.StatusCode.INVALID_ARGUMENT, "ANSWER_UNFIT", error.message, field_violations=violations)


def _from_question(approval: Approval) -> approval_pb2.Question | None:
    """What is shown of it: never its continuation, nor what was answered."""
    question = approval.question
    if question is None:
        return None
    schema_json = canonical_json.dumps(question.schema)
    return approval_pb2.Question(message=question.message, schema_json=schema_json, round=approval.round)
