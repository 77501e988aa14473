"""Records of approvals as pure functions: from a call and its verdict to the question, and from state to state.

    PENDING ──► APPROVED ──► USED
       │  │         │
       │  └─────────┴──────► EXPIRED
       └───────────────────► REJECTED

An approval is valid for its `Binding` only; one that a tool requests also answers the tool's question. After its time
has passed it counts as EXPIRED, whether or not a sweep has recorded that. An approval that only a job can use is
withdrawn when that job has ended: it is EXPIRED before its time, with the reason in place of a person's comment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import structs

from toolhub_service.domain.approval import Approval, ApprovalState, Binding
from toolhub_service.domain.call import Call, PlannedCall
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.verdict import Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.show_arguments import show_arguments
from toolhub_service.runtime.approvals.tool_questions import AskedQuestion, without_reply
from toolhub_service.runtime.redaction import redact_text

Decision = Literal[ApprovalState.APPROVED, ApprovalState.REJECTED]
"""State that follows each decision of a person."""

OPEN_STATES = frozenset({ApprovalState.PENDING, ApprovalState.APPROVED})
ASKS = "The tool asks a question during the call."
"""Reason of an approval that no rule requires."""
# Longest purpose or comment, in characters.
_TEXT_MAX = 4_096


def binding_of(planned: PlannedCall, verdict: Verdict, asked: AskedQuestion | None = None) -> Binding:
    call, spec = planned.call, planned.spec
    own = call.principal.id
    agent_id, user_id = ("" if named == own else named for named in (call.context.agent_id, call.context.user_id))
    return Binding(
        principal=own,
        tool=spec.name,
        tool_digest=spec.digest,
        args_digest=planned.args_digest,
        policy_revision=verdict.policy_revision,
        job_id=call.waiting_job_id,
        agent_id=agent_id,
        user_id=user_id,
        question_digest="" if asked is None else asked.digest,
        workspace=planned.preconditions.workspace,
        state=planned.preconditions.state,
        actors=" ".join(call.principal.actors),
    )


def binding_given(given: Binding, planned: PlannedCall, verdict: Verdict) -> Binding:
    """Return the binding that `given` must equal to be valid for this call. A binding that a job received for one of
    its own calls also holds for the job which that call has become."""
    asked, lineage = binding_of(planned, verdict), planned.call.lineage
    if lineage is not None and lineage.is_kept and given.job_id == lineage.job_id:
        return structs.replace(asked, job_id=given.job_id)
    return asked


def question(
    planned: PlannedCall,
    verdict: Verdict,
    *,
    approval_id: str,
    now_unix_ms: int,
    default_expires_s: float,
    redactor: Redactor,
    asked: AskedQuestion | None = None,
) -> Approval:
    """Return a PENDING approval of exactly this call, on the terms of the rule that requires it or for the tool's
    question."""
    call = planned.call
    expires_s, approvers = _terms(verdict.details.get("approval"), default_expires_s)
    approval = Approval(
        approval_id=approval_id,
        binding=binding_of(planned, verdict, asked),
        state=ApprovalState.PENDING,
        tool_version=planned.spec.version,
        args_summary_json=show_arguments(planned.args, redactor),
        rule_id=verdict.rule_id,
        reason=verdict.reason,
        purpose=untrusted_text(call.purpose, redactor),
        call_id=call.call_id,
        request_id=call.context.request_id,
        requested_at_unix_ms=now_unix_ms,
        expires_at_unix_ms=now_unix_ms + round(expires_s * 1_000),
        approvers=approvers,
    )
    if asked is None:
        return approval
    return structs.replace(
        approval, reason=ASKS, question=asked.question, round=asked.round, covers_rule_id=asked.covers_rule_id
    )


def decide_approval(
    approval: Approval,
    decision: Decision,
    by: str,
    comment: str,
    now_unix_ms: int,
    answer: JsonObject | None = None,
) -> Approval:
    """Return the approval as decided; `answer` belongs to an approval with a question."""
    if decision is ApprovalState.REJECTED:
        approval = without_reply(approval)
    return structs.replace(
        approval,
        state=decision,
        decided_at_unix_ms=now_unix_ms,
        decided_by=by,
        comment=comment,
        answer=answer,
        version=approval.version + 1,
    )


def use_approval(approval: Approval, call: Call, now_unix_ms: int) -> Approval:
    """Return the approval as used; a job's approval keeps its answer, which its next run may need: see `is_rerun`."""
    return structs.replace(
        approval if call.waiting_job_id else without_reply(approval),
        state=ApprovalState.USED,
        used_at_unix_ms=now_unix_ms,
        used_by_call_id=call.call_id,
        version=approval.version + 1,
    )


