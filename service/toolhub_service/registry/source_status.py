"""What is known of a source: so that "no tools", "denied to you" and "source down" can be told apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from toolhub_service.domain.tool import ToolKind


class SourceState(Enum):
    READY = "READY"
    """Read completely."""
    PARTIAL = "PARTIAL"
    """Some definitions were refused or a page failed."""
    DOWN = "DOWN"
    """The last attempt failed."""
    PENDING = "PENDING"
    """Configured and not read yet."""
    DISABLED = "DISABLED"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    name: str
    kind: ToolKind
    state: SourceState = SourceState.READY
    reason: str = ""
    """One sentence for a person when not READY; never carries a credential."""
    tool_count: int = 0
    """Tools known from it, in any state."""
    quarantined_count: int = 0
    refreshed_at_unix_ms: int = 0
    """When it was last read successfully; 0: never."""
    next_refresh_at_unix_ms: int = 0
    """0: only on demand."""
    endpoint: str = ""
    """Without credentials; for operators only."""

    @property
    def ok(self) -> bool:
        return self.state is SourceState.READY

    @property
    def partial(self) -> bool:
        return self.state is SourceState.PARTIAL
