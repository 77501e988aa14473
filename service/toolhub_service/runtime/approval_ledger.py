"""Every change of an approval: into the store by compare-and-set, then to whoever counts it and into the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.domain.approval_ports import ApprovalStore
from toolhub_service.domain.call import Call, PlannedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime import approval_refusals as refusals
from toolhub_service.runtime.approval_events import (
    asked_event,
    decided_event,
    expired_event,
    revealed_event,
    used_event,
)
from toolhub_service.runtime.approval_record import OPEN_STATES, expired, is_over, is_rerun, used, withdrawn
from toolhub_service.runtime.summary import summarise

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
            raise refusals.lost_race(approval)
        if not rerun:
            approval = await self._take(approval, call)
        await self._audit.append_durably(used_event(approval, call, self._clock.unix_ms(), is_rerun=rerun))

    async def current(self, approval: Approval) -> Approval:
        """The approval as it stands by the clock, put down as such when that is new."""
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
            batch = await self.store.lapsed(now_unix_ms, _BATCH)
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
            raise refusals.lapsed(await self._expire(approval))
        taken = used(approval, call, now_unix_ms)
        if await self.store.put(taken):
            self._observer.changed(taken)
            return taken
        now = await self.store.get(approval.approval_id) or approval
        if now == taken:
            return taken  # kept, only the answer was lost
        raise refusals.lapsed(now) if now.state is ApprovalState.EXPIRED else refusals.lost_race(now)
