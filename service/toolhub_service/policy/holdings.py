"""The capability gate: which capabilities a principal holds, and which of a tool's it lacks.

Patterns may use stars; `danger:destructive` is only ever held by name. Older capability names are mapped to current
ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from toolhub_service.domain.call import ExecContext
from toolhub_service.domain.tool import DANGER_DESTRUCTIVE, canonical_capabilities
from toolhub_service.policy.patterns import Patterns


class Holdings:
    """A set of held capabilities, given as globs."""

    __slots__ = ("_named", "_patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._named = canonical_capabilities(patterns)
        self._patterns = Patterns(sorted(self._named))

    def hold(self, capability: str) -> bool:
        if capability == DANGER_DESTRUCTIVE:
            return capability in self._named
        return self._patterns.match(capability) is not None

    def lack(self, needs: frozenset[str]) -> tuple[str, ...]:
        """Return the needed capabilities that are not held, sorted."""
        # Most grants name what they give, so the globs are tried only for the rest.
        if needs <= self._named:
            return ()
        return tuple(sorted(need for need in needs if not self.hold(need)))

    def both(self, other: Holdings) -> frozenset[str]:
        """Return globs over what both hold. A glob whose text another glob matches covers no more than that one."""
        return frozenset(filter(other.hold, self._named)) | frozenset(filter(self.hold, other._named))


@lru_cache(maxsize=4_096)
def missing_capabilities(held: frozenset[str], needs: frozenset[str]) -> tuple[str, ...]:
    """Return which of the needed capabilities a credential narrowed to these globs does not include; cached, because
    such sets are few and small."""
    return Holdings(held).lack(needs)


def narrow_permissions(context: ExecContext, most: frozenset[str]) -> ExecContext:
    """Return the context of a call whose credential holds no more than these capabilities (globs)."""
    asked = context.permissions
    return context._replace(permissions=most if asked is None else Holdings(asked).both(Holdings(most)))
