"""Every change of an approval: written to the store by compare-and-set, then reported to the observer and the audit
log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.call import Call, ExecContext, PlannedCall, Principal
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.binding import (
    OPEN_STATES,
    expire_approval,
    is_over,
    is_rerun,
    use_approval,
    withdraw_approval,
)
from toolhub_service.runtime.approvals.refusals import refuse_lost_race, too_late
from toolhub_service.runtime.record import summarise

# Approvals in the audit log: asked, revealed, decided, used, expired. `principal` is who acted, or the requester where
# nobody did.

# Longest excerpt of a tool's question, in characters.
_MESSAGE_MAX = 200


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
    facts: dict[str, str],
) -> Event:
    """Return the audit event; empty `facts` are left out."""
    binding = approval.binding
    if context is None:  # without a call at hand, the binding gives the scope
        context = ExecContext(user_id=binding.user_id, agent_id=binding.agent_id)
    attributes = {
        "approval_id": approval.approval_id,
        "job_id": binding.job_id,
        "question_digest": binding.question_digest,
        "agent_id": binding.agent_id,
        "user_id": binding.user_id,
        "actors": binding.actors,
        **facts,
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


def _expired_event(approval: Approval, at_unix_ms: int, withdrawn_because: str = "") -> Event:
    """Return the event of an expiry; `withdrawn_because` says why it ended early, and is empty when its time has
    passed."""
    facts = {"decided_by": approval.decided_by, "withdrawn_because": withdrawn_because}
    return _event(EventType.APPROVAL_EXPIRED, approval, at_unix_ms, facts=facts)


PENDING = frozenset({ApprovalState.PENDING})
_BATCH = 256


def _of_approver(by: Principal) -> dict[str, str]:
    """Return what the approver's own credential adds to the id; `actors` and the like describe the requester."""
    return {f"approver_{name}": fact for name, fact in by.facts.items()}


class ApprovalObserver(Protocol):
    """Metrics: notified of every change of an approval; cannot influence it."""

    def on_change(self, approval: Approval) -> None:
        """Called when this process has brought the approval to its state; PENDING means that it was just requested."""
        ...

    def pending(self, count: int) -> None:
        """Called with the number of pending approvals in the whole store."""
        ...


class Unobserved:
    """Implements `ApprovalObserver` where there are no metrics."""

    def on_change(self, approval: Approval) -> None: ...

    def pending(self, count: int) -> None: ...


