"""What may be called of what a source offers: pure judgement of definitions against the pins that were kept of it.

The digest says what is meant; a name never does. Rules, for a source that is not trusted always:

- first use: a source without pins gets what it offers approved by `first-use`, save what has serious findings or reads
  like somebody else's tool; trust `approval`: all of it waits for a person.
- an approved digest is callable, also after a time in which something else was offered or nothing at all; with trust
  `approval` only one that a person has approved.
- anything else of a source that has pins is drift: a new record, PENDING, and the tool is quarantined. It is RENAMED
  when it is, but for its name, what an approved tool was that is offered no more: a rename does not get around a pin.
- a rejected definition stays quarantined; a superseded one that comes back waits for a person again.
- a PENDING record whose definition is no longer offered stays as it is: two hubs that see two versions of a server must
  not take turns at rewriting it. A decision clears it away (pin_decisions.py).

Whoever changes a definition with every reading fills no store: after `UNDECIDED_MAX` versions of a tool that nobody has
decided on, further ones are quarantined without a record, as are new ones of a source with `PINS_MAX` records or with
`WAITING_MAX_BYTES` of definitions that nobody approves of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from toolhub_service.domain.pin import FIRST_USE, Pin, PinChange, PinState
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.double_pins import demoted, waiting_again
from toolhub_service.registry.offers import Offer, nameless
from toolhub_service.registry.pin_sizes import size_bytes
from toolhub_service.registry.quarantine import (
    CANNOT_BE_KEPT,
    TOO_MANY_PINS,
    quarantined,
    reason_of,
    with_problem,
)

UNDECIDED_MAX: Final = 32
PINS_MAX: Final = 20_000
WAITING_MAX_BYTES: Final = 16 * 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Judgement:
    specs: tuple[ToolSpec, ...]
    """Of everything offered, ACTIVE or QUARANTINED with the reason."""
    created: tuple[Pin, ...] = ()
    """Records of definitions that are no drift: seen with the first reading."""
    drifted: tuple[Pin, ...] = ()
    """Records, new or changed, of what differs from what was pinned."""
    amended: tuple[Pin, ...] = ()
    """Records of which only the change was noted, such as that a removed tool is back."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What must be kept before the specs are believed."""
        return self.created + self.drifted + self.amended


def judge(
    trust: Trust,
    source: str,
    known: Sequence[Pin],
    offers: Sequence[Offer],
    *,
    shadowed_by: Callable[[ToolSpec], str],
    now_unix_ms: int,
    is_reading: bool = True,
    waiting_bytes: int = 0,
) -> Generator[None, None, Judgement]:
    """Thousands of definitions take a tenth of a second: it yields wherever the work can be left.

    `shadowed_by` names what a tool reads like, or nothing. `is_reading`: this is a new reading, and all of it: only
    then a tool that is missing is noted as REMOVED. `waiting_bytes`: what `PinSizes` says of `known`."""
    if trust is Trust.ALWAYS:
        return Judgement(tuple(with_problem(offer.definition) for offer in offers))
    bench = _Bench(trust, source, known, offers, shadowed_by, now_unix_ms, waiting_bytes)
    yield from bench.look_for_vanished()
    specs = yield from _gathered(map(bench.judged, offers))
    missing = (yield from _gathered(bench.missing())) if is_reading else ()
    back = (yield from _gathered(bench.back())) if is_reading else ()
    return Judgement(specs, tuple(bench.created), (*bench.drifted, *missing), back)


def _gathered(found: Iterable[_T]) -> Generator[None, None, tuple[_T, ...]]:
    gathered = []
    for each in found:
        gathered.append(each)
        yield
    return tuple(gathered)


def is_believed(pin: Pin, trust: Trust) -> bool:
    """Whether what it pins may be called: what nobody was asked about counts only where first use is trusted."""
    return pin.state is PinState.APPROVED and (trust is not Trust.APPROVAL or pin.decided_by != FIRST_USE)


