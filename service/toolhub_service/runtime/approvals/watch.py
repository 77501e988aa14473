"""Watches of approvals: one listener on the store for the whole process, fanned out in memory.

A watch sends every PENDING approval first, then each change. It keeps only the newest state of an approval, so that a
slow watcher costs memory for the approvals it lags behind with, not for their changes. After a gap (a lost connection
to the store) it reads all open approvals again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import NamedTuple

from msgspec.structs import replace

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.runtime.approvals.binding import OPEN_STATES

WAITING_MAX = 10_000
"""Most approvals that may have changed while a watcher was not reading."""
# Approvals for which a watch remembers what it sent last.
_REMEMBERED_MAX = 10_000
_PAGE = 256
# Approvals searched for what was decided between two watches.
_ENDED_MAX = 4_096
# Assumed largest difference between the clocks of two hubs.
_SKEW_MS = 5_000

OnEvent = Callable[[Approval | None], None]


class ApprovalNews:
    """Passes every change of an approval, by this process or another, to its listeners and watches."""

    def __init__(self, store: ApprovalStore) -> None:
        """Register as the store's one listener; to be created before the store is started."""
        self._store = store
        self._listeners: list[OnEvent] = []
        self._tails: set[ApprovalTail] = set()
        self._closed = False
        store.listen(self._on_event)

    @property
    def watchers(self) -> int:
        return len(self._tails)

    def listen(self, on_event: OnEvent) -> None:
        """Register `on_event`, which is called as `ApprovalStore.listen` describes and must neither wait nor raise."""
        self._listeners.append(on_event)

    def watch(self, where: ApprovalFilter, since_unix_ms: int = 0) -> ApprovalTail:
        """Follow the approvals of `where.principal` and `where.tool` until the watch is closed: from now on, or from
        `since_unix_ms`, the `seen_unix_ms` of an earlier watch.

        Raises HubFailure UNAVAILABLE when the hub is shutting down.
        """
        if self._closed:
            raise _leaving()
        tail = ApprovalTail(self._store, where, since_unix_ms, closed=self._tails.discard)
        self._tails.add(tail)
        return tail

    def close(self) -> None:
        """End every watch with a status that asks the client to reconnect: the hub is shutting down."""
        self._closed = True
        for tail in tuple(self._tails):
            tail.end(_leaving())

    def _on_event(self, approval: Approval | None) -> None:
        for tail in self._tails:
            tail.offer(approval)
        for on_event in self._listeners:
            on_event(approval)


class _Sent(NamedTuple):
    version: int
    is_open: bool


