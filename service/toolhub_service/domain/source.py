"""A source of tools: what it offers, how far it is trusted, and its state.

What is known of it tells "no tools", "denied to you" and "source down" apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from toolhub_service.domain.call import Principal
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolKind, ToolSpec

# A remote definition as it was seen, and what was decided about it.
#
# A pin is named by source, tool and digest. The digest is taken over the definition in the source's own words, so that
# nothing the operator configures looks like drift, and nothing the source says can change unseen.

FIRST_USE: Final = "first-use"
"""Who decided when nobody did: the source is trusted on first use."""


class PinState(Enum):
    PENDING = "PENDING"
    """Seen and quarantined; waits for a decision."""
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    SUPERSEDED = "SUPERSEDED"
    """A newer definition took its place; kept for the record."""


class PinChange(Enum):
    """How a definition differs from what was pinned."""

    NONE = "NONE"
    ADDED = "ADDED"
    CHANGED = "CHANGED"
    REMOVED = "REMOVED"
    RENAMED = "RENAMED"
    SHADOWED = "SHADOWED"


class Pin(Struct, frozen=True, gc=False):
    """As the store keeps it. Every change is a new record with the next version."""

    source: str
    tool: str
    """Full name."""
    digest: str
    """sha256 (hex) of `definition`, as `pin_digest` takes it."""
    definition: JsonObject
    """`Definition.remote`; untrusted."""
    state: PinState
    change: PinChange = PinChange.NONE
    previous_digest: str = ""
    """What was approved before; empty when nothing was."""
    renamed_from: str = ""
    """Full name under which the same definition was approved; set when RENAMED."""
    findings: tuple[str, ...] = ()
    """What looks wrong with it, one sentence each."""
    seen_at_unix_ms: int = 0
    """First."""
    decided_at_unix_ms: int = 0
    """0 while PENDING."""
    decided_by: str = ""
    """`first-use` when nobody was asked."""
    comment: str = ""
    version: int = 1
    """Rises by 1 with every change. What compare-and-set compares."""
    registered: bool = False
    """An operator registered the tool over the wire: it is offered while its source offers no tool of that name."""
    endpoint: str = ""
    """Of the source when the tool was registered, and kept when it is no more; empty for what a source offers itself,
    and where a hub registered it that did not keep it."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.tool, self.digest


class PinFilter(Struct, frozen=True, gc=False):
    """Empty fields match everything, and filled ones are joined by AND."""

    source: str = ""
    tool: str = ""
    """A name or a glob."""
    states: frozenset[PinState] = frozenset()
    sources: Callable[[str], bool] | None = None
    """Whether pins of that source are meant."""