class _Bench:
    """One judgement in the making."""

    def __init__(
        self,
        trust: Trust,
        source: str,
        known: Sequence[Pin],
        offers: Sequence[Offer],
        shadowed_by: Callable[[ToolSpec], str],
        now_unix_ms: int,
        waiting_bytes: int,
    ) -> None:
        self._trust = trust
        self._waiting_bytes = waiting_bytes
        self._source = source
        self._shadowed_by = shadowed_by
        self._now_unix_ms = now_unix_ms
        self.created: list[Pin] = []
        self.drifted = demoted(known)
        self._pins = {(pin.tool, pin.digest): pin for pin in (*known, *self.drifted)}
        self._of_tool: dict[str, list[Pin]] = {}
        for pin in self._pins.values():
            self._of_tool.setdefault(pin.tool, []).append(pin)
        self._offers = {offer.name: offer for offer in offers}
        self._vanished: dict[str, Pin] = {}
        """Approved ones of tools offered no more, by what they are but for their names."""

    def look_for_vanished(self) -> Iterator[None]:
        """To be done first, in steps."""
        if all(offer.name in self._of_tool for offer in self._offers.values()):
            return
        for pin in sorted(self._pins.values(), key=lambda pin: pin.tool, reverse=True):
            if pin.state is PinState.APPROVED and pin.tool not in self._offers:
                self._vanished[nameless(pin.definition)] = pin
                yield

    def judged(self, offer: Offer) -> ToolSpec:
        if not offer.digest:
            return quarantined(offer.definition, CANNOT_BE_KEPT)
        pin = self._pins.get((offer.name, offer.digest))
        if pin is None:
            pin = self._seen_first(offer)
        elif pin.state is PinState.SUPERSEDED:
            pin = self._seen_again(pin)
        if pin is None:
            return quarantined(offer.definition, TOO_MANY_PINS)
        if is_believed(pin, self._trust):
            return with_problem(offer.definition)
        return quarantined(offer.definition, reason_of(pin))

    def missing(self) -> Iterator[Pin]:
        """Approved ones whose tool is not offered at all."""
        return (
            replace(pin, change=PinChange.REMOVED, version=pin.version + 1)
            for pin in self._pins.values()
            if pin.state is PinState.APPROVED and pin.change is not PinChange.REMOVED and pin.tool not in self._offers
        )

    def back(self) -> Iterator[Pin]:
        """Approved ones that were gone and are offered again, as they were."""
        return (
            replace(pin, change=PinChange.NONE, version=pin.version + 1)
            for (tool, digest), pin in self._pins.items()
            if pin.change is PinChange.REMOVED and tool in self._offers and self._offers[tool].digest == digest
            if pin.state is PinState.APPROVED
        )

    def _seen_first(self, offer: Offer) -> Pin | None:
        findings = [finding.message for finding in offer.findings]
        is_serious = any(finding.is_serious for finding in offer.findings)
        twin = self._shadowed_by(offer.definition.spec)
        if twin:
            findings.insert(0, f"It reads like `{twin}`, which is not of this source.")
        if not self._pins:
            return self._first_pin(offer, tuple(findings), PinChange.SHADOWED if twin else PinChange.NONE, is_serious)
        added_bytes = size_bytes(offer.definition.remote)
        if self._is_full(offer.name, added_bytes):
            return None
        self._waiting_bytes += added_bytes
        former = None if twin or offer.name in self._of_tool else self._renamed_from(offer)
        pin = replace(
            self._pin(offer, tuple(findings)),
            change=self._change(offer.name, twin, former),
            previous_digest=former.digest if former else self._approved_digest(offer.name),
            renamed_from=former.tool if former else "",
        )
        self.drifted.append(pin)
        return pin

    def _first_pin(self, offer: Offer, findings: tuple[str, ...], change: PinChange, is_serious: bool) -> Pin:
        pin = replace(self._pin(offer, findings), change=change)
        is_clean = not is_serious and change is PinChange.NONE
        if self._trust is Trust.FIRST_USE and is_clean:
            now = self._now_unix_ms
            pin = replace(pin, state=PinState.APPROVED, decided_at_unix_ms=now, decided_by=FIRST_USE)
        self.created.append(pin)
        return pin

    def _seen_again(self, pin: Pin) -> Pin:
        again = waiting_again(pin, self._approved_digest(pin.tool))
        self.drifted.append(again)
        return again

    def _pin(self, offer: Offer, findings: tuple[str, ...]) -> Pin:
        return Pin(
            source=self._source,
            tool=offer.name,
            digest=offer.digest,
            definition=offer.definition.remote,
            state=PinState.PENDING,
            findings=findings,
            seen_at_unix_ms=self._now_unix_ms,
        )

    def _change(self, tool: str, twin: str, former: Pin | None) -> PinChange:
        if twin:
            return PinChange.SHADOWED
        if former is not None:
            return PinChange.RENAMED
        return PinChange.CHANGED if tool in self._of_tool else PinChange.ADDED

    def _approved_digest(self, tool: str) -> str:
        return next((pin.digest for pin in self._of_tool.get(tool, ()) if pin.state is PinState.APPROVED), "")

    def _is_full(self, tool: str, added_bytes: int) -> bool:
        if self._waiting_bytes + added_bytes > WAITING_MAX_BYTES:
            return True
        of_tool = self._of_tool.get(tool, ())
        decided_at = max((pin.decided_at_unix_ms for pin in of_tool), default=0)
        undecided = sum(1 for pin in of_tool if not pin.decided_at_unix_ms and pin.seen_at_unix_ms > decided_at)
        return undecided >= UNDECIDED_MAX or len(self._pins) + len(self.drifted) >= PINS_MAX

    def _renamed_from(self, offer: Offer) -> Pin | None:
        """What this tool was called when it was approved."""
        return self._vanished.get(nameless(offer.definition.remote)) if self._vanished else None
