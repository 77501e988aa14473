"""A source of tools: its tools, its trust, and its state.

Its status distinguishes "no tools", "denied to you" and "source down".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

import msgspec

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin, PinFilter
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
    NEEDS_LOGIN = "NEEDS_LOGIN"
    """Its server wants a token, and nobody has given one: `SourceStatus.login_commands`."""


class Trust(Enum):
    """When a definition may be called."""

    ALWAYS = "always"
    """Always: the source is code that the operator trusts. No pins are stored."""
    FIRST_USE = "first-use"
    """As it is first seen; later changes and additions wait for a person."""
    APPROVAL = "approval"
    """Once a person has approved it."""


class Definition(msgspec.Struct, frozen=True):
    """One tool as its source describes it."""

    spec: ToolSpec
    """In the hub's terms: full name, the operator's overrides applied; ACTIVE."""
    remote: JsonObject
    """In the source's own words, as far as a caller relies on them; a pin's digest is computed over this. Untrusted."""
    problem: str = ""
    """Why it cannot be called whatever anybody decides, such as an unusable schema; empty: it can.

    `spec` then has schemas in place of the broken ones.
    """
    is_operators: bool = False
    """Whether the operator wrote it, not the source: it may be called whatever the source's trust, and is never
    pinned."""
    follows_words: bool = False
    """Whether the operator accepts new titles and descriptions without a person, while all else stays (`pins:
    schema`)."""


class Discovery(msgspec.Struct, frozen=True):
    """The result of reading a source once."""

    definitions: tuple[Definition, ...]
    """Names are unique."""
    problems: tuple[str, ...] = ()
    """What could not be read at all, one sentence each; makes the source PARTIAL."""
    ttl_s: float | None = None
    """How long this is valid according to the source; None: it does not say."""
    server: str = ""
    """Name and version that the source states; untrusted."""
    protocol: str = ""
    """Protocol version in use, such as `2026-07-28`; empty where there is none."""


OPERATORS_LOGIN: Final = "toolhub sources login"
"""How the command begins that only operators can use."""


class LoginNeeded(ToolFailure):
    """A source cannot be read before somebody logs in."""

    def __init__(self, source: str, commands: tuple[str, ...], why: str = "") -> None:
        """`commands`: what to type, each enough by itself, first what only operators can do; `why`: a sentence about
        former logins."""
        choice = " or ".join(f"`{command}`" for command in commands)
        message = f"{why} " if why else ""
        message += f"Its server wants a login: {choice}."
        super().__init__(ToolError(ErrorKind.TOOL_UNAVAILABLE, message, details={"source": source}))
        self.commands = commands


class SourceStatus(msgspec.Struct, frozen=True):
    name: str
    kind: ToolKind
    state: SourceState = SourceState.READY
    reason: str = ""
    """One sentence for a person when not READY; never contains a credential."""
    tool_count: int = 0
    """Number of known tools, in any state."""
    quarantined_count: int = 0
    refreshed_at_unix_ms: int = 0
    """When it was last read successfully; 0: never."""
    next_refresh_at_unix_ms: int = 0
    """Interval between reads; 0: only on demand."""
    endpoint: str = ""
    """Without credentials; for operators only."""
    latency_ms: float = 0.0
    """Duration of the last successful reading; 0: never read."""
    breaker: str = ""
    """CLOSED, HALF_OPEN or OPEN; empty before the first call."""
    server: str = ""
    """Name and version that the source states; untrusted."""
    protocol: str = ""
    trust: Trust = Trust.ALWAYS
    # `tuple()` is empty: most sources have no diagnostics.
    diagnose: Callable[[], Sequence[str]] = tuple
    """`ToolSource.diagnostics`, called on demand: redacting them costs milliseconds, and few ask for them."""
    login_commands: tuple[str, ...] = ()
    """What to type when NEEDS_LOGIN, each enough by itself."""

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """The current ones, redacted; for operators only."""
        return tuple(self.diagnose())

    @property
    def ok(self) -> bool:
        return self.state is SourceState.READY

    @property
    def partial(self) -> bool:
        return self.state is SourceState.PARTIAL


def known_to(principal: Principal, statuses: Sequence[SourceStatus]) -> Sequence[SourceStatus]:
    """Return the statuses of only those sources that the principal may see."""
    if principal.tenancy is None:
        return statuses
    return [status for status in statuses if principal.tenancy.shows(status.name)]


# Ports of sources: discovery of tools, and storage of decisions about them.


class ToolSource(Protocol):
    """Discovers tools. What a source says is data; nothing it does may delay or break anything else."""

    @property
    def name(self) -> str:
        """The operator's name for it; also the namespace of its tools: lower case, no slash."""

    @property
    def kind(self) -> ToolKind: ...

    @property
    def trust(self) -> Trust: ...

    @property
    def endpoint(self) -> str:
        """Its address, without credentials."""

    async def discover(self) -> Discovery:
        """Read all tools that it offers, all pages. May take any time: the caller limits it and may cancel.

        Raises ToolFailure with a message for an operator when it cannot be read (LoginNeeded where somebody can log
        in), and nothing else but cancellation.
        """

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the event loop when its tools may have changed; called once, before `start`."""

    def diagnostics(self) -> Sequence[str]:
        """Return the latest output of its process, oldest line first and each after `stderr: ` or `stdout: `, then the
        state of its connection; bounded, empty where there is nothing."""

    async def start(self) -> None:
        """Begin to connect; returns at once and never fails for an unreachable source."""

    async def close(self) -> None:
        """Close connections, and end processes and everything they started."""


class ResourceNews:
    """Passes on, within the process, changes of resources that sources report."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str, str], None]] = []

    def subscribe(self, listener: Callable[[str, str], None]) -> Callable[[], None]:
        """Call `listener` with the source's name and a resource's URI, empty when the list has changed; it must not
        raise. Return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, source: str, uri: str = "") -> None:
        # A copy: a listener may end its own subscription, or another's.
        for listener in tuple(self._listeners):
            listener(source, uri)


class PinStore(Protocol):
    """Pins in a store that others may share; changes are made by compare-and-set on `version`.

    When a method has returned, its change is durable. Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be
    reached, and HubFailure FAILED_PRECONDITION when its content cannot be read: then no tool of the source may be
    called.
    """

    async def of_source(self, source: str) -> Sequence[Pin]:
        """Return all pins of a source, in any order."""

    # Together: approving a pin supersedes the previous one, and never may both be approved, or neither.
    async def put(self, pins: Sequence[Pin]) -> bool:
        """Store all or none: version 1 is new (its key must be free), any other replaces the record of one version
        less.

        Return False when another change came first to any of them.
        """

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        """Return (pins, number that match) in (seen_at_unix_ms, source, tool, digest) order, newest first, strictly
        after the cursor."""

    async def revision(self) -> int:
        """Return a number that rises with every change by any process; cheap, because it is read every few seconds."""

    async def remove(self, pin: Pin) -> bool:
        """Delete this pin unless it has changed since, and return whether that was done."""

    async def forget_source(self, source: str) -> int:
        """Delete all pins of a source that the operator has removed for good, and return how many."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class SourceObserver(Protocol):
    """Audit, metrics and logs of sources: notified of events. Must not raise or wait."""

    def on_reading(self, status: SourceStatus) -> None:
        """A reading has ended, successfully or not; `status` is the current one."""

    def on_judgement(self, status: SourceStatus) -> None:
        """Known definitions were evaluated again after a decision; `status` is the current one."""

    def on_pin(self, pin: Pin) -> None:
        """A definition was seen for the first time: approved on first use, or PENDING."""

    def on_drift(self, pin: Pin) -> None:
        """A source with pins offers another definition; the tool is quarantined."""

    def on_decision(self, pin: Pin) -> None:
        """A person has decided."""

    def on_problem(self, source: str, problem: BaseException) -> None:
        """Something failed that will be retried, or a defect."""


class SourceService(Protocol):
    """What operators may do with sources and pins; for the servicer."""

    def statuses(self) -> Sequence[SourceStatus]:
        """Return the status of every source, built-in ones first, then by name."""

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        """Read these sources again (all when empty), and return when done. Raises HubFailure NOT_FOUND."""

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]: ...

    async def approved_version(self, pin: Pin) -> Pin | None:
        """Return the approved pin to compare with, for the diff; None when there is none."""

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        """Return the decided pin; the catalog is updated at once. Raises HubFailure NOT_FOUND, ToolFailure (store
        unreachable)."""

    async def register(self, specs: Sequence[ToolSpec], *, replace: bool, by: str) -> Sequence[ToolSpec]:
        """Add these tools to their configured sources, all or none, and return them as in the catalog. Raises
        HubFailure, and ToolFailure (store unreachable)."""

    async def unregister(self, tool: str) -> bool:
        """Remove a registered tool, and return whether there was one. Raises ToolFailure (store unreachable)."""
