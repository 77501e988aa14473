"""What agents remember: an item, who sees it, and the port of the stores that keep and find items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct


class MemoryItem(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="v", tag=1):
    """One text that an agent asked to have remembered. Never changed; forgotten or expired, it is gone."""

    item_id: str
    owner: str
    """The principal that wrote it."""
    text: str
    created_at_unix_ms: int
    expires_at_unix_ms: int = 0
    """0: never."""
    agent_id: str = ""
    """Of the call that wrote it; set: only calls with this agent_id see it."""
    user_id: str = ""
    """The same of the user."""
    tags: tuple[str, ...] = ()
    # Unless somebody vouches for it: what came from outside may be an instruction to whoever reads it.
    untrusted: bool = True
    """Whether the text came from outside. False where its writer has vouched for it."""
    source: str = ""
    """Where the text came from, in the writer's words."""
    tool: str = ""
    """The tool that wrote it."""
    call_id: str = ""
    request_id: str = ""


class Scope(NamedTuple):
    """Those who see an item: all calls of the principal whose agent and user are these; empty: any."""

    owner: str
    agent_id: str = ""
    user_id: str = ""

    def visible(self) -> tuple[Scope, ...]:
        """The scopes whose items a call of this scope sees: its own and the wider ones, at most four."""
        # As keys: where the call names no agent or user, its own scope and the wider one are the same.
        agents, users = dict.fromkeys(("", self.agent_id)), dict.fromkeys(("", self.user_id))
        return tuple(Scope(self.owner, agent, user) for agent in agents for user in users)

    def sees(self, item: MemoryItem) -> bool:
        return item.owner == self.owner and item.agent_id in ("", self.agent_id) and item.user_id in ("", self.user_id)


class MemoryQuota(NamedTuple):
    """What one principal may keep."""

    max_items: int
    max_bytes: int
    """Of the items as they are stored."""


class FoundItem(NamedTuple):
    item: MemoryItem
    score: float
    """Above 0, comparable within one answer only."""


class ItemPage(NamedTuple):
    items: Sequence[MemoryItem]
    """Newest first."""
    next_place: int
    """Where the next page begins; 0: there is none."""


class MemoryStore(Protocol):
    """Items of all principals. `caller` is the scope of the call that asks: what it does not see is not there for it.

    What a method has returned from is durable. Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be used.
    """

    async def write(self, item: MemoryItem, quota: MemoryQuota) -> None:
        """Raises ToolFailure BUDGET_EXCEEDED when the owner keeps as much as the quota allows."""
        ...

    async def search(
        self, caller: Scope, query: str, *, tags: Sequence[str], limit: int, now_unix_ms: int
    ) -> Sequence[FoundItem]:
        """Best first, those with all of the tags; none when the query has no word to search for."""
        ...

    async def read(self, caller: Scope, item_id: str, *, now_unix_ms: int) -> MemoryItem | None: ...

    async def page(self, caller: Scope, *, tags: Sequence[str], place: int, limit: int, now_unix_ms: int) -> ItemPage:
        """Those with all of the tags from the place on; place 0: from the newest."""
        ...

    async def forget(self, caller: Scope, item_id: str) -> int:
        """Remove one from everywhere; how many there were."""
        ...

    async def forget_tagged(self, caller: Scope, tags: Sequence[str]) -> int:
        """Remove all that have all of these tags (at least one); how many there were."""
        ...

    async def sweep(self, now_unix_ms: int) -> int:
        """Remove what has expired, and what removing left behind in files; how many items."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
