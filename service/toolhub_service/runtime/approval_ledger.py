"""Every change of an approval: into the store by compare-and-set, then to whoever counts it and into the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.call import Call, ExecContext, PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.verdict import Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.table import APPROVAL_REMEDY
from toolhub_service.runtime.approval_record import OPEN_STATES, expired, is_over, is_rerun, used, withdrawn
from toolhub_service.runtime.record import summarise
from toolhub_service.runtime.steps import details_of

# Approvals in the audit log: asked, revealed, decided, used, expired.
#
# `principal` is who acted; the asker where nobody did.

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


# What a caller is told while its call has no approval: what to wait for, what to send then, and why not now.

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
    return ToolFailure(ToolError(kind=ErrorKind.APPROVAL_REQUIRED, message=message, details=details))


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
    return ToolFailure(ToolError(kind=kind, message=message, details=details))


PENDING = frozenset({ApprovalState.PENDING})
_BATCH = 256


class ApprovalObserver(Protocol):
    """Metrics: told what happens to approvals, never asked."""

    def changed(self, approval: Approval) -> None:
        """This process brought it to its state; PENDING: it was asked for."""
        ...

    def pending(self, count: int) -> None:
        """How many wait for a person in the whole store."""
        ...


class Unobserved:
    """Implements `ApprovalObserver` where nobody counts."""

    def changed(self, approval: Approval) -> None: ...

    def pending(self, count: int) -> None: ...


class ApprovalLedger:
    """Raises ToolFailure TOOL_UNAVAILABLE for a store that cannot be reached, IO_ERROR for a log that is broken."""

    def __init__(
        self,
        store: ApprovalStore,
        audit: AuditLog,
        clock: Clock,
        observer: ApprovalObserver,
        on_asked: Callable[[Approval], object],
        redactor: Redactor,
    ) -> None:
        self.store = store
        self._audit = audit
        self._clock = clock
        self._observer = observer
        self._on_asked = on_asked
        self._redactor = redactor

    async def ask(self, approval: Approval, planned: PlannedCall) -> Approval:
        """The open one of the same binding, else this one, which is new and on record then."""
        while (standing := await self.store.create(approval)) is not None:
            if not is_over(standing, approval.requested_at_unix_ms):
                return standing
            await self._expire(standing)
        try:
            summary = summarise(planned.args, self._redactor)
            await self._audit.append_durably(asked_event(approval, planned.call.context, summary))
        except ToolFailure:
            await self.store.put(expired(approval))  # a question that the log does not know of is taken back
            raise
        except asyncio.CancelledError:
            self._tell_asked(approval)  # the event is chained, and the question stands
            raise
        self._tell_asked(approval)
        return approval

    async def reveal(self, approval: Approval, by: str) -> None:
        """Put on record that this approver is shown the arguments: before they are."""
        await self._audit.append_durably(revealed_event(approval, by, self._clock.unix_ms()))

    async def decide(self, after: Approval) -> bool:
        """Keep a decision. False: another change came first, or the store's answer was lost; look again."""
        if not await self.store.put(after):
            return False
        await self.decided(after)
        return True

    async def decided(self, after: Approval) -> None:
        """The decision stands in the store: put it on record."""
        self._observer.changed(after)
        said = "" if after.answer is None else summarise(after.answer, self._redactor)
        await self._audit.append_durably(decided_event(after, said))

    async def use(self, approval: Approval, call: Call) -> None:
        """Use it up for this call. Raises APPROVAL_REQUIRED when another one has, APPROVAL_REJECTED when it is over."""
        rerun = approval.state is ApprovalState.USED
        if rerun and not is_rerun(approval, call):
            raise lost_race(approval)
        if not rerun:
            approval = await self._take(approval, call)
        await self._audit.append_durably(used_event(approval, call, self._clock.unix_ms(), is_rerun=rerun))

    async def current(self, approval: Approval) -> Approval:
        """The approval as it is now; that it has expired is persisted when it is first noticed."""
        return await self._expire(approval) if is_over(approval, self._clock.unix_ms()) else approval

    async def withdraw(self, approval: Approval, why: str) -> None:
        """End it before its time unless it has ended: nothing waits for it any more."""
        while (approval := await self.current(approval)).state in OPEN_STATES:
            now_unix_ms = self._clock.unix_ms()
            over = withdrawn(approval, why, now_unix_ms)
            if await self.store.put(over):
                self._observer.changed(over)
                self._audit.append(expired_event(over, now_unix_ms, why))
                return
            approval = await self.store.get(approval.approval_id) or over

    async def lapse(self, now_unix_ms: int) -> int:
        """Put down which approvals are over; how many were found to be."""
        count = 0
        while True:
            batch = await self.store.expired(now_unix_ms, _BATCH)
            for approval in batch:
                count += (await self._expire(approval)).state is ApprovalState.EXPIRED
            if len(batch) < _BATCH:
                return count

    async def sweep(self, keep_ms: int) -> None:
        """Lapse what is over, forget what ended `keep_ms` ago, and count what waits."""
        now_unix_ms = self._clock.unix_ms()
        await self.lapse(now_unix_ms)
        while await self.store.forget(now_unix_ms - keep_ms, _BATCH) == _BATCH:
            pass
        _, pending = await self.store.page(ApprovalFilter(states=PENDING), after=None, limit=1)
        self._observer.pending(pending)

    def _tell_asked(self, approval: Approval) -> None:
        self._observer.changed(approval)
        self._on_asked(approval)

    async def _expire(self, approval: Approval) -> Approval:
        """EXPIRED, unless somebody was faster: then as that left it."""
        over = expired(approval)
        if await self.store.put(over):
            self._observer.changed(over)
            self._audit.append(expired_event(over, self._clock.unix_ms()))
            return over
        return await self.store.get(approval.approval_id) or over

    async def _take(self, approval: Approval, call: Call) -> Approval:
        """The approval as used by this call. Raises as `use`."""
        now_unix_ms = self._clock.unix_ms()
        if is_over(approval, now_unix_ms):
            raise lapsed(await self._expire(approval))
        taken = used(approval, call, now_unix_ms)
        if await self.store.put(taken):
            self._observer.changed(taken)
            return taken
        now = await self.store.get(approval.approval_id) or approval
        if now == taken:
            return taken  # kept, only the answer was lost
        raise lapsed(now) if now.state is ApprovalState.EXPIRED else lost_race(now)
