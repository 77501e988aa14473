"""All sources of remote tools, and the operators' requests about them: implements `SourceService`.

Each source has a controller in a task of its own (source_controller.py), so that a slow or dead one delays neither
another nor the start of the hub. One more task follows the pins: a decision in another process changes the catalog here
within `poll_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from toolhub_service.aio.cooperative import CpuClock
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.source import Definition, PinStore, SourceObserver, SourceState, SourceStatus, ToolSource
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import ToolCatalog, naming_entry
from toolhub_service.registry.discovery.offers import SourceTools
from toolhub_service.registry.discovery.pin_ledger import PinLedger
from toolhub_service.registry.discovery.registered import REGISTERED_MAX, MakeRegistered
from toolhub_service.registry.discovery.shadows import Shadows
from toolhub_service.registry.discovery.source_controller import (
    ReadingTerms,
    Restored,
    SharedDeps,
    SourceController,
    Wait,
    wait_for_event,
)
from toolhub_service.registry.export.names_given import possible_names

REFRESH_S: Final = 60.0
READING_TIMEOUT_S: Final = 60.0
POLL_S: Final = 2.0
# The name under which failures of the pins' store are reported.
_PINS: Final = "pins"


class Sources:
    def __init__(
        self,
        catalog: ToolCatalog,
        pins: PinStore,
        clock: Clock,
        randomness: Randomness,
        observer: SourceObserver,
        *,
        builtins: Callable[[], Sequence[SourceStatus]] = tuple,
        breaker_of: Callable[[str], str] = lambda _upstream: "",
        is_disabled: Callable[[str], bool] = lambda _tool: False,
        timeout_s: float = READING_TIMEOUT_S,
        poll_s: float = POLL_S,
        wait: Wait = wait_for_event,
        cpu_s: CpuClock = time.thread_time,
    ) -> None:
        """`builtins` returns the state of the hub's own sources; `breaker_of` that of an upstream's breaker, such as
        `mcp:files`; `is_disabled` tells by full name whether the operator switched a tool off; `timeout_s` bounds a
        read; `cpu_s` returns the processor time of the calling thread. The store is started and closed by its owner."""
        self._catalog = catalog
        self._pins = pins
        self._observer = observer
        self._builtins = builtins
        self._is_disabled = is_disabled
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._shadows = Shadows(catalog)
        self._ledger = PinLedger(pins, clock, observer, shadowed_by=self._shadows.shadowed_by)
        self._deps = SharedDeps(
            ledger=self._ledger,
            clock=clock,
            randomness=randomness,
            observer=observer,
            wait=wait,
            breaker_of=breaker_of,
            cpu_s=cpu_s,
        )
        self._controllers: dict[str, SourceController] = {}
        self._tools: dict[str, SourceTools] = {}
        self._not_read: dict[str, SourceStatus] = {}
        self._following: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def start(self) -> None:
        """Start every source that was added; returns at once."""
        self._following = asyncio.create_task(self._follow_pins(), name="pins")
        for controller in self._controllers.values():
            controller.begin()

    def add(
        self,
        source: ToolSource,
        *,
        refresh_s: float = REFRESH_S,
        timeout_s: float | None = None,
        restored: Restored | None = None,
        registered: MakeRegistered | None = None,
    ) -> None:
        """Read the source from now on, or from `start` on.

        `restored` makes a definition of a pin's stored one: with it, approved tools are listed as UNAVAILABLE after a
        restart until the source has been read; without it, they are unknown until then. `registered` makes the
        definition of a tool registered over the wire; without it, none can be registered.

        Raises HubFailure ALREADY_EXISTS or PERMISSION_DENIED when the name looks like another source's or the hub's.
        """
        self._check_name(source.name)
        tools = SourceTools(self._catalog, source.name, is_disabled=self._is_disabled)
        terms = ReadingTerms(refresh_s, self._timeout_s if timeout_s is None else timeout_s)
        controller = SourceController(source, terms, tools, self._deps, restored=restored, registered=registered)
        self._controllers[source.name], self._tools[source.name] = controller, tools
        self._shadows.reserve(source.name)
        if self._following is not None:
            controller.begin()

    def add_disabled(self, status: SourceStatus) -> None:
        """Add a source that is configured but must not be read, whatever its name looks like.

        Raises HubFailure ALREADY_EXISTS when there is one of exactly that name.
        """
        if status.name in self._controllers or status.name in self._not_read:
            raise refuse_taken_source(status.name, status.name)
        self._not_read[status.name] = status
        self._shadows.reserve(status.name)

    async def remove(self, name: str, *, forget: bool = False) -> None:
        """Close the source and remove its tools; with `forget`, its pins, too.

        Raises HubFailure NOT_FOUND, and as `PinStore`.
        """
        if name not in self._controllers and name not in self._not_read:
            raise unknown_source(name)
        self._not_read.pop(name, None)
        self._shadows.release(name)
        controller, tools = self._controllers.pop(name, None), self._tools.pop(name, None)
        if controller is not None and tools is not None:
            await controller.end()
            await tools.publish(())
        if forget:
            await self._ledger.forget(name)

    async def close(self) -> None:
        """Close all sources concurrently. The tools stay in the catalog."""
        self._stop.set()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await asyncio.gather(*(controller.end() for controller in self._controllers.values()))

    async def wait_until_tried(self, names: Iterable[str] = (), *, timeout_s: float) -> bool:
        """Wait until each of them (all when empty) has been read or has failed once; return False on timeout."""
        controllers = [self._controller(name) for name in names] or list(self._controllers.values())
        return await _were_tried(controllers, timeout_s)

    async def await_reading_of(self, tool: str) -> None:
        """Wait until the source of a tool of that full or exported name has been read, or has failed, for the first
        time in this process; no longer than a reading may take, and not at all later on."""
        sources = {name.partition("/")[0] for name in (tool, *possible_names(tool))}
        await _were_tried([self._controllers[name] for name in sources if name in self._controllers], self._timeout_s)

    async def await_readings_for(self, tool: str) -> None:
        """As `await_reading_of`; for a tool that replays its calls, whichever tools they name, until all sources have
        been read or have failed."""
        await self.await_reading_of(tool)
        spec = self._catalog.get(tool)
        if spec is not None and spec.replays:
            await _were_tried(list(self._controllers.values()), self._timeout_s)

    def statuses(self) -> Sequence[SourceStatus]:
        remote = [controller.status for controller in self._controllers.values()] + list(self._not_read.values())
        return (*self._builtins(), *sorted(remote, key=lambda status: status.name))

    def unread_reason(self, tool: str) -> str:
        """Return why a tool of that full name may yet appear: its source has not been read. Empty: it will not."""
        name = tool.partition("/")[0]
        controller = self._controllers.get(name)
        if controller is not None:
            return controller.unread_reason
        status = self._not_read.get(name)
        return status.reason if status is not None and status.state is SourceState.DOWN else ""

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        known = {status.name for status in self.statuses()}
        unknown = next((name for name in sources if name not in known), None)
        if unknown is not None:
            raise unknown_source(unknown)
        wanted = set(sources) or known
        await asyncio.gather(
            *(controller.refresh() for name, controller in self._controllers.items() if name in wanted)
        )
        return tuple(status for status in self.statuses() if status.name in wanted)

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        return await self._pins.page(where, after=after, limit=limit)

    async def approved_version(self, pin: Pin) -> Pin | None:
        return await self._ledger.approved_version(pin)

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        controller = self._controllers.get(source)
        endpoint = "" if controller is None else controller.endpoint
        pin = await self._ledger.decide(
            source, tool, digest, approve=approve, by=by, comment=comment, endpoint=endpoint
        )
        if controller is not None:
            await controller.follow()
        return pin

    async def register(self, specs: Sequence[ToolSpec], *, replace: bool, by: str) -> Sequence[ToolSpec]:
        """Return the registered tools as they are in the catalog now; `spec.source` names each one's source.

        All or none.

        Raises HubFailure, ToolFailure TOOL_UNAVAILABLE for a source that has not been read yet, and as `PinStore`.
        """
        definitions = []
        for index, spec in enumerate(specs):
            with naming_entry(index, spec.name, of=len(specs)):
                definitions.append(await self._registrable(spec, specs))
        self._catalog.check_all((definition.spec for definition in definitions), replace=replace)
        controllers = {spec.source: self._controller(spec.source) for spec in specs}
        await self._ledger.register(
            definitions, {name: controller.endpoint for name, controller in controllers.items()}, by
        )
        await asyncio.gather(*(controller.follow() for controller in controllers.values()))
        return [self._catalog.get(definition.spec.name) or definition.spec for definition in definitions]

    async def unregister(self, tool: str) -> bool:
        """Unregister a tool; return whether it was registered. Raises as `PinStore`."""
        controller = self._controllers.get(tool.partition("/")[0])
        if controller is None or not await self._ledger.unregister(controller.status.name, tool):
            return False
        await controller.follow()
        return True

    async def _registrable(self, spec: ToolSpec, batch: Sequence[ToolSpec]) -> Definition:
        controller = self._controller(spec.source)
        if controller.unread_reason:
            why = (
                f"The source `{spec.source}` has not been read yet, so that its own tools are not known: "
                f"{controller.unread_reason}"
            )
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, why, retry_after_s=POLL_S)
        registered = await self._ledger.registered_pins_of(spec.source)
        if controller.offers(spec.name):
            message = (
                f"the name `{spec.name}` is taken: its source `{spec.source}` offers it itself. Decide about that one "
                f"(`toolhub pins diff {spec.name}`), or register another name"
            )
            raise HubFailure(Reason.TOOL_EXISTS, message, tool=spec.name)
        names = {pin.tool for pin in registered} | {each.name for each in batch if each.source == spec.source}
        if len(names) > REGISTERED_MAX and all(pin.tool != spec.name for pin in registered):
            message = f"`{spec.source}` has {REGISTERED_MAX:,} registered tools, the most there may be"
            raise HubFailure(Reason.TOOL_INVALID, message, tool=spec.name)
        return controller.registered.definition(spec)

    async def _follow_pins(self) -> None:
        seen, is_troubled = -1, False
        while True:
            await self._deps.wait(self._stop, self._poll_s)
            try:
                revision = await self._pins.revision()
                if revision != seen:
                    await self._follow_all()
                seen, is_troubled = revision, False
            except Exception as problem:  # noqa: BLE001 - it is tried again
                if not is_troubled:
                    self._observer.on_problem(_PINS, problem)
                is_troubled = True

    async def _follow_all(self) -> None:
        for controller in tuple(self._controllers.values()):
            await controller.follow()

    def _controller(self, name: str) -> SourceController:
        controller = self._controllers.get(name)
        if controller is None:
            raise unknown_source(name)
        return controller

    def _check_name(self, name: str) -> None:
        twin = self._shadows.twin(name)
        if twin in self._controllers or twin in self._not_read:
            raise refuse_taken_source(name, twin)
        if twin:
            message = f"a source must not be called `{name}`: it reads like the hub's own `{twin}`"
            raise HubFailure(Reason.SOURCE_NAME_RESERVED, message, source=name)


async def _were_tried(controllers: Iterable[SourceController], timeout_s: float) -> bool:
    """Wait for the first reading of each; return False on timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            for controller in controllers:
                await controller.was_tried.wait()
    except TimeoutError:
        return False
    return True


def refuse_taken_source(name: str, known: str) -> HubFailure:
    message = f"the source `{name}` has, but for case and separators, the name of the source `{known}`: rename one"
    return HubFailure(Reason.SOURCE_EXISTS, message, source=name, known=known)


def unknown_source(name: str) -> HubFailure:
    """Return the operators' error for a name that no source has."""
    message = f"there is no source `{name[:64]}`: `toolhub sources list` names those there are"
    return HubFailure(Reason.SOURCE_NOT_FOUND, message, source=name[:64])
