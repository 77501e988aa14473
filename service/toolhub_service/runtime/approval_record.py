"""Records of approvals as pure functions: from a judged call to the question, and from one state to the next.

    PENDING ──► APPROVED ──► USED
       │  │         │
       │  └─────────┴──────► EXPIRED
       └───────────────────► REJECTED

An approval is given for its `Binding` and nothing else; one that a tool asks for answers its question, too. One whose
time is over counts as EXPIRED whether or not a sweep has said so yet. One that only a job can use, and that job has
ended, is EXPIRED before its time, and says why where a person's comment would stand: it was withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from toolhub_service.domain.approval import Approval, ApprovalState, Binding
from toolhub_service.domain.call import Call, PlannedCall
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.verdict import Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approval_questions import Posed, without_reply
from toolhub_service.runtime.approval_summary import show_arguments

Decision = Literal[ApprovalState.APPROVED, ApprovalState.REJECTED]
"""What a person decides, as the state that follows."""

OPEN_STATES = frozenset({ApprovalState.PENDING, ApprovalState.APPROVED})
ASKS = "The tool asks a question in the middle of the call."
"""The reason of an approval that no rule asks for."""
_TEXT_MAX = 4_096
"""Characters of a purpose or a comment."""


def binding_of(planned: PlannedCall, verdict: Verdict, posed: Posed | None = None) -> Binding:
    call, spec = planned.call, planned.spec
    own = call.principal.id
    agent_id, user_id = ("" if named == own else named for named in (call.context.agent_id, call.context.user_id))
    return Binding(
        own,
        spec.name,
        spec.digest,
        planned.args_digest,
        verdict.policy_revision,
        call.job_id,
        agent_id,
        user_id,
        "" if posed is None else posed.digest,
        planned.preconditions.workspace,
        planned.preconditions.state,
    )


def question(
    planned: PlannedCall,
    verdict: Verdict,
    *,
    approval_id: str,
    now_unix_ms: int,
    default_expires_s: float,
    redactor: Redactor,
    posed: Posed | None = None,
) -> Approval:
    """A PENDING approval of exactly this call, under the terms of the rule that asks, or of what its tool asks."""
    call = planned.call
    expires_s, approvers = _terms(verdict.details.get("approval"), default_expires_s)
    approval = Approval(
        approval_id=approval_id,
        binding=binding_of(planned, verdict, posed),
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
    if posed is None:
        return approval
    return replace(
        approval, reason=ASKS, question=posed.question, round=posed.round, covers_rule_id=posed.covers_rule_id
    )


def decided(
    approval: Approval,
    decision: Decision,
    by: str,
    comment: str,
    now_unix_ms: int,
    answer: JsonObject | None = None,
) -> Approval:
    """`answer`: to the question of an approval that has one."""
    if decision is ApprovalState.REJECTED:
        approval = without_reply(approval)
    return replace(
        approval,
        state=decision,
        decided_at_unix_ms=now_unix_ms,
        decided_by=by,
        comment=comment,
        answer=answer,
        version=approval.version + 1,
    )


def used(approval: Approval, call: Call, now_unix_ms: int) -> Approval:
    """A job's may be needed once more: see `is_rerun`."""
    return replace(
        approval if call.job_id else without_reply(approval),
        state=ApprovalState.USED,
        used_at_unix_ms=now_unix_ms,
        used_by_call_id=call.call_id,
        version=approval.version + 1,
    )


def expired(approval: Approval) -> Approval:
    return replace(without_reply(approval), state=ApprovalState.EXPIRED, version=approval.version + 1)


def withdrawn(approval: Approval, why: str, now_unix_ms: int) -> Approval:
    """EXPIRED from now on. What a person has said of it stays; where nobody has, `why` is told in its place."""
    return replace(
        expired(approval),
        expires_at_unix_ms=min(now_unix_ms, approval.expires_at_unix_ms),
        comment=approval.comment if approval.decided_by else why,
    )


def was_withdrawn(approval: Approval) -> bool:
    """Whether it ended undecided because nothing waited for it any more."""
    return approval.state is ApprovalState.EXPIRED and not approval.decided_by and approval.comment != ""


def is_over(approval: Approval, now_unix_ms: int) -> bool:
    """Whether it is open by its record and its time has passed."""
    return approval.state in OPEN_STATES and now_unix_ms >= approval.expires_at_unix_ms


def was_decided(approval: Approval) -> Decision | None:
    """What a person said of it, whatever has become of it since; None when nobody has."""
    if not approval.decided_by:
        return None
    return ApprovalState.REJECTED if approval.state is ApprovalState.REJECTED else ApprovalState.APPROVED


def is_rerun(approval: Approval, call: Call) -> bool:
    """Whether the call is the run of a job that has used the approval up before: the same effect, not a second one."""
    return bool(call.job_id) and approval.used_by_call_id == call.call_id


def differences(given: Binding, asked: Binding, *, is_done: bool = False) -> list[str]:
    """What is not as it was when the approval was asked for. One that no job waits for may be used by a job, too.

    `is_done`: it has been used, so that the state is what its own effect has left; its key may answer the call. A
    record of a version that knew no workspace differs for every tool that works in one: it is asked for anew.

    What the tool asks is no part of it: a call that comes again cannot know it.
    """
    named = {
        "tool": given.tool != asked.tool,
        "tool definition": given.tool == asked.tool and given.tool_digest != asked.tool_digest,
        "arguments": given.args_digest != asked.args_digest,
        "policy revision": given.policy_revision != asked.policy_revision,
        "job": given.job_id not in ("", asked.job_id),
        "agent": given.agent_id != asked.agent_id,
        "user": given.user_id != asked.user_id,
        "workspace": given.workspace != asked.workspace,
        "state": given.workspace == asked.workspace and given.state != asked.state and not is_done,
    }
    return [name for name, differs in named.items() if differs]


def untrusted_text(text: str, redactor: Redactor) -> str:
    """What somebody wrote, fit to be kept and shown: redacted, cut with a mark, plain UTF-8."""
    plain = text.encode("utf-8", "replace").decode()
    text = redactor.text(plain)
    left_out = len(text) - _TEXT_MAX
    return text if left_out <= 0 else f"{text[:_TEXT_MAX]}… [{left_out} more characters left out]"


def _terms(terms: JsonValue, default_expires_s: float) -> tuple[float, tuple[str, ...]]:
    """(seconds until it lapses, globs over who may decide) as policy/table.py writes them into a verdict."""
    if not isinstance(terms, Mapping):
        return default_expires_s, ()
    expires_s, approvers = terms.get("expires_s"), terms.get("approvers")
    return (
        float(expires_s) if isinstance(expires_s, int | float) else default_expires_s,
        tuple(str(name) for name in approvers) if isinstance(approvers, list | tuple) else (),
    )
