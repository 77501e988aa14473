"""How many of the places and sessions of the MCP endpoint each principal may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolhub_service.domain.verdict import may_take


@dataclass(slots=True)
class Quota:
    """Of which each principal gets a share."""

    most: int
    taken: int = 0
    of: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def place(self, principal_id: str) -> AsyncIterator[bool]:
        """Whether there was one; it is free again at the end."""
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
            # Or each principal that ever came would stay in the table.
            if not self.of[principal_id]:
                del self.of[principal_id]


class SessionShares:
    """Sessions of the older protocol that each principal has open, as far as one can see: at most half of the free."""

    def __init__(self, most: int, idle_s: float, on_end: Callable[[str], None]) -> None:
        """`on_end` is told the id of each session that has ended, or was used by nobody for too long."""
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
        """Of all principals."""
        return sum(used_s + self._idle_s >= now_s for sessions in self._used_s.values() for used_s in sessions.values())

    def opened(self, principal_id: str, session_id: str, now_s: float) -> None:
        self._used_s.setdefault(principal_id, {})[session_id] = now_s

    def used(self, principal_id: str, session_id: str, until_s: float) -> None:
        """In use until then; nothing where the principal has opened no such session: anybody can send made-up ids."""
        if session_id in self._used_s.get(principal_id, ()):
            self._used_s[principal_id][session_id] = until_s

    def ended(self, principal_id: str, session_id: str) -> None:
        if self._used_s.get(principal_id, {}).pop(session_id, None) is not None:
            self._on_end(session_id)
