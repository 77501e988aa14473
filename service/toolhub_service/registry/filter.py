"""Which tools are meant: the filter that lists, searches and exports share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from fnmatch import fnmatchcase

from toolhub_service.domain.capability import canonical
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState

Test = Callable[[ToolSpec], bool]
LISTED_STATES = frozenset({ToolState.ACTIVE, ToolState.UNAVAILABLE})
"""What a list shows unless it is asked otherwise, so that a caller learns what is merely missing."""


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Fields are joined by AND, entries of one field by OR, but for capabilities. An empty field matches all."""

    names: tuple[str, ...] = ()
    """Globs such as `core/fs.*`; case counts."""
    kinds: frozenset[ToolKind] = frozenset()
    capabilities: frozenset[str] = frozenset()
    """All of these; older names are understood."""
    tags: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    states: frozenset[ToolState] = LISTED_STATES

    def compiled(self) -> Test:
        """The filter as one test of only the fields that are set, cheapest first: for going through many tools."""
        tests = tuple(self._tests())
        if len(tests) == 1:
            return tests[0]
        return lambda spec: all(test(spec) for test in tests)

    def matches(self, spec: ToolSpec) -> bool:
        return all(test(spec) for test in self._tests())

    def fingerprint(self, *scope: str) -> str:
        """Names this filter within `scope` (query, principal): what a page token is bound to."""
        parts = [sorted(str(entry) for entry in group) for group in astuple(self)]
        return hashlib.sha256(repr((parts, scope)).encode()).hexdigest()[:16]

    def _tests(self) -> Iterator[Test]:
        if self.states:
            yield lambda spec: spec.state in self.states
        if self.kinds:
            yield lambda spec: spec.kind in self.kinds
        if self.sources:
            yield lambda spec: spec.source in self.sources
        if self.tags:
            yield lambda spec: not self.tags.isdisjoint(spec.tags)
        if self.capabilities:
            wanted = canonical(self.capabilities)
            yield lambda spec: wanted <= canonical(spec.capabilities)
        if self.names:
            yield lambda spec: any(fnmatchcase(spec.name, glob) for glob in self.names)


LISTED = ToolFilter()
"""Every ACTIVE or UNAVAILABLE tool."""
