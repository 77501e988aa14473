"""How many bytes a principal may store: the entries of `storage` in policy.yaml, over the hub's own defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toolhub_service.domain.storage import Bound, StorageTerms
from toolhub_service.policy.document import StorageRule
from toolhub_service.policy.patterns import Patterns

_GIB: Final = 1024**3
DEFAULT_TERMS: Final = StorageTerms(
    workspace=Bound("workspace.quota_bytes", 10 * _GIB),
    artifact=Bound("artifacts.quota_bytes", 10 * _GIB),
    memory=Bound("memory.max_bytes", 64 * 1024 * 1024),
    soft_ratio=0.8,
)
"""The defaults of the settings."""
_REMEMBERED_MAX: Final = 16_384


class StorageRules:
    """The entries of one policy."""

    def __init__(self, rules: Sequence[StorageRule]) -> None:
        self._rules = [(Patterns(rule.principals), rule) for rule in rules]
        self._of: dict[str, StorageTerms] = {}

    def of(self, principal_id: str, defaults: StorageTerms) -> StorageTerms:
        """Return the principal's bounds; `defaults` is the same in every call."""
        if not self._rules:
            return defaults
        known = self._of.get(principal_id)
        if known is None:
            # Tokens may name any number of principals, so the number of remembered ones is limited.
            if len(self._of) >= _REMEMBERED_MAX:
                self._of.clear()
            known = self._of[principal_id] = self._find(principal_id, defaults)
        return known

    def _find(self, principal_id: str, defaults: StorageTerms) -> StorageTerms:
        rules = [rule for patterns, rule in self._rules if patterns.match(principal_id)]

        def first(name: str, default: Bound) -> Bound:
            found = (most for rule in rules if (most := getattr(rule, name)) is not None)
            most = next(found, None)
            return default if most is None else Bound(f"storage.{name}", most)

        return StorageTerms(
            first("workspace_bytes", defaults.workspace),
            first("artifact_bytes", defaults.artifact),
            first("memory_bytes", defaults.memory),
            next((rule.soft_ratio for rule in rules if rule.soft_ratio is not None), defaults.soft_ratio),
        )