class ApprovalTail(AsyncIterator[Approval]):
    """One watch: an async iterator that must be closed when it is no longer read."""

    def __init__(
        self,
        store: ApprovalStore,
        where: ApprovalFilter,
        since_unix_ms: int = 0,
        *,
        closed: Callable[[ApprovalTail], None],
    ) -> None:
        self._store = store
        self._where = where
        self._since_unix_ms = since_unix_ms
        self.seen_unix_ms = 0
        """Time of the latest change that was sent; 0 until all approvals that were pending at the start have been
        sent."""
        self._closed = closed
        self._waiting: dict[str, Approval] = {}
        self._sent: dict[str, _Sent] = {}
        self._news = asyncio.Event()
        self._missed = True
        self._latest_unix_ms = since_unix_ms
        self._end: HubFailure | None = None
        self._answers = self._follow()

    def offer(self, approval: Approval | None) -> None:
        """Accept a change, or None when some may have been missed."""
        if approval is None:
            self._missed = True
        elif self._matches(approval):
            waiting = self._waiting.get(approval.approval_id)
            if waiting is None or waiting.version < approval.version:
                self._waiting[approval.approval_id] = approval
            if len(self._waiting) > WAITING_MAX:
                message = (
                    "Approvals changed faster than the client read them. Watch again; the stream starts with all "
                    "pending approvals."
                )
                self.end(HubFailure(Reason.WATCH_LAGGED, message))
        self._news.set()

    def end(self, why: HubFailure) -> None:
        """Send nothing more and raise `why`."""
        self._end = why
        self._waiting.clear()
        self._news.set()

    def __aiter__(self) -> ApprovalTail:
        return self

    async def __anext__(self) -> Approval:
        """Return the next approval. Raises HubFailure when the hub is shutting down or the watcher was too slow."""
        return await anext(self._answers)

    async def aclose(self) -> None:
        """Close the watch."""
        self._closed(self)
        await self._answers.aclose()

    async def _follow(self) -> AsyncGenerator[Approval, None]:
        while self._end is None:
            self._news.clear()
            if self._missed:
                self._missed = False
                last: Approval | None = None
                async with aclosing(self._open_and_ended()) as standing:
                    async for approval in standing:
                        if self._is_new(approval) and self._changed_at(approval) >= self._since_unix_ms - _SKEW_MS:
                            if last is not None:
                                yield last
                            last = approval
                self.seen_unix_ms = max(self.seen_unix_ms, self._latest_unix_ms)
                if last is not None:
                    yield last
            while self._waiting and not self._missed:
                approval = self._waiting.pop(next(iter(self._waiting)))
                if self._is_new(approval):
                    self.seen_unix_ms = max(self.seen_unix_ms, self._changed_at(approval))
                    yield approval
            if not self._missed:
                await self._news.wait()
        raise self._end

    async def _open_and_ended(self) -> AsyncGenerator[Approval, None]:
        """Yield every PENDING approval, then the ended ones that were open when they were sent last."""
        listed: set[str] = set()
        where = replace(self._where, states=frozenset({ApprovalState.PENDING}))
        after: tuple[int, str] | None = None
        while self._end is None:
            page, _ = await self._store.page(where, after=after, limit=_PAGE)
            for approval in page:
                listed.add(approval.approval_id)
                yield approval
            if len(page) < _PAGE:
                break
            after = page[-1].requested_at_unix_ms, page[-1].approval_id
        if self._since_unix_ms and not self.seen_unix_ms:
            async for approval in self._read_ended():
                yield approval
        for approval_id in [id for id, sent in self._sent.items() if sent.is_open and id not in listed]:
            now = await self._store.get(approval_id)
            if now is not None:
                yield now

    async def _read_ended(self) -> AsyncGenerator[Approval, None]:
        """Return the latest approvals that are no longer PENDING, among them what was decided since an earlier
        watch."""
        where = replace(self._where, states=frozenset(ApprovalState) - {ApprovalState.PENDING})
        after: tuple[int, str] | None = None
        for _ in range(_ENDED_MAX // _PAGE):
            page, _ = await self._store.page(where, after=after, limit=_PAGE)
            for approval in page:
                yield approval
            if len(page) < _PAGE or self._end is not None:
                return
            after = page[-1].requested_at_unix_ms, page[-1].approval_id

    def _changed_at(self, approval: Approval) -> int:
        ended_at = approval.expires_at_unix_ms if approval.state is ApprovalState.EXPIRED else 0
        at = max(approval.requested_at_unix_ms, approval.decided_at_unix_ms, approval.used_at_unix_ms, ended_at)
        self._latest_unix_ms = max(self._latest_unix_ms, at)
        return at

    def _matches(self, approval: Approval) -> bool:
        binding, where = approval.binding, self._where
        if where.principal and binding.principal != where.principal:
            return False
        if where.owners is not None and not where.owners(binding.principal):
            return False
        return not where.tool or fnmatchcase(binding.tool, where.tool)

    def _is_new(self, approval: Approval) -> bool:
        """Return whether this version has not been sent yet, and remember it as sent."""
        sent = self._sent.pop(approval.approval_id, None)
        is_new = sent is None or sent.version < approval.version
        current = _Sent(approval.version, approval.state in OPEN_STATES) if is_new or sent is None else sent
        self._sent[approval.approval_id] = current
        if len(self._sent) > _REMEMBERED_MAX:
            del self._sent[next(iter(self._sent))]
        return is_new


def _leaving() -> HubFailure:
    message = "This hub is shutting down. Watch again at another replica."
    return HubFailure(Reason.DRAINING, message)
