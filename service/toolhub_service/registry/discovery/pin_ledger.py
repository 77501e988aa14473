"""Connects the pin rules with the pin store: no decision takes effect before its record is durable.

Several processes may evaluate the same source at once: when another process's put came first, the pins are evaluated
again. While the store is unreachable, known decisions stay valid and new ones are not made; while its records cannot be
read, no decision counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from toolhub_service.aio.cooperative import TimeSlice, run_in_slices
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.pin import WORDS_ONLY, Pin, PinState
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.source import Definition, PinStore, SourceObserver, ToolSource, Trust
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.discovery.decisions import (
    decide_pin,
    find_approved_pin,
    find_outdated_pins,
    find_pin,
    registered_pins,
)
from toolhub_service.registry.discovery.offers import Offer
from toolhub_service.registry.discovery.pin_sizes import PinSizes
from toolhub_service.registry.discovery.pins import Comparison, check
from toolhub_service.registry.discovery.quarantine import (
    STORE_UNAVAILABLE,
    UNREADABLE,
    quarantine,
    unavailable,
    with_problem,
)

_ATTEMPTS: Final = 8


class Verdicts(msgspec.Struct, frozen=True):
    specs: tuple[ToolSpec, ...]
    problem: str = ""
    """Why the decisions could not be read or stored; empty when they were."""


class PinLedger:
    def __init__(
        self, store: PinStore, clock: Clock, observer: SourceObserver, *, shadowed_by: Callable[[ToolSpec], str]
    ) -> None:
        """`shadowed_by` returns the other source's tool that a tool's name looks like; empty when there is none."""
        self._store = store
        self._clock = clock
        self._observer = observer
        self._shadowed_by = shadowed_by
        # The store's last answer, by source …
        self._last: dict[str, Sequence[Pin]] = {}
        # … and its revision before that answer.
        self._revisions: dict[str, int] = {}
        self._sizes: dict[str, PinSizes] = {}

    async def verdicts(self, source: ToolSource, offers: Sequence[Offer], *, is_reading: bool) -> Verdicts:
        """Return whether each tool may be called; never raises an error of the store."""
        foreign = [offer for offer in offers if not offer.definition.is_operators]
        own = tuple(with_problem(offer.definition) for offer in offers if offer.definition.is_operators)
        verdicts = await self._of_foreign(source, foreign, is_reading=is_reading)
        return Verdicts((*own, *verdicts.specs), verdicts.problem)

    async def _of_foreign(self, source: ToolSource, offers: Sequence[Offer], *, is_reading: bool) -> Verdicts:
        if source.trust is Trust.ALWAYS:
            return Verdicts((await self._check(source, (), offers, is_reading)).specs)
        try:
            return Verdicts(await self._evaluate_and_store(source, offers, is_reading))
        except HubFailure as unreadable:
            self._observer.on_problem(source.name, unreadable)
            self._last.pop(source.name, None)
            return Verdicts(tuple(quarantine(offer.definition, UNREADABLE) for offer in offers), UNREADABLE)
        except ToolFailure as away:
            self._observer.on_problem(source.name, away)
            return Verdicts(await self._evaluate_last_known(source, offers), STORE_UNAVAILABLE)

    async def of_source(self, source: str) -> Sequence[Pin]:
        """Return the pins of a source. Raises as `PinStore.of_source`."""
        return await self._store.of_source(source)

    async def approved_version(self, pin: Pin) -> Pin | None:
        """Return the pin that a difference is shown against. Raises as `PinStore.of_source`.

        The store is only read for a source that has not been evaluated here: reading thousands of pins for each pin of
        a page would delay every call.
        """
        known = self._last.get(pin.source)
        return find_approved_pin(await self._store.of_source(pin.source) if known is None else known, pin)

    async def decide(
        self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str, endpoint: str
    ) -> Pin:
        """Store the decision and return the pin as it is now; `endpoint` as in `decide_pin`.

        Raises HubFailure NOT_FOUND, and as `PinStore`.
        """
        for _ in range(_ATTEMPTS):
            known = await self._store.of_source(source)
            pin = find_pin(known, source, tool, digest)
            now = self._clock.unix_ms()
            changed = decide_pin(
                known, pin, approve=approve, by=by, comment=comment, now_unix_ms=now, endpoint=endpoint
            )
            if not changed:
                return pin
            if await self._store.put(changed):
                self._observer.on_decision(changed[0])
                return changed[0]
        raise refuse_contended_change()

    async def registered_pins_of(self, source: str) -> Sequence[Pin]:
        """Return the pins of tools registered over the wire; the last known ones while the store is unreachable."""
        try:
            known = await self._read_known(source)
        except (HubFailure, ToolFailure):  # `verdicts` reports the error
            known = self._last.get(source, ())
        return [pin for pin in known if pin.registered]

    async def register(self, definitions: Sequence[Definition], endpoints: Mapping[str, str], by: str) -> None:
        """Store each definition as approved by that person, replacing the one registered under its name; all or none.

        `endpoints` are by source. Raises as `PinStore`.
        """
        for _ in range(_ATTEMPTS):
            changed: list[Pin] = []
            for source, endpoint in endpoints.items():
                known = await self._store.of_source(source)
                of_source = [definition for definition in definitions if definition.spec.source == source]
                changed += registered_pins(known, of_source, endpoint, by=by, now_unix_ms=self._clock.unix_ms())
            if not changed or await self._store.put(changed):
                for source in endpoints:
                    await self._remove_outdated(source)
                return
        raise refuse_contended_change()

    async def unregister(self, source: str, tool: str) -> bool:
        """Unregister a tool; return whether it was registered. Raises as `PinStore`."""
        for _ in range(_ATTEMPTS):
            known = await self._store.of_source(source)
            found = [pin for pin in known if pin.tool == tool and pin.registered]
            changed = [
                replace(pin, state=PinState.SUPERSEDED, registered=False, version=pin.version + 1) for pin in found
            ]
            if not changed:
                return False
            if await self._store.put(changed):
                await self._remove_outdated(source)
                return True
        raise refuse_contended_change()

    async def _remove_outdated(self, source: str) -> None:
        """Remove outdated pins; never raises an error of the store.

        The change before is stored, and the next time removes the rest.
        """
        try:
            for pin in find_outdated_pins(await self._read_known(source)):
                await self._store.remove(pin)
        except (HubFailure, ToolFailure) as failure:
            self._observer.on_problem(source, failure)

    async def forget(self, source: str) -> None:
        self._last.pop(source, None)
        self._sizes.pop(source, None)
        await self._store.forget_source(source)

    async def _evaluate_and_store(
        self, source: ToolSource, offers: Sequence[Offer], is_reading: bool
    ) -> tuple[ToolSpec, ...]:
        for _ in range(_ATTEMPTS):
            known = await self._read_known(source.name)
            comparison = await self._check(source, known, offers, is_reading)
            if not comparison.pins:
                return comparison.specs
            if await self._store.put(comparison.pins):
                await self._keep(source.name, comparison)
                if any(pin.decided_by == WORDS_ONLY for pin in comparison.created):
                    await self._remove_outdated(source.name)
                if not comparison.created:
                    return comparison.specs
                # Another process may have read the source at the same moment: read again what both have stored.
        raise refuse_contended_change()

    async def _read_known(self, source: str) -> Sequence[Pin]:
        """Return the store's pins, read again only when its revision has changed, as they may be megabytes."""
        revision = await self._store.revision()
        if source not in self._last or self._revisions.get(source) != revision:
            self._last[source] = await self._store.of_source(source)
            self._revisions[source] = revision
        return self._last[source]

    async def _keep(self, source: str, comparison: Comparison) -> None:
        pins = {pin.key: pin for pin in (*self._last[source], *comparison.pins)}
        self._last[source] = tuple(pins.values())
        time_slice = TimeSlice()
        for pin in comparison.created:
            self._observer.on_pin(pin)
            await time_slice.pause_if_due()
        for pin in comparison.drifted:
            self._observer.on_drift(pin)
            await time_slice.pause_if_due()

    async def _evaluate_last_known(self, source: ToolSource, offers: Sequence[Offer]) -> tuple[ToolSpec, ...]:
        """Evaluate with the last known pins: approved tools stay callable, and one that needs a new record is not."""
        known = self._last.get(source.name)
        if known is None:
            return tuple(unavailable(with_problem(offer.definition), STORE_UNAVAILABLE) for offer in offers)
        comparison = await self._check(source, known, offers, is_reading=False)
        unkept = {pin.tool for pin in comparison.created}
        return tuple(unavailable(spec, STORE_UNAVAILABLE) if spec.name in unkept else spec for spec in comparison.specs)

    async def _check(
        self, source: ToolSource, known: Sequence[Pin], offers: Sequence[Offer], is_reading: bool
    ) -> Comparison:
        sizes = self._sizes.setdefault(source.name, PinSizes())
        return await run_in_slices(
            check(
                source.trust,
                source.name,
                known,
                offers,
                shadowed_by=self._shadowed_by,
                now_unix_ms=self._clock.unix_ms(),
                endpoint=source.endpoint,
                is_reading=is_reading,
                waiting_bytes=await run_in_slices(sizes.waiting_bytes(known)),
            )
        )


def refuse_contended_change() -> ToolFailure:
    return refuse(ErrorKind.TOOL_UNAVAILABLE, "The pins are being changed by others: try again.", retry_after_s=1.0)
