"""The tools of one source in the catalog: each reading is one batch, and a tool that is refused harms no sibling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.catalog import Registration, ToolCatalog
from toolhub_service.registry.offers import SMALL_CHARS, fits
from toolhub_service.registry.turns import TURN_S, Turns

BATCH: Final = 64
"""Tools that change at once at most; fewer where they are large."""
_DISABLED = "disabled by configuration (tools.disabled)"
_all_of = attrgetter(*(field.name for field in fields(ToolSpec)))
"""As a tuple, which compares by identity first: unchanged schemas are not walked."""


class SourceTools:
    def __init__(self, catalog: ToolCatalog, source: str, *, is_disabled: Callable[[str], bool]) -> None:
        """`is_disabled` says by full name what the operator has switched off."""
        self._catalog = catalog
        self._source = source
        self._is_disabled = is_disabled
        self._states: dict[str, ToolState] = {}

    @property
    def count(self) -> int:
        return len(self._states)

    @property
    def quarantined_count(self) -> int:
        return sum(1 for state in self._states.values() if state is ToolState.QUARANTINED)

    async def publish(self, specs: Iterable[ToolSpec]) -> tuple[str, ...]:
        """Make these the tools of the source, all others of it go; says which were refused and why.

        Few changes are one batch. Many are several, so that none holds the event loop long: what may not be called any
        more comes first. Not to be called again before it has returned.
        """
        turns, size = Turns(), BATCH
        wanted = {spec.name: self._switched(spec) for spec in specs}
        removing = [name for name in self._states if name not in wanted and self._is_ours(name)]
        changed: list[ToolSpec] = []
        for spec in wanted.values():
            if not self._stands(spec):
                changed.append(spec)
            await turns.given()
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
            took_s = await turns.given()
            size = max(1, min(BATCH, round(size * TURN_S / took_s)))
        return tuple(problems)

    def _apply(self, changed: list[ToolSpec], removing: list[str], problems: list[str]) -> None:
        """One batch; what is refused of it is dropped and told."""
        while changed or removing:
            report = self._catalog.register_all(changed, replace=True, removing=removing)
            if report.applied:
                break
            refused = {each.name: each.refusal for each in report.refused}
            for name, refusal in refused.items():
                why = refusal.message if refusal else Registration.REFUSED.value
                problems.append(f"`{name}` is not offered: {why}.")
                self._states.pop(name, None)
            changed = [spec for spec in changed if spec.name not in refused]
            removing = [name for name in removing if name not in refused]
        self._states |= {spec.name: spec.state for spec in changed}
        for name in removing:
            self._states.pop(name, None)

    def _stands(self, spec: ToolSpec) -> bool:
        known = self._catalog.get(spec.name)
        return known is spec or (known is not None and bool(_all_of(known) == _all_of(spec)))

    def _is_ours(self, name: str) -> bool:
        spec = self._catalog.get(name)
        return spec is not None and spec.source == self._source

    def _switched(self, spec: ToolSpec) -> ToolSpec:
        if not self._is_disabled(spec.name):
            return spec
        return replace(spec, state=ToolState.DISABLED, state_reason=_DISABLED)


def _until_large(specs: list[ToolSpec]) -> list[ToolSpec]:
    """The first of them; to put a large one into the index of words takes 20 ms, so that it is the last."""
    for count, spec in enumerate(specs, 1):
        if not (fits(spec.input_schema, SMALL_CHARS) and fits(spec.output_schema, SMALL_CHARS)):
            return specs[:count]
    return specs
