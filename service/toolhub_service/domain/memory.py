"""What agents remember: an item, who sees it, and the port of the stores that hold and search items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from toolhub_service.domain.call import Owners


class MemoryItem(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="v", tag=1):
    """One text that an agent stored. It never changes; it is deleted or expires."""

    item_id: str
    owner: str
    """The principal that wrote it."""
    text: str
    created_at_unix_ms: int
    expires_at_unix_ms: int = 0
    """0: never."""
    agent_id: str = ""
    """The agent_id of the call that wrote it; if set, only calls with this agent_id see it."""
    user_id: str = ""
    """The user_id, with the same rule."""
    tags: tuple[str, ...] = ()
    # Unless its writer vouches for it: text from outside may be an instruction to its reader.
    untrusted: bool = True
    """Whether the text came from outside. False where its writer has vouched for it."""
    source: str = ""
    """Where the text came from, in the writer's words."""
    tool: str = ""
    """The tool that wrote it."""
    call_id: str = ""
    request_id: str = ""


class Scope(NamedTuple):
    """Who sees an item: all calls of the principal with this agent and user; empty: any."""

    owner: str
    agent_id: str = ""
    user_id: str = ""

    def visible(self) -> tuple[Scope, ...]:
        """The scopes whose items a call of this scope sees: its own and the wider ones, at most four."""
        # As keys: without an agent or user, the call's own scope and the wider one are equal.
        agents, users = dict.fromkeys(("", self.agent_id)), dict.fromkeys(("", self.user_id))
        return tuple(Scope(self.owner, agent, user) for agent in agents for user in users)

    def sees(self, item: MemoryItem) -> bool:
        return item.owner == self.owner and item.agent_id in ("", self.agent_id) and item.user_id in ("", self.user_id)


class MemoryQuota(NamedTuple):
    """Limits for one principal."""

    max_items: int
    max_bytes: int
    """Bytes of the items as stored."""
    limit: str = "memory.max_bytes"
    """The setting or key of the policy that defines `max_bytes`."""


class FoundItem(NamedTuple):
    item: MemoryItem
    score: float
    """Above 0, comparable only within one answer."""


class ItemPage(NamedTuple):
    items: Sequence[MemoryItem]
    """Newest first."""
    next_place: int
    """Start of the next page; 0: there is none."""


class MemoryStore(Protocol):
    """Items of all principals. `caller` is the scope of the call: items that it may not see do not exist for it.

    When a method has returned, its change is durable. Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be
    used.
    """

    async def write(self, item: MemoryItem, quota: MemoryQuota) -> int:
        """Store an item; return the bytes that its owner has now. Raises ToolFailure BUDGET_EXCEEDED when the owner has
        as much as the quota allows."""
        ...

    async def usage(self, owner: str) -> int:
        """Return the bytes that the owner has stored."""
        ...

    async def usage_of(self, owners: Owners) -> int:
        """Return the bytes that all those owners have stored together."""
        ...

    async def search(
        self, caller: Scope, query: str, *, tags: Sequence[str], limit: int, now_unix_ms: int
    ) -> Sequence[FoundItem]:
        """Return items with all of the tags, best first; none when the query has no word to search for."""
        ...

    async def read(self, caller: Scope, item_id: str, *, now_unix_ms: int) -> MemoryItem | None: ...

    async def page(self, caller: Scope, *, tags: Sequence[str], place: int, limit: int, now_unix_ms: int) -> ItemPage:
        """Return items with all of the tags from the place on; place 0: from the newest."""
        ...

    async def forget(self, caller: Scope, item_id: str) -> int:
        """Delete one item completely, and return how many there were."""
        ...

    async def forget_tagged(self, caller: Scope, tags: Sequence[str]) -> int:
        """Delete all items with all of these tags (at least one), and return how many there were."""
        ...

    async def sweep(self, now_unix_ms: int) -> int:
        """Delete what has expired, and remains of deleted items in files; return how many items."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
