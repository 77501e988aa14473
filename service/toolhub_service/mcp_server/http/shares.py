"""Shares of the places and sessions of the MCP endpoint for each principal."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolhub_service.domain.shares import may_take


@dataclass(slots=True)
class Quota:
    """A quota of which each principal gets a share."""

    most: int
    taken: int = 0
    of: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def place(self, principal_id: str) -> AsyncIterator[bool]:
        """Take a place for the block; yield whether there was one."""
        if not may_take(self.of[principal_id], self.taken, self.most):
            yield False
            return
        self.of[principal_id] += 1
        self.taken += 1
        try:
            yield True
        finally:
            self.taken -= 1
            self.of[principal_id] -= 1
            # Otherwise each principal that ever connected would stay in the table.
            if not self.of[principal_id]:
                del self.of[principal_id]


class SessionShares:
    """Sessions of the older protocol that each principal has open, as far as visible: at most half of the free ones."""

    def __init__(self, most: int, idle_s: float, on_end: Callable[[str], None]) -> None:
        """`on_end` is called with the id of each session that has ended, or was unused for too long."""
        self._most = most
        self._idle_s = idle_s
        self._on_end = on_end
        self._used_s: dict[str, dict[str, float]] = {}
        """By principal and session: when it was used last, on the loop's clock."""

    def may_open(self, principal_id: str, now_s: float) -> bool:
        for holder, sessions in list(self._used_s.items()):
            for session_id in [each for each, used_s in sessions.items() if used_s + self._idle_s < now_s]:
                del sessions[session_id]
                self._on_end(session_id)
            if not sessions:
                del self._used_s[holder]
        return may_take(len(self._used_s.get(principal_id, ())), sum(map(len, self._used_s.values())), self._most)

    def count(self, now_s: float) -> int:
        """Return the number of all principals' sessions."""
        return sum(used_s + self._idle_s >= now_s for sessions in self._used_s.values() for used_s in sessions.values())

    def mark_opened(self, principal_id: str, session_id: str, now_s: float) -> None:
        self._used_s.setdefault(principal_id, {})[session_id] = now_s

    def mark_used(self, principal_id: str, session_id: str, until_s: float) -> None:
        """Mark as in use until then; ignored when the principal has opened no such session: anyone can send made-up
        ids."""
        if session_id in self._used_s.get(principal_id, ()):
            self._used_s[principal_id][session_id] = until_s

    def mark_ended(self, principal_id: str, session_id: str) -> None:
        if self._used_s.get(principal_id, {}).pop(session_id, None) is not None:
            self._on_end(session_id)
