"""Pins between the judgement and their store: nothing is believed before its record is durable.

Several processes may judge the same source at once: a put that another one preceded is judged anew from what then
stands. While the store is away, what was known stays believed and nothing new is; while it cannot be read, nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from toolhub_service.domain.errors import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.source import Trust
from toolhub_service.domain.source_ports import PinStore, SourceObserver
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.offers import Offer
from toolhub_service.registry.pin_decisions import compared_with, decided, find_pin
from toolhub_service.registry.pin_sizes import PinSizes
from toolhub_service.registry.pins import Judgement, judge
from toolhub_service.registry.quarantine import STORE_AWAY, UNREADABLE, quarantined, unavailable, with_problem
from toolhub_service.registry.turns import Turns, in_turns

_ATTEMPTS: Final = 8
"""At a put that others precede; each of them wrote something, so that one gets through."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    specs: tuple[ToolSpec, ...]
    problem: str = ""
    """Why the decisions could not be looked up or kept; empty when they were."""


class PinLedger:
    def __init__(
        self, store: PinStore, clock: Clock, observer: SourceObserver, *, shadowed_by: Callable[[ToolSpec], str]
    ) -> None:
        """`shadowed_by` names the other source's tool that one reads like; empty when it reads like itself."""
        self._store = store
        self._clock = clock
        self._observer = observer
        self._shadowed_by = shadowed_by
        self._last: dict[str, Sequence[Pin]] = {}
        """What the store said last, by source …"""
        self._revisions: dict[str, int] = {}
        """… and its revision before that."""
        self._sizes: dict[str, PinSizes] = {}

    async def verdicts(self, source: str, trust: Trust, offers: Sequence[Offer], *, is_reading: bool) -> Verdicts:
        """Whether each may be called; never raises because of the store."""
        foreign = [offer for offer in offers if not offer.definition.is_operators]
        own = tuple(with_problem(offer.definition) for offer in offers if offer.definition.is_operators)
        verdicts = await self._of_foreign(source, trust, foreign, is_reading=is_reading)
        return Verdicts((*own, *verdicts.specs), verdicts.problem)

    async def _of_foreign(self, source: str, trust: Trust, offers: Sequence[Offer], *, is_reading: bool) -> Verdicts:
        if trust is Trust.ALWAYS:
            return Verdicts((await self._judge(source, trust, (), offers, is_reading)).specs)
        try:
            return Verdicts(await self._kept(source, trust, offers, is_reading))
        except HubFailure as unreadable:
            self._observer.troubled(source, unreadable)
            self._last.pop(source, None)
            return Verdicts(tuple(quarantined(offer.definition, UNREADABLE) for offer in offers), UNREADABLE)
        except ToolFailure as away:
            self._observer.troubled(source, away)
            return Verdicts(await self._remembered(source, trust, offers), STORE_AWAY)

    async def of_source(self, source: str) -> Sequence[Pin]:
        """Raises as `PinStore.of_source`."""
        return await self._store.of_source(source)

    async def approved(self, pin: Pin) -> Pin | None:
        """What a difference is shown to. Raises as `PinStore.of_source`, which is only asked about a source that is not
        judged here: to read thousands of pins again for each of a page would hold up every call."""
        known = self._last.get(pin.source)
        return compared_with(await self._store.of_source(pin.source) if known is None else known, pin)

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        """The pin as it now stands. Raises HubFailure NOT_FOUND, and as `PinStore`."""
        for _ in range(_ATTEMPTS):
            known = await self._store.of_source(source)
            pin = find_pin(known, source, tool, digest)
            now = self._clock.unix_ms()
            changed = decided(known, pin, approve=approve, by=by, comment=comment, now_unix_ms=now)
            if not changed:
                return pin
            if await self._store.put(changed):
                self._observer.decided(changed[0])
                return changed[0]
        raise _contended()

    async def forget(self, source: str) -> None:
        self._last.pop(source, None)
        self._sizes.pop(source, None)
        await self._store.forget_source(source)

    async def _kept(self, source: str, trust: Trust, offers: Sequence[Offer], is_reading: bool) -> tuple[ToolSpec, ...]:
        for _ in range(_ATTEMPTS):
            known = await self._known(source)
            judgement = await self._judge(source, trust, known, offers, is_reading)
            if not judgement.pins:
                return judgement.specs
            if await self._store.put(judgement.pins):
                await self._keep(source, judgement)
                if not judgement.created:
                    return judgement.specs
                # Another process may have met the source at the same moment: look once more at what both have left.
        raise _contended()

    async def _known(self, source: str) -> Sequence[Pin]:
        """What the store says: read anew only when something in it has changed, for it may be megabytes."""
        revision = await self._store.revision()
        if source not in self._last or self._revisions.get(source) != revision:
            self._last[source] = await self._store.of_source(source)
            self._revisions[source] = revision
        return self._last[source]

    async def _keep(self, source: str, judgement: Judgement) -> None:
        pins = {pin.key: pin for pin in (*self._last[source], *judgement.pins)}
        self._last[source] = tuple(pins.values())
        turns = Turns()
        for pin in judgement.created:
            self._observer.pinned(pin)
            await turns.given()
        for pin in judgement.drifted:
            self._observer.drifted(pin)
            await turns.given()

    async def _remembered(self, source: str, trust: Trust, offers: Sequence[Offer]) -> tuple[ToolSpec, ...]:
        """What was known stays callable; what would need a record that cannot be kept now is not."""
        known = self._last.get(source)
        if known is None:
            return tuple(unavailable(with_problem(offer.definition), STORE_AWAY) for offer in offers)
        judgement = await self._judge(source, trust, known, offers, is_reading=False)
        unkept = {pin.tool for pin in judgement.created}
        return tuple(unavailable(spec, STORE_AWAY) if spec.name in unkept else spec for spec in judgement.specs)

    async def _judge(
        self, source: str, trust: Trust, known: Sequence[Pin], offers: Sequence[Offer], is_reading: bool
    ) -> Judgement:
        sizes = self._sizes.setdefault(source, PinSizes())
        return await in_turns(
            judge(
                trust,
                source,
                known,
                offers,
                shadowed_by=self._shadowed_by,
                now_unix_ms=self._clock.unix_ms(),
                is_reading=is_reading,
                waiting_bytes=await in_turns(sizes.waiting_bytes(known)),
            )
        )


def _contended() -> ToolFailure:
    return refuse(ErrorKind.TOOL_UNAVAILABLE, "The pins are being changed by others: try again.", retry_after_s=1.0)
