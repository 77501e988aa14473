"""What tools were used for: purposes of calls that succeeded, from which search learns. Per tenant, redacted."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from msgspec import Struct

from toolhub_service.domain.verdict import Limit

# The port of counts that all hubs spend together: rate and quota, by limit id.


class Scarce(Enum):
    """What of a limit is used up."""

    RATE = "rate"
    QUOTA = "quota"


class Refused(NamedTuple):
    """Nothing was taken."""

    limit: Limit
    scarce: Scarce
    wait_s: float
    """Until the same call may pass, as it stands now."""


class Taken(NamedTuple):
    """What `give_back` wants."""

    limits: tuple[Limit, ...] = ()
    marks: tuple[bytes, ...] = ()
    """The store's own, one a limit."""


class SharedCounts(Protocol):
    """Rate and quota of limits. Concurrency is no count of this port: slots are each process's own.

    Both methods raise ToolFailure TOOL_UNAVAILABLE when the store cannot be reached. A call may then have been counted
    all the same, and one whose answer was lost may be counted twice: never too few.
    """

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        """Spend one call of each limit, or of none. Without `spend`: only say whether it would pass."""
        ...

    async def give_back(self, taken: Taken) -> None:
        """Of a call that did not run. A window that has closed since is left alone."""
        ...


# How much of a common room one may hold, so that one alone does not use it up.
#
# As long as one holds less than is still free, one may take one more (Choudhury and Hahne, "Dynamic Queue Length
# Thresholds for Shared-Memory Packet Switches", 1998, with alpha = 1). Who comes first gets half, the next half of what
# is left: it takes a dozen who take all they can to fill a room of thousands. As what they hold ends, their shares even
# out, to one part in n + 1 each, for who has less may take sooner. Nobody needs to know who is there.


def may_take(own: int, taken: int, most: int) -> bool:
    """Whether one who holds `own` may take more of a room of `most`, of which all together hold `taken`."""
    return own < most - taken


class ToolUse(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="v", tag=1):
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
