"""A scripted source, and an observer that records the events of sources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.source import Definition, Discovery, SourceStatus, Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec


def definition(source: str, own_name: str, description: str = "Reads a thing.", **changes: Any) -> Definition:
    """A tool as an MCP server would list it; `problem` and `schema` may be given."""
    schema: JsonObject = changes.get("schema", {"type": "object", "properties": {"path": {"type": "string"}}})
    name = f"{source}/" + own_name.replace("/", "__")
    return Definition(
        spec=ToolSpec(
            name=name,
            kind=ToolKind.MCP,
            description=description,
            input_schema={"type": "object"} if changes.get("problem") else schema,
            output_schema={},
            source=source,
            resource_id=own_name,
        ),
        remote={"name": own_name, "description": description, "inputSchema": schema},
        problem=changes.get("problem", ""),
    )


def restored(source: str) -> Callable[[JsonObject], Definition]:
    """Makes a `definition` again of what a pin has kept."""

    def make(remote: JsonObject) -> Definition:
        return definition(source, str(remote["name"]), str(remote["description"]), schema=remote["inputSchema"])

    return make


class ScriptedSource:
    """Implements `ToolSource`: offers what a test sets, when it is set."""

    def __init__(
        self, name: str = "files", *definitions: Definition, trust: Trust = Trust.FIRST_USE, **discovery: Any
    ) -> None:
        self.name = name
        self.kind = ToolKind.MCP
        self.trust = trust
        self.endpoint = f"https://{name}.example.com/mcp"
        self.definitions = definitions
        self.discovery = discovery
        """Further fields of `Discovery`."""
        self.failure: BaseException | None = None
        self.gate = asyncio.Event()
        """A reading waits for it; set from the start."""
        self.gate.set()
        self.readings = 0
        """Begun so far."""
        self.is_closed = False
        self._began = asyncio.Event()
        self._changed: Callable[[], None] = lambda: None

    async def discover(self) -> Discovery:
        self.readings += 1
        self._began.set()
        await self.gate.wait()
        if self.is_closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The source is closed.")
        if self.failure is not None:
            raise self.failure
        return Discovery(tuple(self.definitions), **self.discovery)

    async def begun(self, count: int) -> None:
        """Wait until so many readings have begun."""
        async with asyncio.timeout(60):
            while self.readings < count:
                self._began.clear()
                await self._began.wait()

    def listen(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def notify_changed(self) -> None:
        self._changed()

    def diagnostics(self) -> Sequence[str]:
        return ("ready",)

    async def start(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        self.is_closed = True


def away(message: str = "connection refused") -> ToolFailure:
    return refuse(ErrorKind.NETWORK_ERROR, message)


class RecordingObserver:
    """Implements `SourceObserver`."""

    def __init__(self) -> None:
        self.statuses: list[SourceStatus] = []
        self.checked_statuses: list[SourceStatus] = []
        self.new: list[Pin] = []
        self.drift: list[Pin] = []
        self.decisions: list[Pin] = []
        self.troubles: list[tuple[str, BaseException]] = []
        self._more = asyncio.Event()

    def on_reading(self, status: SourceStatus) -> None:
        self.statuses.append(status)
        self._more.set()

    def on_judgement(self, status: SourceStatus) -> None:
        self.checked_statuses.append(status)

    def on_pin(self, pin: Pin) -> None:
        self.new.append(pin)

    def on_drift(self, pin: Pin) -> None:
        self.drift.append(pin)

    def on_decision(self, pin: Pin) -> None:
        self.decisions.append(pin)

    def on_problem(self, source: str, problem: BaseException) -> None:
        self.troubles.append((source, problem))

    async def readings(self, count: int, source: str = "files") -> SourceStatus:
        """Wait until so many readings of it have ended; the last one's status."""
        async with asyncio.timeout(60):
            while len(mine := [status for status in self.statuses if status.name == source]) < count:
                self._more.clear()
                await self._more.wait()
        return mine[-1]
