"""Approvals on the wire."""

from __future__ import annotations

from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.runtime.approval_record import Decision
from toolhub_service.transport.convert.enums import WireEnum
from toolhub_service.transport.convert.payload import timestamp

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