class ApprovalLedger:
    """Writes approvals to the store and to the audit log.

    Its methods raise ToolFailure TOOL_UNAVAILABLE when the store cannot be reached and IO_ERROR when the audit log is
    broken.
    """

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
        """Return the open approval with the same binding, else create and audit this one."""
        while (standing := await self.store.create(approval)) is not None:
            if not is_over(standing, approval.requested_at_unix_ms):
                return standing
            await self._expire(standing)
        try:
            event = _event(
                EventType.APPROVAL_ASKED,
                approval,
                approval.requested_at_unix_ms,
                context=planned.call.context,
                args_summary=summarise(planned.args, self._redactor),
                purpose=approval.purpose,
                facts={"question": excerpt(approval.question.message, _MESSAGE_MAX), "round": str(approval.round)}
                if approval.question is not None
                else {},
            )
            await self._audit.append_durably(event)
        except ToolFailure:
            await self.store.put(
                expire_approval(approval)
            )  # an approval that the log does not know of is removed again
            raise
        except asyncio.CancelledError:
            self._notify_asked(approval)  # the event is already chained, so the approval stays
            raise
        self._notify_asked(approval)
        return approval

    async def reveal(self, approval: Approval, by: Principal) -> None:
        """Record that this approver is shown the arguments, before they are shown."""
        facts = {"asked_by": approval.binding.principal, **_of_approver(by)}
        event = _event(EventType.APPROVAL_REVEALED, approval, self._clock.unix_ms(), principal=by.id, facts=facts)
        await self._audit.append_durably(event)

    async def decide(self, after: Approval, by: Principal) -> bool:
        """Store a decision. Return False when another change came first or the store's answer was lost: read the record
        again."""
        if not await self.store.put(after):
            return False
        await self.record_decision(after, by)
        return True

    async def record_decision(self, after: Approval, by: Principal) -> None:
        """Audit a decision that the store has."""
        self._observer.on_change(after)
        facts = {
            "asked_by": after.binding.principal,
            "answer_summary": "" if after.answer is None else summarise(after.answer, self._redactor),
            "comment": after.comment,
            **_of_approver(by),
        }
        at = after.decided_at_unix_ms
        event = _event(EventType.APPROVAL_DECIDED, after, at, principal=after.decided_by, facts=facts)
        await self._audit.append_durably(event)

    async def use(self, approval: Approval, call: Call) -> None:
        """Mark the approval as used by this call. Raises APPROVAL_REQUIRED when another call has used it,
        APPROVAL_REJECTED when it has expired."""
        rerun = approval.state is ApprovalState.USED
        if rerun and not is_rerun(approval, call):
            raise refuse_lost_race(approval)
        if not rerun:
            approval = await self._take(approval, call)
        facts = {
            "decided_by": approval.decided_by,
            "asked_by_call": approval.call_id,
            "rerun": "true" if rerun else "",
            "job_id": call.job_id or approval.binding.job_id,
        }
        # The event belongs to the call that uses the approval, which need not be the call that requested it.
        event = _event(
            EventType.APPROVAL_USED,
            approval,
            self._clock.unix_ms(),
            context=call.context,
            call_id=call.call_id,
            facts=facts,
        )
        await self._audit.append_durably(event)

    async def current(self, approval: Approval) -> Approval:
        """Return the approval as it is now; an expiry is stored when it is first noticed."""
        return await self._expire(approval) if is_over(approval, self._clock.unix_ms()) else approval

    async def withdraw(self, approval: Approval, why: str) -> None:
        """Expire the approval early, unless it has ended already: nothing waits for it any more."""
        while (approval := await self.current(approval)).state in OPEN_STATES:
            now_unix_ms = self._clock.unix_ms()
            over = withdraw_approval(approval, why, now_unix_ms)
            if await self.store.put(over):
                self._observer.on_change(over)
                self._audit.append(_expired_event(over, now_unix_ms, why))
                return
            approval = await self.store.get(approval.approval_id) or over

    async def expire_due(self, now_unix_ms: int) -> int:
        """Store the expiry of approvals whose time has passed, and return how many there were."""
        count = 0
        while True:
            batch = await self.store.read_expired(now_unix_ms, _BATCH)
            for approval in batch:
                count += (await self._expire(approval)).state is ApprovalState.EXPIRED
            if len(batch) < _BATCH:
                return count

    async def sweep(self, keep_ms: int) -> None:
        """Expire approvals whose time has passed, delete those that ended `keep_ms` ago, and report how many are
        pending."""
        now_unix_ms = self._clock.unix_ms()
        await self.expire_due(now_unix_ms)
        while await self.store.forget(now_unix_ms - keep_ms, _BATCH) == _BATCH:
            pass
        _, pending = await self.store.page(ApprovalFilter(states=PENDING), after=None, limit=1)
        self._observer.pending(pending)

    def _notify_asked(self, approval: Approval) -> None:
        self._observer.on_change(approval)
        self._on_asked(approval)

    async def _expire(self, approval: Approval) -> Approval:
        """Store EXPIRED; return the stored approval when another change came first."""
        over = expire_approval(approval)
        if await self.store.put(over):
            self._observer.on_change(over)
            self._audit.append(_expired_event(over, self._clock.unix_ms()))
            return over
        return await self.store.get(approval.approval_id) or over

    async def _take(self, approval: Approval, call: Call) -> Approval:
        """Return the approval as used by this call. Raises as `use` does."""
        now_unix_ms = self._clock.unix_ms()
        if is_over(approval, now_unix_ms):
            raise too_late(await self._expire(approval))
        taken = use_approval(approval, call, now_unix_ms)
        if await self.store.put(taken):
            self._observer.on_change(taken)
            return taken
        now = await self.store.get(approval.approval_id) or approval
        if now == taken:
            return taken  # the change was stored, and only the store's answer was lost
        raise too_late(now) if now.state is ApprovalState.EXPIRED else refuse_lost_race(now)
