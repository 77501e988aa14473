"""Approvals: one question to a person, bound to exactly one call, valid for one use, until its time has passed.

`settle` belongs to step 4: it requests an approval, or checks the one that was granted. `use` comes right before the
effect: of all calls that name one approval, the one whose compare-and-set succeeds may run. Any change since the
question was asked (caller, tool definition, arguments, policy, job) makes another call, which needs another approval.

A question of the tool is an approval, too (docs/decisions/0015): `ask_question` asks it, `settle` finds the answer when
the call comes again, and the run that follows is the rest of the same effect. Such an approval also covers the approval
under which its question was asked.

A call that comes again under its idempotency key, or as the re-run of its job, names an approval that it has used up
itself: `settle` accepts it. Then the key returns the stored answer, or the job runs on; `use` refuses every other call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn
from weakref import WeakValueDictionary

from msgspec.structs import replace

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.call import Call, PlannedCall, Principal, Question, Role
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import AuditLog, Clock, Randomness
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.guards.foreign_text import without_controls
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals import refusals
from toolhub_service.runtime.approvals.binding import (
    OPEN_STATES,
    Decision,
    binding_given,
    binding_of,
    decide_approval,
    differences,
    is_over,
    is_rerun,
    question,
    untrusted_text,
    was_decided,
)
from toolhub_service.runtime.approvals.ledger import PENDING, ApprovalLedger, ApprovalObserver, Unobserved
from toolhub_service.runtime.approvals.reveal import REVEALED_MAX_BYTES, OpenArguments, reveal_arguments
from toolhub_service.runtime.approvals.tool_questions import AskedQuestion, answer_to, ask_question
from toolhub_service.runtime.idempotency import effect_key
from toolhub_service.runtime.redaction import SHOWN_AT_ONCE_BYTES

_ID_MAX = 128


class Approvals:
    """Requests, checks, uses, decides and expires approvals; the truth is in the store, which other hubs may share.

    Every method raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached, and IO_ERROR when a change cannot
    be written to the audit log.
    """

    def __init__(
        self,
        store: ApprovalStore,
        audit: AuditLog,
        clock: Clock,
        randomness: Randomness,
        redactor: Redactor,
        *,
        default_expires_s: float = 3_600.0,
        keep_s: float = 2_592_000.0,
        max_pending: int = 256,
        on_asked: Callable[[Approval], object] = lambda _: None,
        observer: ApprovalObserver | None = None,
    ) -> None:
        """`max_pending` limits the undecided questions of one principal. `on_asked` is called with each new question;
        it must neither wait nor raise."""
        self._store = store
        self._ledger = ApprovalLedger(store, audit, clock, observer or Unobserved(), on_asked, redactor)
        self._clock = clock
        self._randomness = randomness
        self._redactor = redactor
        self._default_expires_s = default_expires_s
        self._keep_ms = round(keep_s * 1_000)
        self._max_pending = max_pending
        self._arguments = OpenArguments()
        # Locks by principal, while it asks.
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, planned: PlannedCall, verdict: Verdict, asked: AskedQuestion | None = None) -> Approval:
        """Return the open approval of exactly this call, or of its tool's question; create and audit one where there is
        none.

        Raises ToolFailure RATE_LIMITED when the principal has too many open questions.
        """
        principal = planned.call.principal
        asking = self._asking.setdefault(
            principal.id if open_approvals_max(principal) is None else principal.share, asyncio.Lock()
        )
        async with asking:  # concurrent requests would all find room
            approval = await self._room(planned, verdict, asked) or await self._ask(planned, verdict, asked)
        self._arguments.keep(approval, planned.args_json)
        return approval

    async def _ask(self, planned: PlannedCall, verdict: Verdict, asked: AskedQuestion | None) -> Approval:
        now_unix_ms = self._clock.unix_ms()
        asking = partial(
            question,
            planned,
            verdict,
            approval_id=f"apr_{now_unix_ms:012x}{self._randomness.token_hex(10)}",
            now_unix_ms=now_unix_ms,
            default_expires_s=self._default_expires_s,
            redactor=self._redactor,
            asked=asked,
        )
        is_large = len(planned.args_json) > SHOWN_AT_ONCE_BYTES
        return await self._ledger.ask(await in_thread(asking) if is_large else asking(), planned)

    async def ask_question(
        self, planned: PlannedCall, verdict: Verdict, question: Question, earlier: Approval | None
    ) -> NoReturn:
        """Ask the tool's question with which step 6 has ended; `earlier` is the approval that this run has used up.

        Raises ToolFailure APPROVAL_REQUIRED with the approval to wait for, UPSTREAM_ERROR for a question that cannot be
        asked, RATE_LIMITED as `ask` does.
        """
        asked = ask_question(planned, question, earlier, self._redactor)
        raise refusals.refuse_without_approval(planned, verdict, await self.ask(planned, verdict, asked))

    async def settle(self, planned: PlannedCall, verdict: Verdict) -> Approval | None:
        """Step 4 of a call that needs an approval or names one: return the granted approval, to be consumed by `use`;
        None when policy allows the call and it answers no question.

        Raises ToolFailure APPROVAL_REQUIRED with the approval to wait for, or APPROVAL_REJECTED.
        """
        approval_id = planned.call.approval_id
        if not approval_id:
            raise refusals.refuse_without_approval(planned, verdict, await self.ask(planned, verdict))
        approval = await self._store.get(approval_id)
        is_known = approval is not None and approval.binding.principal == planned.call.principal.id
        if approval is not None and approval.question is not None and is_known:
            return await self._settle_question(approval, planned, verdict)
        if verdict.allows:
            return None
        if approval is None or not is_known:
            why = f"There is no approval {approval_id[:_ID_MAX]!r} that you requested."
            raise await self._anew(planned, verdict, why)
        asked = binding_given(approval.binding, planned, verdict)
        differs = differences(approval.binding, asked, is_done=_is_done(approval, planned.call))
        if differs:
            raise await self._anew(planned, verdict, refusals.differing(approval, differs), differs=differs)
        return await self._check_state(approval, planned, verdict)

    async def use(self, approval: Approval, call: Call) -> None:
        """Consume the approval right before the effect; the call must not run when this raises.

        Raises ToolFailure APPROVAL_REQUIRED when another call has used it, APPROVAL_REJECTED when its time has passed.
        """
        await self._ledger.use(approval, call)

    async def withdraw(self, approval_id: str, job_id: str, why: str) -> None:
        """Withdraw what only this job could use: it has ended or is to stop."""
        approval = await self._store.get(approval_id)
        if approval is not None and approval.binding.job_id == job_id:
            await self._ledger.withdraw(approval, untrusted_text(why, self._redactor))

    async def decide(
        self,
        principal: Principal,
        approval_id: str,
        decision: Decision,
        comment: str = "",
        args_digest: str = "",
        answer: JsonObject | None = None,
    ) -> Approval:
        """Record a person's decision; the caller has checked the role approver. Repeating the same decision changes
        nothing.

        `answer` comes with the approval of a question; None stands for its defaults.

        Raises HubFailure NOT_FOUND, PERMISSION_DENIED (the principal's own request, or it is not among the rule's
        approvers), FAILED_PRECONDITION (another `args_digest`, decided otherwise, expired), INVALID_ARGUMENT (an answer
        where there is no question), or ToolFailure INPUT_SCHEMA_INVALID with violations for an answer that does not
        fit.
        """
        after: Approval | None = None
        while True:
            approval = await self._store.get(approval_id)
            if approval is None or not principal.may_know(approval.binding.principal):
                raise refusals.not_found(approval_id)
            if approval == after:  # the last attempt was stored, only the store's answer was lost
                await self._ledger.record_decision(after, principal)
                return after
            refusals.check_may_decide(principal, approval)
            if args_digest and args_digest != approval.binding.args_digest:
                raise refusals.another_call(approval)
            approval = await self._ledger.current(approval)
            if approval.state is not ApprovalState.PENDING:
                if _is_the_same(approval, principal, decision, answer):
                    return approval
                raise refusals.refuse_second_decision(approval)
            shown_comment, whole = (
                untrusted_text(without_controls(comment), self._redactor),
                _whole(approval, decision, answer),
            )
            after = decide_approval(approval, decision, principal.id, shown_comment, self._clock.unix_ms(), whole)
            if await self._ledger.decide(after, principal):
                return after

    async def get(self, principal: Principal, approval_id: str) -> Approval:
        """Return an approval: approvers see every one, others their own. Raises HubFailure NOT_FOUND."""
        approval = await self._store.get(approval_id)
        owner = "" if approval is None else approval.binding.principal
        if approval is None or whose(principal) not in ("", owner) or not principal.may_know(owner):
            raise refusals.not_found(approval_id)
        return await self._ledger.current(approval)

    async def reveal(self, principal: Principal, approval_id: str) -> tuple[Approval, bytes]:
        """Return (the approval, its arguments as from `reveal_arguments`), after this was audited.

        Raises HubFailure PERMISSION_DENIED for a principal that may not decide it, NOT_FOUND, FAILED_PRECONDITION when
        it has ended or the arguments are too large, UNAVAILABLE when this hub does not hold them.
        """
        if Role.APPROVER not in principal.roles:
            raise refusals.no_role(principal)
        approval = await self.get(principal, approval_id)
        refusals.check_may_decide(principal, approval)
        if approval.state not in OPEN_STATES:
            raise refusals.not_open(approval)
        kept = self._arguments.of(approval)
        if kept is None:
            raise refusals.not_here(approval)
        if not kept:
            raise refusals.too_large(approval, REVEALED_MAX_BYTES)
        args_json = await asyncio.to_thread(reveal_arguments, kept, self._redactor)  # many small values take long
        await self._ledger.reveal(approval, principal)
        return approval, args_json

    def on_event(self, approval: Approval | None) -> None:
        """Called as by `ApprovalStore.listen`: the arguments of an approval that has ended are no longer shown."""
        if approval is not None and approval.state not in OPEN_STATES:
            self._arguments.drop(approval)

    async def page(
        self, principal: Principal, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        """Return a page as `ApprovalStore.page` does, of the approvals that the principal may see."""
        own = whose(principal)
        if own and where.principal not in ("", own):
            return (), 0
        await self.expire_due(self._clock.unix_ms())
        seen = replace(where, principal=own) if own else replace(where, owners=principal.owners)
        return await self._store.page(seen, after=after, limit=limit)

    async def expire_due(self, now_unix_ms: int) -> int:
        """Store the expiry of approvals whose time has passed, and return how many there were."""
        return await self._ledger.expire_due(now_unix_ms)

    async def sweep(self) -> None:
        """Expire what is due and delete what ended long ago; to be called every few seconds."""
        self._arguments.expire_due(self._clock.unix_ms())
        await self._ledger.sweep(self._keep_ms)

    async def _settle_question(self, approval: Approval, planned: PlannedCall, verdict: Verdict) -> Approval | None:
        """As `settle`, for a call that names the question which an earlier run has asked.

        Where an answer is void and a rule requires approval, the rule's approval is requested first; a job whose answer
        is void starts again.
        """
        asked = binding_given(approval.binding, planned, verdict)
        differs = differences(approval.binding, asked, is_done=_is_done(approval, planned.call))
        if verdict.effect is Effect.REQUIRE_APPROVAL and approval.covers_rule_id != verdict.rule_id:
            why = (
                f"Approval {approval.approval_id} answers the tool's question; rule {verdict.rule_id} needs an "
                "approval of its own."
            )
            raise await self._anew(planned, verdict, why)
        if not differs:
            return await self._check_state(approval, planned, verdict)
        if verdict.effect is Effect.REQUIRE_APPROVAL:
            raise await self._anew(planned, verdict, refusals.differing(approval, differs), differs=differs)
        if planned.call.waiting_job_id and approval.binding.job_id == planned.call.waiting_job_id:
            return None
        raise refusals.void(approval, refusals.differing(approval, differs))

    async def _check_state(self, approval: Approval, planned: PlannedCall, verdict: Verdict) -> Approval:
        """Return the approval when its state lets this call go on to `use`."""
        approval = await self._ledger.current(approval)
        match approval.state:
            case ApprovalState.APPROVED:
                return approval
            case ApprovalState.PENDING:
                if approval.binding.job_id != planned.call.waiting_job_id:  # nobody would notify the job
                    why = f"Approval {approval.approval_id} is not granted yet. A job waits only for its own approval."
                    raise await self._otherwise(approval, planned, verdict, why)
                self._arguments.keep(approval, planned.args_json)  # another hub may have asked
                raise refusals.refuse_without_approval(planned, verdict, approval, "Nobody has decided yet.")
            case ApprovalState.REJECTED:
                raise refusals.refuse_rejected(approval)
            case ApprovalState.EXPIRED:
                raise refusals.too_late(approval)
        if is_rerun(approval, planned.call) or effect_key(planned) is not None:
            return approval
        raise await self._otherwise(approval, planned, verdict, refusals.used_up(approval))

    async def _otherwise(self, approval: Approval, planned: PlannedCall, verdict: Verdict, why: str) -> ToolFailure:
        """Return the refusal: a rule requests a new approval, but a question can be asked by its tool only."""
        if approval.question is not None:
            return refusals.void(approval, why)
        return await self._anew(planned, verdict, why)

    async def _anew(self, planned: PlannedCall, verdict: Verdict, why: str, **facts: list[str]) -> ToolFailure:
        """Return the refusal of a call whose approval is not accepted, with a new approval to wait for."""
        return refusals.refuse_without_approval(planned, verdict, await self.ask(planned, verdict), why, **facts)

    async def _room(self, planned: PlannedCall, verdict: Verdict, asked: AskedQuestion | None) -> Approval | None:
        """Return None when there is room for one more question, else the open one with the same binding. Raises
        RATE_LIMITED."""
        principal = planned.call.principal
        mine = ApprovalFilter(states=PENDING, principal=principal.id)
        _, total = await self._store.page(mine, after=None, limit=1)
        is_full, most = total >= self._max_pending, open_approvals_max(principal)
        if not is_full and most is not None:
            ours = ApprovalFilter(states=PENDING, owners=principal.owners)
            is_full = (await self._store.page(ours, after=None, limit=1))[1] >= most
        if not is_full:
            return None
        binding = binding_of(planned, verdict, asked)
        pending, _ = await self._store.page(mine, after=None, limit=total)
        now_unix_ms = self._clock.unix_ms()
        for approval in pending:
            if approval.binding == binding and not is_over(approval, now_unix_ms):
                return approval
        raise _too_many_wait(principal, total if total >= self._max_pending else None)


def open_approvals_max(principal: Principal) -> int | None:
    """Return how many of the tenant's calls may wait for a person; None means no limit."""
    return None if principal.tenancy is None else principal.tenancy.bounds.max_open_approvals


