"""Connects the pin rules with the pin store: no decision takes effect before its record is durable.

Several processes may evaluate the same source at once: when another process's put came first, the pins are evaluated
again. While the store is unreachable, known decisions stay valid and new ones are not made; while its records cannot be
read, no decision counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from toolhub_service.aio.cooperative import TimeSlice, run_in_slices
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.source import (
    FIRST_USE,
    WORDS_ONLY,
    Definition,
    Pin,
    PinChange,
    PinState,
    PinStore,
    SourceObserver,
    ToolSource,
    Trust,
    pin_digest,
)
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.discovery.offers import Offer
from toolhub_service.registry.discovery.pins import (
    STORE_UNAVAILABLE,
    UNREADABLE,
    Comparison,
    PinSizes,
    check,
    quarantined,
    unavailable,
    with_problem,
)

# The changes that a person's decision on one pin makes: pure functions, so that they can be repeated when another
# process was faster.
#
# Approving a definition supersedes the approved pin of the same tool, and definitions of it that were seen earlier and
# were still waiting. A definition seen later keeps waiting. Rejecting changes that one pin, also an approved one.
# Repeating a decision changes nothing, except that a person's approval replaces trust on first use.


def find_pin(known: Sequence[Pin], source: str, tool: str, digest: str) -> Pin:
    """Return the pin. Raises HubFailure NOT_FOUND."""
    pin = next((pin for pin in known if pin.tool == tool and pin.digest == digest), None)
    if pin is None:
        raise HubFailure(
            Reason.PIN_NOT_FOUND,
            f"no definition {digest[:12]}… of `{tool[:128]}` was seen from `{source[:64]}`: `toolhub pins list` shows "
            "those that were",
            source=source[:64],
            tool=tool[:128],
        )
    return pin


def decided(
    known: Sequence[Pin], pin: Pin, *, approve: bool, by: str, comment: str, now_unix_ms: int, endpoint: str = ""
) -> tuple[Pin, ...]:
    """Return the records to put, the decided one first; none when nothing changes.

    `endpoint` is the source's current one, empty if unknown: a registered tool is approved for that endpoint.
    """
    wanted = PinState.APPROVED if approve else PinState.REJECTED
    approved_at = endpoint if approve and pin.registered and endpoint else pin.endpoint
    if pin.state is wanted and pin.decided_by != FIRST_USE and approved_at == pin.endpoint:
        return ()
    now = replace(
        pin,
        state=wanted,
        decided_at_unix_ms=now_unix_ms,
        decided_by=by,
        comment=comment,
        version=pin.version + 1,
        endpoint=approved_at,
    )
    return (now, *(_superseded(known, pin) if approve else ()))


def registered_pins(
    known: Sequence[Pin], definitions: Sequence[Definition], endpoint: str, *, by: str, now_unix_ms: int
) -> Iterator[Pin]:
    """Yield the records to put so that exactly these are registered; none for one that is registered already."""
    for definition in definitions:
        source, tool = definition.spec.source, definition.spec.name
        digest = pin_digest(source, definition.remote)
        seen = next((pin for pin in known if (pin.tool, pin.digest) == (tool, digest)), None)
        if seen is not None and (seen.registered, seen.state, seen.endpoint) == (True, PinState.APPROVED, endpoint):
            continue
        approved = next((pin for pin in known if pin.tool == tool and pin.state is PinState.APPROVED), None)
        first = Pin(source, tool, digest, definition.remote, PinState.APPROVED, seen_at_unix_ms=now_unix_ms, version=0)
        pin = replace(
            seen or first,
            state=PinState.APPROVED,
            change=PinChange.NONE,
            previous_digest=approved.digest if approved is not None else "",
            decided_at_unix_ms=now_unix_ms,
            decided_by=by,
            comment="registered",
            registered=True,
            endpoint=endpoint,
        )
        yield replace(pin, version=pin.version + 1)
        superseded = {other.key: other for other in _superseded(known, replace(pin, seen_at_unix_ms=now_unix_ms))}
        for other in known:
            # A rejected one is offered as long as it is registered, and two with one name cannot be.
            if other.key in superseded or (other.tool == tool and other.digest != digest and other.registered):
                before = superseded.get(other.key, other)
                yield replace(before, registered=False, version=other.version + 1)


def outdated(known: Sequence[Pin]) -> Iterator[Pin]:
    """Yield the formerly registered pins, and those that only words replaced, to remove: all but the last `FORMER_MAX`
    of each tool, and all but the last `FORMER_OF_SOURCE_MAX` of the source."""
    gone = (pin for pin in known if pin.state is PinState.SUPERSEDED and not pin.registered)
    former = [pin for pin in gone if pin.endpoint or pin.decided_by == WORDS_ONLY]
    former.sort(key=lambda pin: (pin.decided_at_unix_ms, pin.version), reverse=True)
    of_tool: Counter[str] = Counter()
    for place, pin in enumerate(former):
        of_tool[pin.tool] += 1
        if of_tool[pin.tool] > FORMER_MAX or place >= FORMER_OF_SOURCE_MAX:
            yield pin


def compared_with(known: Sequence[Pin], pin: Pin) -> Pin | None:
    """Return the pin to compare with: the one approved before, under the former name of a renamed tool."""
    tool = pin.renamed_from or pin.tool
    of_tool = [other for other in known if other.tool == tool and other.key != pin.key]
    before = next((other for other in of_tool if other.digest == pin.previous_digest), None)
    return before or next((other for other in of_tool if other.state is PinState.APPROVED), None)


def _superseded(known: Sequence[Pin], pin: Pin) -> Iterator[Pin]:
    for other in known:
        if other.tool != pin.tool or other.digest == pin.digest:
            continue
        waited = other.state is PinState.PENDING and other.seen_at_unix_ms <= pin.seen_at_unix_ms
        if waited or other.state is PinState.APPROVED:
            yield replace(other, state=PinState.SUPERSEDED, version=other.version + 1)


FORMER_MAX: Final = 5
FORMER_OF_SOURCE_MAX: Final = 1_000
# Attempts of a put that others precede; each of them wrote something, so that one gets through.
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
            return Verdicts(await self._kept(source, offers, is_reading))
        except HubFailure as unreadable:
            self._observer.on_problem(source.name, unreadable)
            self._last.pop(source.name, None)
            return Verdicts(tuple(quarantined(offer.definition, UNREADABLE) for offer in offers), UNREADABLE)
        except ToolFailure as away:
            self._observer.on_problem(source.name, away)
            return Verdicts(await self._remembered(source, offers), STORE_UNAVAILABLE)

    async def of_source(self, source: str) -> Sequence[Pin]:
        """Return the pins of a source. Raises as `PinStore.of_source`."""
        return await self._store.of_source(source)

    async def approved_version(self, pin: Pin) -> Pin | None:
        """Return the pin that a difference is shown against. Raises as `PinStore.of_source`.

        The store is only read for a source that has not been evaluated here: reading thousands of pins for each pin of
        a page would delay every call.
        """
        known = self._last.get(pin.source)
        return compared_with(await self._store.of_source(pin.source) if known is None else known, pin)

    async def decide(
        self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str, endpoint: str
    ) -> Pin:
        """Store the decision and return the pin as it is now; `endpoint` as in `decided`.

        Raises HubFailure NOT_FOUND, and as `PinStore`.
        """
        for _ in range(_ATTEMPTS):
            known = await self._store.of_source(source)
            pin = find_pin(known, source, tool, digest)
            now = self._clock.unix_ms()
            changed = decided(known, pin, approve=approve, by=by, comment=comment, now_unix_ms=now, endpoint=endpoint)
            if not changed:
                return pin
            if await self._store.put(changed):
                self._observer.on_decision(changed[0])
                return changed[0]
        raise _contended()

    async def registered(self, source: str) -> Sequence[Pin]:
        """Return the pins of tools registered over the wire; the last known ones while the store is unreachable."""
        try:
            known = await self._known(source)
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
        raise _contended()

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
        raise _contended()

    async def _remove_outdated(self, source: str) -> None:
        """Remove outdated pins; never raises an error of the store.

        The change before is stored, and the next time removes the rest.
        """
        try:
            for pin in outdated(await self._known(source)):
                await self._store.remove(pin)
        except (HubFailure, ToolFailure) as failure:
            self._observer.on_problem(source, failure)

    async def forget(self, source: str) -> None:
        self._last.pop(source, None)
        self._sizes.pop(source, None)
        await self._store.forget_source(source)

    async def _kept(self, source: ToolSource, offers: Sequence[Offer], is_reading: bool) -> tuple[ToolSpec, ...]:
        for _ in range(_ATTEMPTS):
            known = await self._known(source.name)
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
        raise _contended()

    async def _known(self, source: str) -> Sequence[Pin]:
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

    async def _remembered(self, source: ToolSource, offers: Sequence[Offer]) -> tuple[ToolSpec, ...]:
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


def _contended() -> ToolFailure:
    return refuse(ErrorKind.TOOL_UNAVAILABLE, "The pins are being changed by others: try again.", retry_after_s=1.0)
