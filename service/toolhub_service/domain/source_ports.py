"""Ports of tools from elsewhere: where they are discovered, and where decisions about them are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.source import Discovery, SourceStatus, Trust
from toolhub_service.domain.tool import ToolKind


class ToolSource(Protocol):
    """Where tools are discovered. What it says is data; nothing it does may delay or break anything else."""

    @property
    def name(self) -> str:
        """The operator's; also the namespace of its tools: lower case, no slash."""
        ...

    @property
    def kind(self) -> ToolKind: ...

    @property
    def trust(self) -> Trust: ...

    @property
    def endpoint(self) -> str:
        """Where it stands, without credentials."""
        ...

    async def discover(self) -> Discovery:
        """Read everything it offers, all pages. May take as long as it likes: the caller bounds it and may cancel.

        Raises ToolFailure with a message for an operator when it cannot be read; never anything else but cancellation.
        """
        ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the event loop when what it offers may be another; called once, before `start`."""
        ...

    def diagnostics(self) -> Sequence[str]:
        """What its process last wrote, oldest line first and each after `stderr: ` or `stdout: `, then how its
        connection fares; bounded, empty where there is nothing to tell."""
        ...

    async def start(self) -> None:
        """Begin to connect; returns at once and never fails for a source that is not there."""
        ...

    async def close(self) -> None:
        """End connections, processes and all they started."""
        ...


class PinStore(Protocol):
    """Pins, whoever else shares the store; changes are kept by compare-and-set on `version`.

    What a method has returned from is durable. Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached, and
    HubFailure FAILED_PRECONDITION when what it holds cannot be read: then nothing of the source may be called.
    """

    async def of_source(self, source: str) -> Sequence[Pin]:
        """All pins of it, in any order."""
        ...

    async def put(self, pins: Sequence[Pin]) -> bool:
        """All or none: version 1 is new (its key must be free), any other replaces the record of one version less.

        False when another change came first to any of them.
        """
        ...

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        """In (seen_at_unix_ms, source, tool, digest) order, newest first, strictly after the cursor; how many match."""
        ...

    async def revision(self) -> int:
        """Rises with every change by any process; cheap, for it is asked every few seconds."""
        ...

    async def forget_source(self, source: str) -> int:
        """Remove all pins of a source; how many were removed. For a source that the operator took away for good."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class SourceObserver(Protocol):
    """Audit, metrics and logs of sources: told what happens, never asked. Must not raise or wait."""

    def refreshed(self, status: SourceStatus) -> None:
        """A reading has ended, well or badly; `status` is what is known now."""
        ...

    def judged(self, status: SourceStatus) -> None:
        """What was read before was judged anew, for somebody has decided; `status` is what is known now."""
        ...

    def pinned(self, pin: Pin) -> None:
        """A definition was seen for the first time: approved on first use, or PENDING."""
        ...

    def drifted(self, pin: Pin) -> None:
        """A source that has pins offers something else; the tool is quarantined."""
        ...

    def decided(self, pin: Pin) -> None:
        """A person has decided."""
        ...

    def troubled(self, source: str, problem: BaseException) -> None:
        """Something failed that will be tried again, or a defect."""
        ...


class SourceDesk(Protocol):
    """What operators ask of sources and pins; for the servicer."""

    def statuses(self) -> Sequence[SourceStatus]:
        """Of every source, built-in ones first, then by name."""
        ...

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        """Read these anew (all when empty) and answer when done. Raises HubFailure NOT_FOUND."""
        ...

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]: ...

    async def approved(self, pin: Pin) -> Pin | None:
        """The pin it was compared with, for the diff; None when there is none."""
        ...

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        """The decided pin; the catalog follows at once. Raises HubFailure NOT_FOUND, ToolFailure (store away)."""
        ...