def _too_many_wait(principal: Principal, own: int | None) -> ToolFailure:
    """Return the refusal; `own` is the number of the principal's open approvals where it reached its limit, None where
    the tenant did."""
    if own is not None or principal.tenancy is None:
        message = f"{own} of your calls already wait for approval, which is the limit. Wait until some are decided."
        return refuse(ErrorKind.RATE_LIMITED, message, limit="approvals.max_pending")
    return refuse(
        ErrorKind.RATE_LIMITED,
        f"Calls of tenant {principal.tenancy.name} that wait for approval: {open_approvals_max(principal)}, which is "
        "the limit that the policy sets for it. Wait until some are decided.",
        limit="tenants.max_open_approvals",
        quota=open_approvals_max(principal),
    )


def _is_done(approval: Approval, call: Call) -> bool:
    """Return whether a call other than this one has used the approval."""
    return approval.state is ApprovalState.USED and not is_rerun(approval, call)


def whose(principal: Principal) -> str:
    """Return whose approvals the principal may see: with the role approver all of its tenant (empty), else its own."""
    return "" if Role.APPROVER in principal.roles else principal.id


def _whole(approval: Approval, decision: Decision, answer: JsonObject | None) -> JsonObject | None:
    """Return the completed answer to the question; None when there is no question or the person declines. Raises as
    `decide` does."""
    if approval.question is not None and decision is ApprovalState.APPROVED:
        return answer_to(approval.question, answer)
    if answer is not None:
        raise refusals.no_question(approval)
    return None


def _is_the_same(approval: Approval, principal: Principal, decision: Decision, answer: JsonObject | None) -> bool:
    """Return whether the same person has decided the same before; an answer that was used is no longer there to
    compare."""
    if approval.decided_by != principal.id or was_decided(approval) is not decision:
        return False
    return answer is None or approval.answer is None or approval.answer == _whole(approval, decision, answer)
