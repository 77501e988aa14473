"""The tools of one source in the catalog: each reading is one batch, and a tool that is refused harms no sibling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from operator import attrgetter

from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.catalog import Registration, ToolCatalog

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

    def publish(self, specs: Iterable[ToolSpec]) -> tuple[str, ...]:
        """Make these the tools of the source, all others of it go; says which were refused and why."""
        wanted = {spec.name: self._switched(spec) for spec in specs}
        problems: list[str] = []
        while not self._apply(wanted, problems):
            pass  # each round drops what the one before was refused
        self._states = {name: spec.state for name, spec in wanted.items()}
        return tuple(problems)

    def _apply(self, wanted: dict[str, ToolSpec], problems: list[str]) -> bool:
        removing = [name for name in self._states if name not in wanted and self._is_ours(name)]
        changed = [spec for spec in wanted.values() if not self._stands(spec)]
        if not changed and not removing:
            return True
        report = self._catalog.register_all(changed, replace=True, removing=removing)
        for refused in report.refused:
            why = refused.refusal.message if refused.refusal else Registration.REFUSED.value
            problems.append(f"`{refused.name}` is not offered: {why}.")
            wanted.pop(refused.name, None)
        return report.applied

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
