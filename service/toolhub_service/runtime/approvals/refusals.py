"""Why an approval is not accepted: for callers at step 4 and before the effect, and for people who decide or read
it."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import structs

from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.call import PlannedCall, Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolError, ToolFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.verdict import Verdict
from toolhub_service.policy.selectors import Selectors, parties_of
from toolhub_service.policy.table import APPROVAL_REMEDY
from toolhub_service.runtime.approvals.binding import was_withdrawn

# Refusals of calls without a valid approval: what to wait for, what to send then, and why the call is refused now.

AGAIN = "invoke again with this approval_id and the same arguments."

_COMMENT_MAX = 500


def refuse_without_approval(
    planned: PlannedCall, verdict: Verdict, approval: Approval, why: str = "", **facts: JsonValue
) -> ToolFailure:
    """APPROVAL_REQUIRED: `approval` is the one to wait for, `why` says what was wrong with the one that was sent."""
    until, reason = iso(approval.expires_at_unix_ms), verdict.reason
    if approval.question is not None:
        reason = (
            f"{approval.reason} The question is in details.question (untrusted text of the tool); an approver "
            "answers it."
        )
        facts = {**facts, "question": {"message": approval.question.message, "schema": approval.question.schema}}
    if approval.state is ApprovalState.APPROVED:
        what = f"Approval {approval.approval_id} has been granted until {until}:"
        advice = AGAIN
    else:
        what = f"Approval {approval.approval_id} waits for a person until {until}:"
        advice = f"wait for the decision, then {AGAIN}"
    own_words = "" if verdict.remedy == APPROVAL_REMEDY else verdict.remedy
    parts = (f"{planned.spec.name}: {reason}", why, what, advice, own_words)
    details = {
        **verdict.refusal_details(),
        "approval_id": approval.approval_id,
        "approval_state": approval.state.value,
        "args_digest": approval.binding.args_digest,
        "expires_at": until,
        **facts,
    }
    message = " ".join(part for part in parts if part)
    return ToolFailure(ToolError(kind=ErrorKind.APPROVAL_REQUIRED, message=message, details=details))


def differing(approval: Approval, names: list[str]) -> str:
    return (
        f"Approval {approval.approval_id} was requested for another call: {', '.join(names)} "
        f"{'differs' if len(names) == 1 else 'differ'}."
    )


def used_up(approval: Approval) -> str:
    return f"Approval {approval.approval_id} has already been used; each approval is valid for one call."


def refuse_rejected(approval: Approval) -> ToolFailure:
    """A person has rejected the approval. The comment is the person's and is shown as a quotation."""
    comment = excerpt(approval.comment, _COMMENT_MAX)
    quoted = f" The comment was: {comment!r}." if comment else ""
    text = (
        f"a person denied approval {approval.approval_id}.{quoted} Do not send the same call again. Do without it, "
        "or ask the user."
    )
    facts = {"comment": comment, "decided_by": approval.decided_by}
    return refuse_with_approval(ErrorKind.APPROVAL_REJECTED, approval, text, **facts)


def too_late(approval: Approval) -> ToolFailure:
    """The approval was not decided in time, or its decision was not used in time."""
    how = (
        "was granted, but expired before it was used"
        if approval.decided_by
        else "expired: nobody decided in time, which counts as a denial"
    )
    text = f"approval {approval.approval_id} {how}. To request approval again, invoke without an approval_id."
    return refuse_with_approval(
        ErrorKind.APPROVAL_REJECTED, approval, text, expires_at=iso(approval.expires_at_unix_ms)
    )


def void(approval: Approval, why: str) -> ToolFailure:
    """The answer no longer answers a question. Only the tool can ask again, and there is nothing to wait for."""
    return _nothing_to_wait_for(approval, f"{why} Invoke without an approval_id: the tool starts again.")


def refuse_lost_race(approval: Approval) -> ToolFailure:
    """Another call has used the approval between this call's check and its effect. There is no other to wait for."""
    return _nothing_to_wait_for(approval, f"{used_up(approval)} Invoke without an approval_id to ask for another.")


def _nothing_to_wait_for(approval: Approval, text: str) -> ToolFailure:
    failure = refuse_with_approval(ErrorKind.APPROVAL_REQUIRED, approval, text)
    details = {name: value for name, value in failure.error.details.items() if name != "approval_id"}
    return ToolFailure(structs.replace(failure.error, details=details | {"used_approval_id": approval.approval_id}))


