"""Which tools of a source may be called: compares its definitions with its stored pins, as pure functions.

A definition is identified by its digest, never by its name. Rules, for a source whose trust is not `always`:

- first use: the tools of a source without pins are approved by `first-use`, except those that have serious findings or
  look like another source's tool; with trust `approval` all of them wait for a person.
- an approved digest is callable, also after a time in which the tool was different or missing; with trust `approval`
  only a digest that a person has approved.
- any other definition of a source with pins is drift: it gets a new record, PENDING, and the tool is quarantined. It is
  RENAMED when only its name differs from an approved tool that is no longer offered: a rename does not evade a pin.
- a rejected definition stays quarantined; a superseded one that is offered again waits for a person again.
- where the operator follows words (`pins: schema`), a definition that differs from the approved one in titles and
  descriptions only, without serious findings, replaces it; the former stays for the difference.
- a PENDING record whose definition is no longer offered stays unchanged: otherwise two hubs that see two versions of a
  server would keep rewriting it. A decision removes it (pin_ledger.py).
- a tool that was registered over the wire while its source had another endpoint waits for a person again: a definition
  is approved for one endpoint.

A source that changes a definition with every read cannot fill the store: after `UNDECIDED_MAX` undecided versions of a
tool, further ones are quarantined without a record, as are new ones of a source with `PINS_MAX` records or with
`WAITING_MAX_BYTES` of definitions that nobody has approved.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.pin import FIRST_USE, WORDS_ONLY, Pin, PinChange, PinState
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.discovery.double_approvals import demote_double_approvals, waiting_again
from toolhub_service.registry.discovery.offers import Offer, nameless
from toolhub_service.registry.discovery.pin_sizes import size_bytes
from toolhub_service.registry.discovery.quarantine import (
    CANNOT_BE_KEPT,
    TOO_MANY_PINS,
    quarantine,
    reason_of,
    with_problem,
)
from toolhub_service.registry.discovery.registered import is_moved

UNDECIDED_MAX: Final = 32
PINS_MAX: Final = 20_000
WAITING_MAX_BYTES: Final = 16 * 1024 * 1024

_T = TypeVar("_T")


class Comparison(msgspec.Struct, frozen=True):
    specs: tuple[ToolSpec, ...]
    """All offered tools, ACTIVE or QUARANTINED with the reason."""
    created: tuple[Pin, ...] = ()
    """New or approved records of definitions that are no drift, as on the first read."""
    drifted: tuple[Pin, ...] = ()
    """New or changed records of definitions that differ from the pinned ones."""
    amended: tuple[Pin, ...] = ()
    """Records in which only a change is noted, such as that a removed tool is back, or its words are others."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Return the records to store before the specs take effect."""
        return self.created + self.drifted + self.amended


def check(
    trust: Trust,
    source: str,
    known: Sequence[Pin],
    offers: Sequence[Offer],
    *,
    shadowed_by: Callable[[ToolSpec], str],
    now_unix_ms: int,
    endpoint: str = "",
    is_reading: bool = True,
    waiting_bytes: int = 0,
) -> Generator[None, None, Comparison]:
    """Evaluate a source's definitions; yields where the work can be interrupted: thousands take a tenth of a second.

    `shadowed_by` returns the tool whose name a tool's looks like, or nothing; `endpoint` is the source's current one.
    `is_reading`: this is a new and complete read; only then is a missing tool noted as REMOVED. `waiting_bytes`: the
    result of `PinSizes` for `known`.
    """
    if trust is Trust.ALWAYS:
        return Comparison(tuple(with_problem(offer.definition) for offer in offers))
    checking = _Checking(
        trust,
        source,
        known,
        offers,
        shadowed_by=shadowed_by,
        now_unix_ms=now_unix_ms,
        waiting_bytes=waiting_bytes,
        endpoint=endpoint,
    )
    yield from checking.look_for_vanished()
    specs = yield from gather_in_steps(map(checking.check_offer, offers))
    missing = (yield from gather_in_steps(checking.missing())) if is_reading else ()
    back = (yield from gather_in_steps(checking.back())) if is_reading else ()
    return Comparison(specs, tuple(checking.created), (*checking.drifted, *missing), (*checking.amended, *back))


def gather_in_steps(found: Iterable[_T]) -> Generator[None, None, tuple[_T, ...]]:
    gathered = []
    for each in found:
        gathered.append(each)
        yield
    return tuple(gathered)


_WORDS: Final = frozenset({"title", "description", "$comment", "examples"})
# Members that map names to schemas: there a name may be `title`.
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "const", "default"})


def contract_of(definition: JsonObject) -> JsonValue:
    """Return what binds callers: a definition without the words that only describe, here and in its schemas."""
    return _without_words(definition, is_named=False)


def _without_words(value: JsonValue, *, is_named: bool) -> JsonValue:
    if isinstance(value, Mapping):
        return {
            name: member
            if name in _VALUES and not is_named
            else _without_words(member, is_named=not is_named and name in _NAMED)
            for name, member in value.items()
            if is_named or name not in _WORDS
        }
    if isinstance(value, list | tuple):
        return [_without_words(item, is_named=False) for item in value]
    return value


def is_believed(pin: Pin, trust: Trust) -> bool:
    """Return whether the pinned tool may be called: a pin that nobody decided on counts only where first use is
    trusted."""
    return pin.state is PinState.APPROVED and (trust is not Trust.APPROVAL or pin.decided_by != FIRST_USE)


