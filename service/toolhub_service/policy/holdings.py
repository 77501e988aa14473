"""The capability gate: which capabilities a principal holds, and which of a tool's it lacks.

Patterns may use stars; `danger:destructive` is only ever held by name. Older capability names are read as today's.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolhub_service.domain.capability import DANGER_DESTRUCTIVE, canonical
from toolhub_service.policy.patterns import Patterns


class Holdings:
    """A set of held capabilities, given as globs."""

    __slots__ = ("_named", "_patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._named = canonical(patterns)
        self._patterns = Patterns(sorted(self._named))

    def hold(self, capability: str) -> bool:
        if capability == DANGER_DESTRUCTIVE:
            return capability in self._named
        return self._patterns.match(capability) is not None

    def lack(self, needs: frozenset[str]) -> tuple[str, ...]:
        """The needed capabilities that are not held, sorted."""
        if needs <= self._named:
            return ()
        return tuple(sorted(need for need in needs if not self.hold(need)))
