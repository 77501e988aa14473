"""Following approvals: one listener on the store for the whole process, fanned out in memory.

A watch tells every PENDING approval first, then each change. It keeps the newest state of an approval and nothing
older, so that a slow watcher costs memory for the approvals it lags behind with, not for their changes. After a gap
(a lost connection to the store) it looks at everything open again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import NamedTuple

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.reasons import Reason
from toolhub_service.runtime.approval_ledger import iso
from toolhub_service.runtime.approval_record import OPEN_STATES, was_withdrawn

# Why a decision is not taken, or nothing revealed: the statuses of DecideApproval and GetApproval.


def not_found(approval_id: str) -> HubFailure:
    return HubFailure(
        Reason.APPROVAL_NOT_FOUND,
        f"There is no approval {approval_id!r} that you may see.",
        approval_id=approval_id,
    )


def own_request(approval: Approval) -> HubFailure:
    return HubFailure(
        Reason.OWN_REQUEST,
        "Nobody decides, or has revealed, what they have asked for themselves; another approver has to.",
        approval_id=approval.approval_id,
    )


def no_approver(principal: Principal, approval: Approval) -> HubFailure:
    return HubFailure(
        Reason.NOT_AMONG_APPROVERS,
        f"Rule {approval.rule_id} leaves this to {', '.join(approval.approvers)}, and {principal.id} is none of them.",
        approval_id=approval.approval_id,
        rule_id=approval.rule_id,
    )


def no_role(principal: Principal) -> HubFailure:
    """Of those who ask, and see their own."""
    return HubFailure(
        Reason.ROLE_MISSING,
        f"{principal.id} lacks the role 'approver' that revealing arguments needs; "
        "an operator grants it under `roles` in the policy.",
        role=Role.APPROVER.value,
        service="toolhub.v1.ApprovalService",
    )


def not_open(approval: Approval) -> HubFailure:
    text = f"It is {approval.state.value}, and arguments are kept only while an approval is open."
    return _over(Reason.APPROVAL_ENDED, text, approval)


def too_large(approval: Approval, max_bytes: int) -> HubFailure:
    text = f"The arguments are larger than {max_bytes // 1_024} KiB, the most that is revealed. Deny what must be read."
    return _over(Reason.ARGUMENTS_TOO_LARGE, text, approval)


def not_here(approval: Approval) -> HubFailure:
    return HubFailure(
        Reason.ARGUMENTS_NOT_HERE,
        "This hub does not have the arguments: another process asked, it was started again since, or "
        "too many others are open. Ask the hub that asked, have the caller send the same call again, or deny it.",
        approval_id=approval.approval_id,
    )


def another_call(approval: Approval) -> HubFailure:
    return HubFailure(
        Reason.ARGS_DIGEST_DIFFERS,
        "The approval is for other arguments than the ones that were shown; look at it again.",
        approval_id=approval.approval_id,
        args_digest=approval.binding.args_digest,
    )


def no_question(approval: Approval) -> HubFailure:
    """An answer came with a no, or to an approval that a rule asks for."""
    return HubFailure(
        Reason.NOTHING_TO_ANSWER,
        "An answer belongs to the yes to a tool's question; here is nothing to be answered.",
        approval_id=approval.approval_id,
    )


def already_decided(approval: Approval) -> HubFailure:
    """No longer PENDING."""
    if was_withdrawn(approval):
        text = f"There is nothing to decide any more: {approval.comment}"
        return _over(Reason.APPROVAL_WITHDRAWN, text, approval)
    if approval.state is ApprovalState.EXPIRED and not approval.decided_by:
        text = f"Nobody decided before {iso(approval.expires_at_unix_ms)}, which counts as no. The caller can ask anew."
        return _over(Reason.APPROVAL_EXPIRED, text, approval)
    text = (
        f"{approval.decided_by} has decided this already at {iso(approval.decided_at_unix_ms)}; "
        f"it is {approval.state.value}."
    )
    return _over(Reason.ALREADY_DECIDED, text, approval)


def _over(reason: Reason, text: str, approval: Approval) -> HubFailure:
    state = approval.state.value
    return HubFailure(reason, text, approval_id=approval.approval_id, state=state)


WAITING_MAX = 10_000
"""Approvals that may have changed while a watcher was not looking."""
_REMEMBERED_MAX = 10_000
"""Approvals of which a watch knows what it has told last."""
_PAGE = 256
_COME_AGAIN_S = 0.5
"""What watchers are told to wait before they come again, when the hub shuts down."""

Heard = Callable[[Approval | None], None]


class ApprovalNews:
    """Hears of every change of an approval, made by this process or another, and tells whoever wants to know."""

    def __init__(self, store: ApprovalStore) -> None:
        """Made before the store is started: it is the store's one listener."""
        self._store = store
        self._listeners: list[Heard] = []
        self._tails: set[ApprovalTail] = set()
        self._closed = False
        store.listen(self._heard)

    @property
    def watchers(self) -> int:
        return len(self._tails)

    def listen(self, heard: Heard) -> None:
        """Tell `heard` as `ApprovalStore.listen` does. It must neither wait nor raise."""
        self._listeners.append(heard)

    def watch(self, where: ApprovalFilter) -> ApprovalTail:
        """Follow the approvals of `where.principal` and `where.tool`, from now on and until it is closed.

        Raises HubFailure UNAVAILABLE when the hub is leaving.
        """
        if self._closed:
            raise _leaving()
        tail = ApprovalTail(self._store, where, closed=self._tails.discard)
        self._tails.add(tail)
        return tail

    def close(self) -> None:
        """The hub is leaving: every watch ends, with a status that says to come again."""
        self._closed = True
        for tail in tuple(self._tails):
            tail.end(_leaving())

    def _heard(self, approval: Approval | None) -> None:
        for tail in self._tails:
            tail.offer(approval)
        for heard in self._listeners:
            heard(approval)


