"""Approvals in the audit log: asked, revealed, decided, used, expired.

`principal` is who acted; the asker where nobody did.
"""

from __future__ import annotations

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import Call, ExecContext
from toolhub_service.domain.event import Event, EventType

_MESSAGE_MAX = 200
"""Characters of a tool's question."""


def asked_event(approval: Approval, context: ExecContext, args_summary: str) -> Event:
    """`context` of the call that asks; `args_summary` is the audit's own short form."""
    facts: dict[str, str] = {}
    if approval.question is not None:
        facts = {"question": approval.question.message[:_MESSAGE_MAX], "round": str(approval.round)}
    return _event(
        EventType.APPROVAL_ASKED,
        approval,
        approval.requested_at_unix_ms,
        context=context,
        args_summary=args_summary,
        purpose=approval.purpose,
        facts=facts,
    )


def revealed_event(approval: Approval, by: str, at_unix_ms: int) -> Event:
    """`by`: the approver who is shown the arguments."""
    facts = {"asked_by": approval.binding.principal}
    return _event(EventType.APPROVAL_REVEALED, approval, at_unix_ms, principal=by, facts=facts)


def decided_event(approval: Approval, answer_summary: str) -> Event:
    """`answer_summary`: the audit's short form of the answer, redacted; empty when nothing was asked or answered."""
    facts = {"asked_by": approval.binding.principal, "answer_summary": answer_summary}
    if approval.comment:
        facts["comment"] = approval.comment
    by, at = approval.decided_by, approval.decided_at_unix_ms
    return _event(EventType.APPROVAL_DECIDED, approval, at, principal=by, facts=facts)


def used_event(approval: Approval, call: Call, at_unix_ms: int, *, is_rerun: bool) -> Event:
    """Belongs to the call that uses it, which need not be the one that asked."""
    facts = {"decided_by": approval.decided_by, "asked_by_call": approval.call_id}
    if is_rerun:
        facts["rerun"] = "true"
    if call.job_id:
        facts["job_id"] = call.job_id
    return _event(
        EventType.APPROVAL_USED, approval, at_unix_ms, context=call.context, call_id=call.call_id, facts=facts
    )


def expired_event(approval: Approval, at_unix_ms: int, withdrawn_because: str = "") -> Event:
    """`withdrawn_because`: why it ended before its time; empty when its time is over."""
    facts = {"decided_by": approval.decided_by, "withdrawn_because": withdrawn_because}
    return _event(EventType.APPROVAL_EXPIRED, approval, at_unix_ms, facts=facts)


def _event(
    type: EventType,
    approval: Approval,
    at_unix_ms: int,
    *,
    context: ExecContext | None = None,
    principal: str = "",
    call_id: str = "",
    args_summary: str = "",
    purpose: str = "",
    facts: dict[str, str] | None = None,
) -> Event:
    binding = approval.binding
    if context is None:  # without a call at hand, as far as the approval is bound to it
        context = ExecContext(user_id=binding.user_id, agent_id=binding.agent_id)
    attributes = {
        "approval_id": approval.approval_id,
        "job_id": binding.job_id,
        "question_digest": binding.question_digest,
        "agent_id": binding.agent_id,
        "user_id": binding.user_id,
        **(facts or {}),
    }
    return Event(
        type=type,
        at_unix_ms=at_unix_ms,
        principal=principal or binding.principal,
        tool=binding.tool,
        tool_digest=binding.tool_digest,
        call_id=call_id or approval.call_id,
        request_id=approval.request_id,
        args_digest=binding.args_digest,
        args_summary=args_summary,
        purpose=purpose,
        policy_revision=binding.policy_revision,
        rule_id=approval.rule_id,
        outcome=approval.state.value,
        attributes={name: value for name, value in attributes.items() if value},
        user_id=context.user_id,
        agent_id=context.agent_id,
        task_id=context.task_id,
        session_id=context.session_id,
        labels=context.labels,
    )
