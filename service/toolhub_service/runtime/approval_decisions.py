"""Why a decision is not taken, or nothing revealed: the statuses of DecideApproval and GetApproval."""

from __future__ import annotations

from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.principal import Principal, Role
from toolhub_service.runtime.approval_record import was_withdrawn
from toolhub_service.runtime.approval_refusals import iso


def not_found(approval_id: str) -> HubFailure:
    return HubFailure(
        HubStatus.NOT_FOUND,
        "APPROVAL_NOT_FOUND",
        f"There is no approval {approval_id!r} that you may see.",
        approval_id=approval_id,
    )


def own_request(approval: Approval) -> HubFailure:
    return HubFailure(
        HubStatus.PERMISSION_DENIED,
        "OWN_REQUEST",
        "Nobody decides, or has revealed, what they have asked for themselves; another approver has to.",
        approval_id=approval.approval_id,
    )


def no_approver(principal: Principal, approval: Approval) -> HubFailure:
    return HubFailure(
        HubStatus.PERMISSION_DENIED,
        "NOT_AMONG_APPROVERS",
        f"Rule {approval.rule_id} leaves this to {', '.join(approval.approvers)}, and {principal.id} is none of them.",
        approval_id=approval.approval_id,
        rule_id=approval.rule_id,
    )


def no_role(principal: Principal) -> HubFailure:
    """Of those who ask, and see their own."""
    return HubFailure(
        HubStatus.PERMISSION_DENIED,
        "ROLE_MISSING",
        f"{principal.id} lacks the role 'approver' that revealing arguments needs; "
        "an operator grants it under `roles` in the policy.",
        role=Role.APPROVER.value,
        service="toolhub.v1.ApprovalService",
    )


def not_open(approval: Approval) -> HubFailure:
    text = f"It is {approval.state.value}, and arguments are kept only while an approval is open."
    return _over("APPROVAL_ENDED", text, approval)


def too_large(approval: Approval, max_bytes: int) -> HubFailure:
    text = f"The arguments are larger than {max_bytes // 1_024} KiB, the most that is revealed. Deny what must be read."
    return _over("ARGUMENTS_TOO_LARGE", text, approval)


def not_here(approval: Approval) -> HubFailure:
    return HubFailure(
        HubStatus.UNAVAILABLE,
        "ARGUMENTS_NOT_HERE",
        "This hub does not have the arguments: another process asked, it was started again since, or "
        "too many others are open. Ask the hub that asked, have the caller send the same call again, or deny it.",
        approval_id=approval.approval_id,
    )


def another_call(approval: Approval) -> HubFailure:
    return HubFailure(
        HubStatus.FAILED_PRECONDITION,
        "ARGS_DIGEST_DIFFERS",
        "The approval is for other arguments than the ones that were shown; look at it again.",
        approval_id=approval.approval_id,
        args_digest=approval.binding.args_digest,
    )


def no_question(approval: Approval) -> HubFailure:
    """An answer came with a no, or to an approval that a rule asks for."""
    return HubFailure(
        HubStatus.INVALID_ARGUMENT,
        "NOTHING_TO_ANSWER",
        "An answer belongs to the yes to a tool's question; here is nothing to be answered.",
        approval_id=approval.approval_id,
    )


def already_decided(approval: Approval) -> HubFailure:
    """No longer PENDING."""
    if was_withdrawn(approval):
        text = f"There is nothing to decide any more: {approval.comment}"
        return _over("APPROVAL_WITHDRAWN", text, approval)
    if approval.state is ApprovalState.EXPIRED and not approval.decided_by:
        text = f"Nobody decided before {iso(approval.expires_at_unix_ms)}, which counts as no. The caller can ask anew."
        return _over("APPROVAL_EXPIRED", text, approval)
    text = (
        f"{approval.decided_by} has decided this already at {iso(approval.decided_at_unix_ms)}; "
        f"it is {approval.state.value}."
    )
    return _over("ALREADY_DECIDED", text, approval)


def _over(reason: str, text: str, approval: Approval) -> HubFailure:
    state = approval.state.value
    return HubFailure(HubStatus.FAILED_PRECONDITION, reason, text, approval_id=approval.approval_id, state=state)
