"""The tools a source offers, discovered or registered: digests, findings, and their publication in the catalog.

Digests and findings cost CPU on untrusted text, so the work is bounded for each definition, done once for each new one,
lets other tasks run in between, and runs in a thread for a large one, which takes a tenth of a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from toolhub_service.aio.cooperative import SLICE_S, TimeSlice, in_thread
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.pin import pin_digest
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.guards.descriptions import Finding, check_definition
from toolhub_service.registry.catalog import ToolCatalog

DEFINITION_MAX_CHARS: Final = 1024 * 1024
"""Limit for keys and texts; a larger definition cannot be stored in a pin, so nobody can approve it."""
SMALL_CHARS: Final = 8 * 1024
"""Up to this size a definition is analysed in 2 ms."""
LEVELS_MAX: Final = 200
"""Nesting limit for arrays and objects; stores write 254."""
_NAMES: Final = frozenset({"name", "suffix"})
# The size of any value besides its text.
_VALUE_CHARS: Final = 4


class Check(Protocol):
    """Returns what looks wrong with a definition; `siblings`: names and titles of tools that only its source has."""

    def __call__(self, definition: JsonObject, siblings: Collection[str]) -> Sequence[Finding]: ...


class Offer(msgspec.Struct, frozen=True):
    definition: Definition
    digest: str
    """Empty: it cannot be stored, and so never be approved."""
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        return self.definition.spec.name


async def offers_of(
    source: str,
    definitions: Sequence[Definition],
    before: Sequence[Offer] = (),
    *,
    elsewhere: Callable[[], Collection[str]] = tuple,
    check: Check = check_definition,
) -> tuple[Offer, ...]:
    """Return the offers in the given order. A definition that is identical to one in `before` is not analysed again.

    `elsewhere` returns the own names of other sources' tools.
    """
    same = {id(offer.definition): offer for offer in before}
    known = {offer.digest: offer for offer in before if offer.digest}
    offers: list[Offer] = []
    time_slice = TimeSlice()
    siblings: Collection[str] | None = None
    for definition in definitions:
        offer = same.get(id(definition))
        if offer is None:
            if siblings is None:
                own = (each.remote.get(key) for each in definitions for key in ("name", "title"))
                siblings = {name for name in own if isinstance(name, str)}.difference(elsewhere())
            checked = source, definition, known, partial(check, siblings=siblings)
            is_small = fits(definition.remote, SMALL_CHARS)
            offer = reuse_offer(*checked) if is_small else await in_thread(_offer, *checked)
        offers.append(offer)
        await time_slice.pause_if_due()
    return tuple(offers)


def nameless(definition: JsonObject) -> str:
    """Return the canonical JSON of everything except the name, which is equal for a renamed tool."""
    return json.dumps({key: value for key, value in definition.items() if key not in _NAMES}, sort_keys=True)


def _offer(
    source: str,
    definition: Definition,
    known: Mapping[str, Offer],
    check: Callable[[JsonObject], Sequence[Finding]],
) -> Offer:
    if not fits(definition.remote, DEFINITION_MAX_CHARS):
        return Offer(definition, "")
    return reuse_offer(source, definition, known, check)


def reuse_offer(
    source: str,
    definition: Definition,
    known: Mapping[str, Offer],
    check: Callable[[JsonObject], Sequence[Finding]],
) -> Offer:
    digest = pin_digest(source, definition.remote)
    seen = known.get(digest)
    if seen is not None:
        return Offer(definition, digest, seen.findings)
    unenforced = tuple(Finding(f"{clause}.", is_serious=False) for clause in definition.spec.unenforced)
    return Offer(definition, digest, (*check(definition.remote), *unenforced))


def fits(definition: JsonObject, max_chars: int) -> bool:
    """Return whether the value is of bounded size and depth, and has no number or text that JSON cannot hold.

    It is read no further than `max_chars`.
    """
    left = max_chars
    waiting: list[tuple[JsonValue, int]] = [(definition, LEVELS_MAX)]
    while waiting:
        value, levels = waiting.pop()
        left -= _VALUE_CHARS
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                return False
            waiting.extend((member, levels - 1) for member in (*value, *value.values()))
        elif isinstance(value, str):
            left -= len(value)
            if not _is_unicode(value):
                return False
        elif isinstance(value, Sequence):
            waiting.extend((item, levels - 1) for item in value)
        elif isinstance(value, float) and not isfinite(value):
            return False
        if left < 0 or levels < 0:
            return False
    return True


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# The tools of one source in the catalog: each read is one batch, and a refused tool does not affect the others.

BATCH: Final = 64
"""Most tools of one change; fewer when they are large."""
_DISABLED = "disabled by configuration (tools.disabled)"
# A tuple, which compares by identity first: so unchanged schemas are not compared.
_all_of = attrgetter(*(field.name for field in fields(ToolSpec)))


class SourceTools:
    def __init__(self, catalog: ToolCatalog, source: str, *, is_disabled: Callable[[str], bool]) -> None:
        """`is_disabled` tells by full name whether the operator switched a tool off."""
        self._catalog = catalog
        self._source = source
        self._is_disabled = is_disabled
        self._states: dict[str, ToolState] = {}

    @property
    def count(self) -> int:
        return len(self._states)

    def elsewhere(self) -> frozenset[str]:
        """Return the own names of other sources' tools."""
        others = (spec for spec in self._catalog.all() if spec.source != self._source)
        return frozenset(name for spec in others for name in (spec.resource_id, spec.name.partition("/")[2]))

    @property
    def quarantined_count(self) -> int:
        return sum(1 for state in self._states.values() if state is ToolState.QUARANTINED)

    async def publish(self, specs: Iterable[ToolSpec]) -> tuple[str, ...]:
        """Make these the source's only tools; return which were refused and why.

        Few changes are one batch. Many are several, so that none blocks the event loop for long, and tools that may no
        longer be called come first. It must not be called again before it has returned.
        """
        time_slice, size = TimeSlice(), BATCH
        wanted = {spec.name: self._mark_disabled(spec) for spec in specs}
        removing = [name for name in self._states if name not in wanted and self._is_ours(name)]
        changed: list[ToolSpec] = []
        for spec in wanted.values():
            if not self._is_offered(spec):
                changed.append(spec)
            await time_slice.pause_if_due()
        staying = wanted.keys() | removing
        self._states = {name: state for name, state in self._states.items() if name in staying}
        coming = {spec.name for spec in changed}
        self._states |= {name: spec.state for name, spec in wanted.items() if name not in coming}
        changed.sort(key=lambda spec: spec.state is ToolState.ACTIVE)
        problems: list[str] = []
        while changed or removing:
            batch = _until_large(changed[:size])
            self._apply(batch, removing[: size - len(batch)], problems)
            removing = removing[size - len(batch) :]
            changed = changed[len(batch) :]
            took_s = await time_slice.pause_if_due()
            size = max(1, min(BATCH, round(size * SLICE_S / took_s)))
        return tuple(problems)

    def _apply(self, changed: list[ToolSpec], removing: list[str], problems: list[str]) -> None:
        """Apply one batch; refused changes are dropped and reported."""
        while changed or removing:
            refused = self._catalog.register_all(changed, replace=True, removing=removing)
            if not refused:
                break
            for name, refusal in refused.items():
                problems.append(f"`{name}` is not offered: {refusal.message}.")
                self._states.pop(name, None)
            changed = [spec for spec in changed if spec.name not in refused]
            removing = [name for name in removing if name not in refused]
        self._states |= {spec.name: spec.state for spec in changed}
        for name in removing:
            self._states.pop(name, None)

    def _is_offered(self, spec: ToolSpec) -> bool:
        known = self._catalog.get(spec.name)
        return known is spec or (known is not None and bool(_all_of(known) == _all_of(spec)))

    def _is_ours(self, name: str) -> bool:
        spec = self._catalog.get(name)
        return spec is not None and spec.source == self._source

    def _mark_disabled(self, spec: ToolSpec) -> ToolSpec:
        if not self._is_disabled(spec.name):
            return spec
        return replace(spec, state=ToolState.DISABLED, state_reason=_DISABLED)


def _until_large(specs: list[ToolSpec]) -> list[ToolSpec]:
    """Return the changes up to the first large one: indexing the words of a large one takes 20 ms, so it is the
    last."""
    for count, spec in enumerate(specs, 1):
        if not (fits(spec.input_schema, SMALL_CHARS) and fits(spec.output_schema, SMALL_CHARS)):
            return specs[:count]
    return specs
