"""Every change of an approval: into the store by compare-and-set, then to whoever counts it and into the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.call import Call, ExecContext, PlannedCall, Principal
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approval_record import OPEN_STATES, expired, is_over, is_rerun, used, withdrawn
from toolhub_service.runtime.approval_refusals import lost_race, too_late
from toolhub_service.runtime.record import summarise

# Approvals in the audit log: asked, revealed, decided, used, expired.
#
# `principal` is who acted; the asker where nobody did.

# Characters of a tool's question.
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
    """`facts` that are empty are left out."""
    binding = approval.binding
    if context is None:  # without a call at hand, as far as the approval is bound to it
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
    """`withdrawn_because`: why it ended before its time; empty when its time is over."""
    facts = {"decided_by": approval.decided_by, "withdrawn_because": withdrawn_because}
    return _event(EventType.APPROVAL_EXPIRED, approval, at_unix_ms, facts=facts)


PENDING = frozenset({ApprovalState.PENDING})
_BATCH = 256


def _of_approver(by: Principal) -> dict[str, str]:
    """What the approver's own credential says beside the id; `actors` and the like are of who asked."""
    return {f"approver_{name}": fact for name, fact in by.facts.items()}


class ApprovalObserver(Protocol):
    """Metrics: notified of what happens to approvals, never asked."""

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
            event = _event(
                EventType.APPROVAL_ASKED,
                approval,
                approval.requested_at_unix_ms,
                context=planned.call.context,
                args_summary=summarise(planned.args, self._redactor),
                purpose=approval.purpose,
                facts={"question": approval.question.message[:_MESSAGE_MAX], "round": str(approval.round)}
                if approval.question is not None
                else {},
            )
            await self._audit.append_durably(event)
        except ToolFailure:
            await self.store.put(expired(approval))  # a question that the log does not know of is taken back
            raise
        except asyncio.CancelledError:
            self._notify_asked(approval)  # the event is chained, and the question stands
            raise
        self._notify_asked(approval)
        return approval

    async def reveal(self, approval: Approval, by: Principal) -> None:
        """Put on record that this approver is shown the arguments: before they are."""
        facts = {"asked_by": approval.binding.principal, **_of_approver(by)}
        event = _event(EventType.APPROVAL_REVEALED, approval, self._clock.unix_ms(), principal=by.id, facts=facts)
        await self._audit.append_durably(event)

    async def decide(self, after: Approval, by: Principal) -> bool:
        """Keep a decision. False: another change came first, or the store's answer was lost; look again."""
        if not await self.store.put(after):
            return False
        await self.decided(after, by)
        return True

    async def decided(self, after: Approval, by: Principal) -> None:
        """The decision stands in the store: put it on record."""
        self._observer.changed(after)
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
        """Use it up for this call. Raises APPROVAL_REQUIRED when another one has, APPROVAL_REJECTED when it is over."""
        rerun = approval.state is ApprovalState.USED
        if rerun and not is_rerun(approval, call):
            raise lost_race(approval)
        if not rerun:
            approval = await self._take(approval, call)
        facts = {
            "decided_by": approval.decided_by,
            "asked_by_call": approval.call_id,
            "rerun": "true" if rerun else "",
            "job_id": call.job_id or approval.binding.job_id,
        }
        # It belongs to the call that uses it, which need not be the one that asked.
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
        """The approval as it is now; that it has expired is persisted when it is first noticed."""
        return await self._expire(approval) if is_over(approval, self._clock.unix_ms()) else approval

    async def withdraw(self, approval: Approval, why: str) -> None:
        """End it before its time unless it has ended: nothing waits for it any more."""
        while (approval := await self.current(approval)).state in OPEN_STATES:
            now_unix_ms = self._clock.unix_ms()
            over = withdrawn(approval, why, now_unix_ms)
            if await self.store.put(over):
                self._observer.changed(over)
                self._audit.append(_expired_event(over, now_unix_ms, why))
                return
            approval = await self.store.get(approval.approval_id) or over

    async def expire_due(self, now_unix_ms: int) -> int:
        """Persist which approvals are over; how many were found to be."""
        count = 0
        while True:
            batch = await self.store.expired(now_unix_ms, _BATCH)
            for approval in batch:
                count += (await self._expire(approval)).state is ApprovalState.EXPIRED
            if len(batch) < _BATCH:
                return count

    async def sweep(self, keep_ms: int) -> None:
        """Expire what is over, forget what ended `keep_ms` ago, and count what waits."""
        now_unix_ms = self._clock.unix_ms()
        await self.expire_due(now_unix_ms)
        while await self.store.forget(now_unix_ms - keep_ms, _BATCH) == _BATCH:
            pass
        _, pending = await self.store.page(ApprovalFilter(states=PENDING), after=None, limit=1)
        self._observer.pending(pending)

    def _notify_asked(self, approval: Approval) -> None:
        self._observer.changed(approval)
        self._on_asked(approval)

    async def _expire(self, approval: Approval) -> Approval:
        """EXPIRED, unless somebody was faster: then as that left it."""
        over = expired(approval)
        if await self.store.put(over):
            self._observer.changed(over)
            self._audit.append(_expired_event(over, self._clock.unix_ms()))
            return over
        return await self.store.get(approval.approval_id) or over

    async def _take(self, approval: Approval, call: Call) -> Approval:
        """The approval as used by this call. Raises as `use`."""
        now_unix_ms = self._clock.unix_ms()
        if is_over(approval, now_unix_ms):
            raise too_late(await self._expire(approval))
        taken = used(approval, call, now_unix_ms)
        if await self.store.put(taken):
            self._observer.changed(taken)
            return taken
        now = await self.store.get(approval.approval_id) or approval
        if now == taken:
            return taken  # kept, only the answer was lost
        raise too_late(now) if now.state is ApprovalState.EXPIRED else lost_race(now)
