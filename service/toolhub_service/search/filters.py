"""The filter of tools that lists, searches and exports share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState, canonical_capabilities

if TYPE_CHECKING:
    pass


Test = Callable[[ToolSpec], bool]
LISTED_STATES = frozenset({ToolState.ACTIVE, ToolState.UNAVAILABLE})
"""The states listed by default; they include UNAVAILABLE, so that a caller learns what is only temporarily missing."""


class ToolFilter(msgspec.Struct, frozen=True):
    """Fields are joined by AND, the entries of one field by OR, except capabilities.

    An empty field matches everything.
    """

    names: tuple[str, ...] = ()
    """Globs such as `core/fs.*`, case-sensitive."""
    kinds: frozenset[ToolKind] = frozenset()
    capabilities: frozenset[str] = frozenset()
    """All of these must be present; older names are accepted."""
    tags: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    states: frozenset[ToolState] = LISTED_STATES

    def compile(self) -> Test:
        """Return a predicate that tests only the fields that are set, cheapest first: for filtering many tools."""
        tests = tuple(self._tests())
        if len(tests) == 1:
            return tests[0]
        return lambda spec: all(test(spec) for test in tests)

    def matches(self, spec: ToolSpec) -> bool:
        return all(test(spec) for test in self._tests())

    def fingerprint(self, *scope: str) -> str:
        """Return a digest of this filter within `scope` (query, principal), to which a page token is bound."""
        parts = [sorted(str(entry) for entry in group) for group in msgspec.structs.astuple(self)]
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
            wanted = canonical_capabilities(self.capabilities)
            yield lambda spec: wanted <= canonical_capabilities(spec.capabilities)
        if self.names:
            yield lambda spec: any(fnmatchcase(spec.name, glob) for glob in self.names)


LISTED = ToolFilter()
"""Every ACTIVE or UNAVAILABLE tool."""