def iso(unix_ms: int) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def refuse_with_approval(kind: ErrorKind, approval: Approval, text: str, **facts: str) -> ToolFailure:
    details: dict[str, JsonValue] = {
        "approval_id": approval.approval_id,
        "approval_state": approval.state.value,
        "rule_id": approval.rule_id,
        "policy_revision": approval.binding.policy_revision,
        **facts,
    }
    message = f"{approval.binding.tool}: {text}"
    return ToolFailure(ToolError(kind=kind, message=message, details=details))


# Refusals of DecideApproval and GetApproval: why a decision is not accepted or the arguments are not shown.


def not_found(approval_id: str) -> HubFailure:
    return HubFailure(
        Reason.APPROVAL_NOT_FOUND,
        f"There is no approval {approval_id!r}, or you may not see it.",
        approval_id=approval_id,
    )


def check_may_decide(principal: Principal, approval: Approval) -> None:
    """Raises HubFailure PERMISSION_DENIED."""
    if approval.binding.is_asked_by(principal):
        raise HubFailure(
            Reason.OWN_REQUEST,
            "You cannot approve your own request or reveal its arguments. Another approver must decide.",
            approval_id=approval.approval_id,
        )
    if approval.approvers and not Selectors(approval.approvers).match_all(parties_of(principal)):
        allowed = ", ".join(approval.approvers)
        raise HubFailure(
            Reason.NOT_AMONG_APPROVERS,
            f"Rule {approval.rule_id} lets only {allowed} decide, not {principal.id}.",
            approval_id=approval.approval_id,
            rule_id=approval.rule_id,
        )


def no_role(principal: Principal) -> HubFailure:
    """The principal may request approvals and see its own, but not decide."""
    return HubFailure(
        Reason.ROLE_MISSING,
        f"{principal.id} lacks the role `approver`, which revealing arguments requires. An operator grants it "
        "under `roles` in the policy.",
        role=Role.APPROVER.value,
        service="toolhub.v1.ApprovalService",
    )


def not_open(approval: Approval) -> HubFailure:
    text = f"The approval is {approval.state.value}. Arguments can be revealed only while an approval is open."
    return _over(Reason.APPROVAL_ENDED, text, approval)


def too_large(approval: Approval, max_bytes: int) -> HubFailure:
    text = f"The arguments are larger than {max_bytes // 1_024} KiB, the most that can be revealed."
    return _over(Reason.ARGUMENTS_TOO_LARGE, text, approval)


def not_here(approval: Approval) -> HubFailure:
    return HubFailure(
        Reason.ARGUMENTS_NOT_HERE,
        "This hub process does not hold the arguments: another process took the request, this one restarted, or "
        "too many approvals are open. Ask that process, have the caller send the same call again, or deny the "
        "request.",
        approval_id=approval.approval_id,
    )


def another_call(approval: Approval) -> HubFailure:
    return HubFailure(
        Reason.ARGS_DIGEST_DIFFERS,
        "The approval is for other arguments than those that were shown. Review it again.",
        approval_id=approval.approval_id,
        args_digest=approval.binding.args_digest,
    )


def no_question(approval: Approval) -> HubFailure:
    """An answer was sent with a rejection, or to an approval that a rule requires."""
    return HubFailure(
        Reason.NOTHING_TO_ANSWER,
        "This approval asks no question. Send the decision without an answer.",
        approval_id=approval.approval_id,
    )


def refuse_second_decision(approval: Approval) -> HubFailure:
    """The approval is no longer PENDING."""
    if was_withdrawn(approval):
        text = f"There is nothing left to decide: {approval.comment}"
        return _over(Reason.APPROVAL_WITHDRAWN, text, approval)
    if approval.state is ApprovalState.EXPIRED and not approval.decided_by:
        text = (
            f"Nobody decided before {iso(approval.expires_at_unix_ms)}, which counts as a denial. The caller "
            "can request approval again."
        )
        return _over(Reason.APPROVAL_EXPIRED, text, approval)
    text = f"{approval.decided_by} already decided this at {iso(approval.decided_at_unix_ms)}: {approval.state.value}."
    return _over(Reason.ALREADY_DECIDED, text, approval)


def _over(reason: Reason, text: str, approval: Approval) -> HubFailure:
    state = approval.state.value
    return HubFailure(reason, text, approval_id=approval.approval_id, state=state)
