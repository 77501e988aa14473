"""A SourceService whose sources and pins are written by the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from msgspec import structs

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin, PinChange, PinFilter, PinState, pin_digest
from toolhub_service.domain.source import SourceState, SourceStatus, Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec

SEEN_AT_UNIX_MS = 1_763_780_000_000


def a_source(name: str = "github", **fields: object) -> SourceStatus:
    status = SourceStatus(
        name,
        ToolKind.MCP,
        tool_count=3,
        refreshed_at_unix_ms=SEEN_AT_UNIX_MS,
        next_refresh_at_unix_ms=SEEN_AT_UNIX_MS + 60_000,
        endpoint="https://mcp.example.com/mcp",
        latency_ms=42.5,
        breaker="HALF_OPEN",
        server="code host 1.2",
        protocol="2026-07-28",
        trust=Trust.APPROVAL,
        diagnose=lambda: ("stderr: starting", "stderr: careful \x1b[2J", "connections: 1 in 1 attempts"),
    )
    return structs.replace(status, **fields)


def a_pin(tool: str = "github/create_issue", description: str = "Create an issue.", **fields: object) -> Pin:
    definition: JsonObject = {"name": tool.partition("/")[2], "description": description}
    source = tool.partition("/")[0]
    pin = Pin(
        source,
        tool,
        pin_digest(source, definition),
        definition,
        PinState.PENDING,
        PinChange.ADDED,
        seen_at_unix_ms=SEEN_AT_UNIX_MS,
    )
    return structs.replace(pin, **fields)


@dataclass
class ScriptedSources:
    sources: list[SourceStatus] = field(default_factory=list)
    kept: list[Pin] = field(default_factory=list)
    registered: list[ToolSpec] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    """Sources that are DOWN once they are read."""
    decided_by: list[tuple[str, str]] = field(default_factory=list)
    """(who, comment) of each decision."""

    def statuses(self) -> Sequence[SourceStatus]:
        return self.sources

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        known = {status.name: at for at, status in enumerate(self.sources)}
        for name in sources:
            if name not in known:
                raise HubFailure(Reason.SOURCE_NOT_FOUND, f"There is no source {name!r}.")
        for name in sources or known:
            if name in self.failing:
                before = self.sources[known[name]]
                self.sources[known[name]] = structs.replace(before, state=SourceState.DOWN, reason="does not answer")
        return [self.sources[known[name]] for name in sources or known]

    async def register(self, specs: Sequence[ToolSpec], *, replace: bool, by: str) -> Sequence[ToolSpec]:
        self.registered += specs
        return specs

    async def unregister(self, tool: str) -> bool:
        kept = [spec for spec in self.registered if spec.name != tool]
        was_there, self.registered = len(kept) < len(self.registered), kept
        return was_there

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        fitting = [pin for pin in self.kept if _fits(pin, where)]
        fitting.sort(key=_place, reverse=True)
        rest = [pin for pin in fitting if after is None or _place(pin) < after]
        return rest[:limit], len(fitting)

    async def approved_version(self, pin: Pin) -> Pin | None:
        return next((kept for kept in self.kept if kept.digest == pin.previous_digest), None)

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        for at, pin in enumerate(self.kept):
            if pin.key == (source, tool, digest):
                state = PinState.APPROVED if approve else PinState.REJECTED
                self.kept[at] = structs.replace(
                    pin, state=state, decided_by=by, comment=comment, decided_at_unix_ms=SEEN_AT_UNIX_MS + 1
                )
                self.decided_by.append((by, comment))
                return self.kept[at]
        raise HubFailure(Reason.PIN_NOT_FOUND, "Never seen.")


def _place(pin: Pin) -> tuple[int, str, str, str]:
    return pin.seen_at_unix_ms, *pin.key


def _fits(pin: Pin, where: PinFilter) -> bool:
    return (
        where.source in ("", pin.source)
        and (not where.tool or fnmatchcase(pin.tool, where.tool))
        and (not where.states or pin.state in where.states)
    )
