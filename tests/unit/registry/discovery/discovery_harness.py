"""Everything around `Sources` by hand: clock, timer, randomness, a witness, a store of pins, a catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.fakes.manual_timer import ManualTimer
from tests.fakes.tool_sources import RecordingObserver
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.source import PinStore, SourceService, SourceStatus
from toolhub_service.domain.tool import ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.discovery.sources import Sources
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.stores.memory.records import MemoryPins

POLL_S = 2.0


class DiscoveryHarness:
    """One hub's sources; give two the same `pins` and they share a store."""

    def __init__(self, pins: PinStore | None = None, catalog: ToolCatalog | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.cpu_s = 0.0
        self.randomness = FixedRandomness(1.0)
        self.witness = RecordingObserver()
        self.pins: PinStore = MemoryPins() if pins is None else pins
        self.catalog = catalog or ToolCatalog(check_schema=compile_schema)
        terms: dict[str, Any] = {"poll_s": POLL_S, "wait": self.timer, "cpu_s": lambda: self.cpu_s} | settings
        self.sources = Sources(
            self.catalog,
            self.pins,
            self.clock,
            self.randomness,
            self.witness,
            **terms,
        )

    @property
    def desk(self) -> SourceService:
        """As the servicer sees it."""
        return self.sources

    def state(self, tool: str) -> ToolState | None:
        spec = self.catalog.get(tool)
        return spec.state if spec else None

    def why(self, tool: str) -> str:
        spec = self.catalog.get(tool)
        return spec.state_reason if spec else ""

    def status(self, name: str = "files") -> SourceStatus:
        return next(status for status in self.sources.statuses() if status.name == name)

    async def pin(self, tool: str, *, last: bool = True) -> Pin:
        """Of the definitions of a tool the one seen last."""
        pins = [pin for pin in await self.pins.of_source(tool.partition("/")[0]) if pin.tool == tool]
        return pins[-1 if last else 0]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a change of the catalog that makes it so."""
        changed = asyncio.Event()
        stop = self.catalog.subscribe(lambda _: changed.set())
        try:
            async with asyncio.timeout(60):
                while not is_so():
                    changed.clear()
                    await changed.wait()
        finally:
            stop()