def expire_approval(approval: Approval) -> Approval:
    return structs.replace(without_reply(approval), state=ApprovalState.EXPIRED, version=approval.version + 1)


def withdraw_approval(approval: Approval, why: str, now_unix_ms: int) -> Approval:
    """Return the approval as EXPIRED now. A person's decision stays; where there is none, `why` is shown in its
    place."""
    return structs.replace(
        expire_approval(approval),
        expires_at_unix_ms=min(now_unix_ms, approval.expires_at_unix_ms),
        comment=approval.comment if approval.decided_by else why,
    )


def was_withdrawn(approval: Approval) -> bool:
    """Return whether it ended undecided because nothing waited for it any more."""
    return approval.state is ApprovalState.EXPIRED and not approval.decided_by and approval.comment != ""


def is_over(approval: Approval, now_unix_ms: int) -> bool:
    """Return whether the record is open although its time has passed."""
    return approval.state in OPEN_STATES and now_unix_ms >= approval.expires_at_unix_ms


def was_decided(approval: Approval) -> Decision | None:
    """Return the person's decision, even if it has been used since; None when there is none."""
    if not approval.decided_by:
        return None
    return ApprovalState.REJECTED if approval.state is ApprovalState.REJECTED else ApprovalState.APPROVED


def is_rerun(approval: Approval, call: Call) -> bool:
    """Return whether the call is the run of a job that has used the approval already: the same effect, not a second
    one."""
    return bool(call.waiting_job_id) and approval.used_by_call_id == call.call_id


def differences(given: Binding, asked: Binding, *, is_done: bool = False) -> list[str]:
    """Return which parts of the call differ from what the approval was requested for. An approval that no job waits for
    may be used by a job, too.

    `is_done` says that the approval has been used, so that the state is the result of its own effect and its key may
    answer the call. Records of versions without workspaces differ for every tool that works in one, so the approval is
    requested again.

    The tool's question is not compared, because a repeated call cannot know it.
    """
    named = {
        "tool": given.tool != asked.tool,
        "tool definition": given.tool == asked.tool and given.tool_digest != asked.tool_digest,
        "arguments": given.args_digest != asked.args_digest,
        "policy revision": given.policy_revision != asked.policy_revision,
        "job": given.job_id not in ("", asked.job_id),
        "agent": given.agent_id != asked.agent_id,
        "user": given.user_id != asked.user_id,
        "actor": given.actors != asked.actors,
        "workspace": given.workspace != asked.workspace,
        "state": given.workspace == asked.workspace and given.state != asked.state and not is_done,
    }
    return [name for name, differs in named.items() if differs]


def untrusted_text(text: str, redactor: Redactor) -> str:
    """Return text from outside as it can be stored and shown: redacted, cut with a mark, plain UTF-8."""
    text = redact_text(text, redactor)
    left_out = len(text) - _TEXT_MAX
    return text if left_out <= 0 else f"{text[:_TEXT_MAX]}… [{left_out} more characters left out]"


def _terms(terms: JsonValue, default_expires_s: float) -> tuple[float, tuple[str, ...]]:
    """Return (seconds until expiry, globs of those who may decide) from the verdict that policy/table.py has
    written."""
    if not isinstance(terms, Mapping):
        return default_expires_s, ()
    expires_s, approvers = terms.get("expires_s"), terms.get("approvers")
    return (
        float(expires_s) if isinstance(expires_s, int | float) else default_expires_s,
        tuple(str(name) for name in approvers) if isinstance(approvers, list | tuple) else (),
    )
