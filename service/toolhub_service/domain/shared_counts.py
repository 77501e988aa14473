"""The port of counts that all hubs spend together: rate and quota, by limit id."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from toolhub_service.domain.verdict import Limit


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