class _Checking:
    """The state of one evaluation."""

    def __init__(
        self,
        trust: Trust,
        source: str,
        known: Sequence[Pin],
        offers: Sequence[Offer],
        *,
        shadowed_by: Callable[[ToolSpec], str],
        now_unix_ms: int,
        waiting_bytes: int,
        endpoint: str,
    ) -> None:
        self._trust = trust
        self._waiting_bytes = waiting_bytes
        self._source = source
        self._shadowed_by = shadowed_by
        self._now_unix_ms = now_unix_ms
        self.created: list[Pin] = []
        self.amended: list[Pin] = []
        self.drifted = demote_double_approvals(known)
        losers = {pin.key for pin in self.drifted}
        self.drifted += [
            structs.replace(waiting_again(pin, ""), change=PinChange.NONE)
            for pin in known
            if pin.state is PinState.APPROVED and is_moved(pin, endpoint) and pin.key not in losers
        ]
        self._pins = {(pin.tool, pin.digest): pin for pin in (*known, *self.drifted)}
        self._of_tool: dict[str, list[Pin]] = {}
        for pin in self._pins.values():
            self._of_tool.setdefault(pin.tool, []).append(pin)
        self._offers = {offer.name: offer for offer in offers}
        # Approved pins of tools no longer offered, by their definition without the name.
        self._vanished: dict[str, Pin] = {}

    def look_for_vanished(self) -> Iterator[None]:
        """Find the vanished tools, in steps. Call it first."""
        if all(offer.name in self._of_tool for offer in self._offers.values()):
            return
        for pin in sorted(self._pins.values(), key=lambda pin: pin.tool, reverse=True):
            if pin.state is PinState.APPROVED and pin.tool not in self._offers:
                self._vanished[nameless(pin.definition)] = pin
                yield

    def check_offer(self, offer: Offer) -> ToolSpec:
        if not offer.digest:
            return quarantine(offer.definition, CANNOT_BE_KEPT)
        pin = self._pins.get((offer.name, offer.digest))
        approved = self._approved_before(offer, pin) if offer.definition.follows_words else None
        if approved is not None:
            pin = self._accept_new_words(offer, pin, approved)
        elif pin is None:
            pin = self._seen_first(offer)
        elif pin.state is PinState.SUPERSEDED:
            pin = self._seen_again(pin)
        if pin is None:
            return quarantine(offer.definition, TOO_MANY_PINS)
        if is_believed(pin, self._trust):
            return with_problem(offer.definition)
        return quarantine(offer.definition, reason_of(pin))

    def missing(self) -> Iterator[Pin]:
        """Yield approved pins whose tool is not offered at all."""
        return (
            structs.replace(pin, change=PinChange.REMOVED, version=pin.version + 1)
            for pin in self._pins.values()
            if pin.state is PinState.APPROVED and pin.change is not PinChange.REMOVED and pin.tool not in self._offers
        )

    def back(self) -> Iterator[Pin]:
        """Yield approved pins that were gone and are offered again unchanged."""
        return (
            structs.replace(pin, change=PinChange.NONE, version=pin.version + 1)
            for (tool, digest), pin in self._pins.items()
            if pin.change is PinChange.REMOVED and tool in self._offers and self._offers[tool].digest == digest
            if pin.state is PinState.APPROVED
        )

    def _approved_before(self, offer: Offer, pin: Pin | None) -> Pin | None:
        """Return the approved definition that this one replaces without a person, because only words differ."""
        if pin is not None and pin.state in (PinState.APPROVED, PinState.REJECTED):
            return None
        if any(finding.is_serious for finding in offer.findings) or self._shadowed_by(offer.definition.spec):
            return None
        approved = (other for other in self._of_tool.get(offer.name, ()) if is_believed(other, self._trust))
        before = next(approved, None)
        if before is None or contract_of(before.definition) != contract_of(offer.definition.remote):
            return None
        return before

    def _accept_new_words(self, offer: Offer, pin: Pin | None, before: Pin) -> Pin:
        new = self._pin(offer, tuple(finding.message for finding in offer.findings))
        approved = structs.replace(
            pin or new,
            state=PinState.APPROVED,
            change=PinChange.CHANGED,
            previous_digest=before.digest,
            decided_at_unix_ms=self._now_unix_ms,
            decided_by=WORDS_ONLY,
            version=1 if pin is None else pin.version + 1,
        )
        self.created.append(approved)
        self.amended.append(structs.replace(before, state=PinState.SUPERSEDED, version=before.version + 1))
        return approved

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
        pin = structs.replace(
            self._pin(offer, tuple(findings)),
            change=self._change(offer.name, twin, former),
            previous_digest=former.digest if former else self._approved_digest(offer.name),
            renamed_from=former.tool if former else "",
        )
        self.drifted.append(pin)
        return pin

    def _first_pin(self, offer: Offer, findings: tuple[str, ...], change: PinChange, is_serious: bool) -> Pin:
        pin = structs.replace(self._pin(offer, findings), change=change)
        is_clean = not is_serious and change is PinChange.NONE
        if self._trust is Trust.FIRST_USE and is_clean:
            now = self._now_unix_ms
            pin = structs.replace(pin, state=PinState.APPROVED, decided_at_unix_ms=now, decided_by=FIRST_USE)
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
        """Return the pin under which this tool was approved with another name."""
        return self._vanished.get(nameless(offer.definition.remote)) if self._vanished else None
