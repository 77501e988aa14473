"""What tools were used for: purposes of calls that succeeded, from which search learns. Per tenant, redacted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ToolUse(NamedTuple):
    tenant: str
    """Whose searches it helps: the principal."""
    tool: str
    """Full name."""
    agent: str
    """Who used it, so that none can outweigh the others; empty: the principal itself."""
    purpose: str
    """Redacted, at most 300 characters."""
    at_unix_ms: int


class UsageStore(Protocol):
    """Uses in the order they were added, whoever else shares the store. Losing the newest few is no harm.

    Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached.
    """

    async def add(self, uses: Sequence[ToolUse]) -> None:
        """Append; of one tenant and tool only the newest `keep` (given to the constructor) stay."""
        ...

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        """Uses added after the cursor (0: from the start), oldest first, at most `limit`, and the next cursor."""
        ...

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Remove uses older than that, at most `limit`; how many were removed."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
