"""A source of tools: what it offers, how far it is trusted, and how it fares.

What is known of it tells "no tools", "denied to you" and "source down" apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolKind, ToolSpec


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


class Trust(Enum):
    """When a definition may be called."""

    ALWAYS = "always"
    """Whatever it says: the source is code that the operator trusts. No pins are kept."""
    FIRST_USE = "first-use"
    """As it is first seen; what changes or comes later waits for a person."""
    APPROVAL = "approval"
    """Once a person has approved it."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool as its source describes it."""

    spec: ToolSpec
    """In the hub's words: full name, the operator's overrides applied; ACTIVE."""
    remote: JsonObject
    """In the source's own words, as far as a caller relies on them: what a pin's digest is taken over. Untrusted."""
    problem: str = ""
    """Why it cannot be called whatever anybody decides, such as a schema that cannot be used; empty: it can.

    `spec` then has schemas that stand in for the broken ones.
    """
    is_operators: bool = False
    """The operator wrote it, not the source: it may be called whatever the source's trust, and is never pinned."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What one reading of a source gave."""

    definitions: tuple[Definition, ...]
    """Names are unique."""
    problems: tuple[str, ...] = ()
    """What could not be read at all, one sentence each; makes the source PARTIAL."""
    ttl_s: float | None = None
    """For how long the source says this holds; None: it does not say."""
    server: str = ""
    """Name and version that the source gives itself; untrusted."""
    protocol: str = ""
    """The protocol version spoken with it, such as `2026-07-28`; empty where there is none."""


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
    latency_ms: float = 0.0
    """How long the last successful reading took; 0: never read."""
    breaker: str = ""
    """CLOSED, HALF_OPEN or OPEN; empty where nothing was called yet."""
    server: str = ""
    """Name and version that the source gives itself; untrusted."""
    protocol: str = ""
    trust: Trust = Trust.ALWAYS
    diagnose: Callable[[], Sequence[str]] = tuple
    """`ToolSource.diagnostics`: to look through it for secrets costs milliseconds, and few ask for it."""

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """As they are now, redacted; for operators only."""
        return tuple(self.diagnose())

    @property
    def ok(self) -> bool:
        return self.state is SourceState.READY

    @property
    def partial(self) -> bool:
        return self.state is SourceState.PARTIAL