def pin_digest(source: str, definition: JsonObject) -> str:
    """sha256 (hex) over the source's name and the definition in canonical JSON."""
    # ASCII: a lone surrogate, which JSON may escape, has no UTF-8, and no definition may break the digest.
    canonical = json.dumps([source, definition], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


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


class Definition(msgspec.Struct, frozen=True):
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


class Discovery(msgspec.Struct, frozen=True):
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


class SourceStatus(msgspec.Struct, frozen=True):
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
    # `tuple()` is empty: most sources have nothing to tell.
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


def known_to(principal: Principal, statuses: Sequence[SourceStatus]) -> Sequence[SourceStatus]:
    """Of those sources alone that are there for it."""
    if principal.tenancy is None:
        return statuses
    return [status for status in statuses if principal.tenancy.shows(status.name)]


# Ports of tools from elsewhere: where they are discovered, and where decisions about them are kept.


class ToolSource(Protocol):
    """Where tools are discovered. What it says is data; nothing it does may delay or break anything else."""

    @property
    def name(self) -> str:
        """The operator's; also the namespace of its tools: lower case, no slash."""

    @property
    def kind(self) -> ToolKind: ...

    @property
    def trust(self) -> Trust: ...

    @property
    def endpoint(self) -> str:
        """Where it stands, without credentials."""

    async def discover(self) -> Discovery:
        """Read everything it offers, all pages. May take as long as it likes: the caller bounds it and may cancel.

        Raises ToolFailure with a message for an operator when it cannot be read; never anything else but cancellation.
        """

    def listen(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the event loop when what it offers may be another; called once, before `start`."""

    def diagnostics(self) -> Sequence[str]:
        """What its process last wrote, oldest line first and each after `stderr: ` or `stdout: `, then how its
        connection fares; bounded, empty where there is nothing to tell."""

    async def start(self) -> None:
        """Begin to connect; returns at once and never fails for a source that is not there."""

    async def close(self) -> None:
        """End connections, processes and all they started."""


class ResourceNews:
    """What sources say of changes of their resources, passed on in the process at once."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str, str], None]] = []

    def subscribe(self, listener: Callable[[str, str], None]) -> Callable[[], None]:
        """Call `listener` with the source's name and a resource's URI, empty: its list has changed; it must not raise.
        Returns how to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, source: str, uri: str = "") -> None:
        # A copy: what a listener does may end its own subscription, or another's.
        for listener in tuple(self._listeners):
            listener(source, uri)


class PinStore(Protocol):
    """Pins, whoever else shares the store; changes are kept by compare-and-set on `version`.

    What a method has returned from is durable. Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached, and
    HubFailure FAILED_PRECONDITION when what it holds cannot be read: then nothing of the source may be called.
    """

    async def of_source(self, source: str) -> Sequence[Pin]:
        """All pins of it, in any order."""

    # Together: to approve a pin supersedes the one before it, and at no moment may both be approved, or neither.
    async def put(self, pins: Sequence[Pin]) -> bool:
        """All or none: version 1 is new (its key must be free), any other replaces the record of one version less.

        False when another change came first to any of them.
        """

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        """In (seen_at_unix_ms, source, tool, digest) order, newest first, strictly after the cursor; how many match."""

    async def revision(self) -> int:
        """Rises with every change by any process; cheap, for it is asked every few seconds."""

    async def remove(self, pin: Pin) -> bool:
        """Remove this one, unless it has changed since: whether that was done."""

    async def forget_source(self, source: str) -> int:
        """Remove all pins of a source; how many were removed. For a source that the operator took away for good."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class SourceObserver(Protocol):
    """Audit, metrics and logs of sources: called with what happens, never asked. Must not raise or wait."""

    def refreshed(self, status: SourceStatus) -> None:
        """A reading has ended, well or badly; `status` is what is known now."""

    def judged(self, status: SourceStatus) -> None:
        """What was read before was judged anew, for somebody has decided; `status` is what is known now."""

    def pinned(self, pin: Pin) -> None:
        """A definition was seen for the first time: approved on first use, or PENDING."""

    def drifted(self, pin: Pin) -> None:
        """A source that has pins offers something else; the tool is quarantined."""

    def decided(self, pin: Pin) -> None:
        """A person has decided."""

    def troubled(self, source: str, problem: BaseException) -> None:
        """Something failed that will be tried again, or a defect."""


class SourceService(Protocol):
    """What operators ask of sources and pins; for the servicer."""

    def statuses(self) -> Sequence[SourceStatus]:
        """Of every source, built-in ones first, then by name."""

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        """Read these anew (all when empty) and answer when done. Raises HubFailure NOT_FOUND."""

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]: ...

    async def approved(self, pin: Pin) -> Pin | None:
        """The pin it was compared with, for the diff; None when there is none."""

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        """The decided pin; the catalog follows at once. Raises HubFailure NOT_FOUND, ToolFailure (store away)."""

    async def register(self, specs: Sequence[ToolSpec], *, replace: bool, by: str) -> Sequence[ToolSpec]:
        """Add these to their configured sources, all or none; as they are in the catalog. Raises HubFailure, and
        ToolFailure (store away)."""

    async def unregister(self, tool: str) -> bool:
        """Whether it was a registered tool, which is gone now. Raises ToolFailure (store away)."""
