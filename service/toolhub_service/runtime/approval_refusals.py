"""What a caller is told while its call has no approval: what to wait for, what to send then, and why not now."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.verdict import Verdict
from toolhub_service.policy.table import APPROVAL_REMEDY
from toolhub_service.runtime.check_policy import details_of

_COMMENT_MAX = 500
_ID_MAX = 128


def required(
    planned: PlannedCall, verdict: Verdict, approval: Approval, why: str = "", **facts: JsonValue
) -> ToolFailure:
    """APPROVAL_REQUIRED: `approval` is the one to wait for, `why` what was wrong with the one that was sent."""
    until, reason = iso(approval.expires_at_unix_ms), verdict.reason
    if approval.question is not None:
        reason = (
            f"{approval.reason} It stands in details.question, in the tool's own words, and an approver answers it."
        )
        facts = {**facts, "question": {"message": approval.question.message, "schema": approval.question.schema}}
    if approval.state is ApprovalState.APPROVED:
        what = f"Approval {approval.approval_id} has been granted until {until}:"
        advice = "invoke again with this approval_id and the same arguments."
    else:
        what = f"Approval {approval.approval_id} waits for a person until {until}:"
        advice = "wait for the decision, then invoke again with this approval_id and the same arguments."
    own_words = "" if verdict.remedy == APPROVAL_REMEDY else verdict.remedy
    parts = (f"{planned.spec.name}: {reason}", why, what, advice, own_words)
    details = {
        **details_of(verdict),
        "approval_id": approval.approval_id,
        "approval_state": approval.state.value,
        "args_digest": approval.binding.args_digest,
        "expires_at": until,
        **facts,
    }
    message = " ".join(part for part in parts if part)
    return ToolFailure(ToolError(kind=ErrorKind.APPROVAL_REQUIRED, message=message, retryable=False, details=details))


def unknown(approval_id: str) -> str:
    return f"There is no approval {approval_id[:_ID_MAX]!r} that was asked for by you."


def differing(approval: Approval, names: list[str]) -> str:
    return (
        f"Approval {approval.approval_id} was asked for another call: {', '.join(names)} "
        f"{'differs' if len(names) == 1 else 'differ'}."
    )


def undecided(approval: Approval) -> str:
    """Of a job that names a question which was not asked for it."""
    return f"Approval {approval.approval_id} was not granted yet, and a job waits for its own only."


def uncovered(approval: Approval, verdict: Verdict) -> str:
    """Of an answer to a question, where a rule asks for a yes that was not given when the question was asked."""
    return f"Approval {approval.approval_id} answers the tool's question, and is no yes of rule {verdict.rule_id}."


def used_up(approval: Approval) -> str:
    return f"Approval {approval.approval_id} has been used already; each is good for one call."


def rejected(approval: Approval) -> ToolFailure:
    """A person said no. The comment is the person's, and told as a quotation."""
    comment = approval.comment[:_COMMENT_MAX]
    said = f" The comment was: {comment!r}." if comment else ""
    text = (
        f"a person has rejected approval {approval.approval_id}.{said} "
        "Do not send the same call again; do without it, or ask the user."
    )
    facts = {"comment": comment, "decided_by": approval.decided_by}
    return _refused(ErrorKind.APPROVAL_REJECTED, approval, text, **facts)


def lapsed(approval: Approval) -> ToolFailure:
    """Nobody decided in time, or nobody used the decision in time."""
    how = (
        "was granted and not used before it lapsed"
        if approval.decided_by
        else "lapsed: nobody decided in time, which counts as no"
    )
    text = (
        f"approval {approval.approval_id} {how}. "
        "If the call is still wanted, invoke without an approval_id: that asks anew."
    )
    return _refused(ErrorKind.APPROVAL_REJECTED, approval, text, expires_at=iso(approval.expires_at_unix_ms))


def void(approval: Approval, why: str) -> ToolFailure:
    """An answer that no longer answers anything. Only the tool can ask again, and there is nothing to wait for."""
    return _nothing_to_wait_for(approval, f"{why} Invoke without an approval_id: the tool begins anew.")


def lost_race(approval: Approval) -> ToolFailure:
    """Another call has used it between this call's check and its effect. There is none that could be waited for."""
    return _nothing_to_wait_for(approval, f"{used_up(approval)} Invoke without an approval_id to ask for another.")


def _nothing_to_wait_for(approval: Approval, text: str) -> ToolFailure:
    failure = _refused(ErrorKind.APPROVAL_REQUIRED, approval, text)
    details = {name: value for name, value in failure.error.details.items() if name != "approval_id"}
    return ToolFailure(replace(failure.error, details=details | {"used_approval_id": approval.approval_id}))


def iso(unix_ms: int) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _refused(kind: ErrorKind, approval: Approval, text: str, **facts: str) -> ToolFailure:
    details: dict[str, JsonValue] = {
        "approval_id": approval.approval_id,
        "approval_state": approval.state.value,
        "rule_id": approval.rule_id,
        "policy_revision": approval.binding.policy_revision,
        **facts,
    }
    message = f"{approval.binding.tool}: {text}"
    return ToolFailure(ToolError(kind=kind, message=message, retryable=False, details=details))