class _Told(NamedTuple):
    version: int
    is_open: bool


class ApprovalTail(AsyncIterator[Approval]):
    """One watch: an async iterator to be closed when it is no longer read."""

    def __init__(self, store: ApprovalStore, where: ApprovalFilter, *, closed: Callable[[ApprovalTail], None]) -> None:
        self._store = store
        self._where = where
        self._closed = closed
        self._waiting: dict[str, Approval] = {}
        self._told: dict[str, _Told] = {}
        self._news = asyncio.Event()
        self._missed = True
        self._end: HubFailure | None = None
        self._answers = self._follow()

    def offer(self, approval: Approval | None) -> None:
        """A change, or None when some may have been missed."""
        if approval is None:
            self._missed = True
        elif self._wants(approval):
            waiting = self._waiting.get(approval.approval_id)
            if waiting is None or waiting.version < approval.version:
                self._waiting[approval.approval_id] = approval
            if len(self._waiting) > WAITING_MAX:
                self.end(_lagged())
        self._news.set()

    def end(self, why: HubFailure) -> None:
        """Tell nothing more but why it ended."""
        self._end = why
        self._waiting.clear()
        self._news.set()

    def __aiter__(self) -> ApprovalTail:
        return self

    async def __anext__(self) -> Approval:
        """The next approval. Raises HubFailure when the hub is leaving or the watcher was too slow."""
        return await anext(self._answers)

    async def aclose(self) -> None:
        """Watch no longer."""
        self._closed(self)
        await self._answers.aclose()

    async def _follow(self) -> AsyncGenerator[Approval, None]:
        while self._end is None:
            self._news.clear()
            if self._missed:
                self._missed = False
                async with aclosing(self._standing()) as standing:
                    async for approval in standing:
                        if self._is_new(approval):
                            yield approval
            while self._waiting and not self._missed:
                approval = self._waiting.pop(next(iter(self._waiting)))
                if self._is_new(approval):
                    yield approval
            if not self._missed:
                await self._news.wait()
        raise self._end

    async def _standing(self) -> AsyncGenerator[Approval, None]:
        """Every PENDING approval, then what has become of those that were open when they were told last."""
        listed: set[str] = set()
        where = ApprovalFilter(frozenset({ApprovalState.PENDING}), self._where.principal, self._where.tool)
        after: tuple[int, str] | None = None
        while self._end is None:
            page, _ = await self._store.page(where, after=after, limit=_PAGE)
            for approval in page:
                listed.add(approval.approval_id)
                yield approval
            if len(page) < _PAGE:
                break
            after = page[-1].requested_at_unix_ms, page[-1].approval_id
        for approval_id in [id for id, told in self._told.items() if told.is_open and id not in listed]:
            now = await self._store.get(approval_id)
            if now is not None:
                yield now

    def _wants(self, approval: Approval) -> bool:
        binding, where = approval.binding, self._where
        if where.principal and binding.principal != where.principal:
            return False
        return not where.tool or fnmatchcase(binding.tool, where.tool)

    def _is_new(self, approval: Approval) -> bool:
        """Whether it was not told yet; from now on it was."""
        told = self._told.pop(approval.approval_id, None)
        is_new = told is None or told.version < approval.version
        current = _Told(approval.version, approval.state in OPEN_STATES) if is_new or told is None else told
        self._told[approval.approval_id] = current
        if len(self._told) > _REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
        return is_new


def _leaving() -> HubFailure:
    message = "This hub is leaving; watch again, at another one."
    return HubFailure(Reason.DRAINING, message, retry_after_s=_COME_AGAIN_S)


def _lagged() -> HubFailure:
    message = "Approvals changed faster than they were taken. Watch again: it begins with all that are pending."
    return HubFailure(Reason.WATCH_LAGGED, message)
