"""Detection of tools whose names look like another source's tool, so that a model could confuse them.

A source names its tools as it likes. A name that begins with another namespace (`core/fs.readText`,
`core__fs_readText`, `github__search`), or that equals the full name of another source's tool when case and separators
are ignored, abuses the trust in the other ("tool shadowing"). The index of full names follows the catalog, so that a
check costs one dict lookup whatever the number of tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.registry.names import skeleton

BUILT_IN_NAMESPACES: Final = ("core", "custom", "registered")
_NAMESPACE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*?)(?:/|__|\.|:)")


class Shadows:
    """Lives as long as the catalog that it follows."""

    def __init__(self, catalog: ToolCatalog) -> None:
        # Skeleton to (full name, source).
        self._full_names: dict[str, tuple[str, str]] = {}
        self._namespaces: dict[str, str] = {skeleton(name): name for name in BUILT_IN_NAMESPACES}
        self._put(catalog.all())
        catalog.subscribe(self._follow)

    def reserve(self, source: str) -> None:
        """Reserve a namespace: other sources' tools must not look as if they belonged to this one."""
        self._namespaces.setdefault(skeleton(source), source)

    def release(self, source: str) -> None:
        if self.twin(source) == source and source not in BUILT_IN_NAMESPACES:
            del self._namespaces[skeleton(source)]

    def twin(self, source: str) -> str:
        """Return the namespace that looks like this name; empty when there is none."""
        return self._namespaces.get(skeleton(source), "")

    def shadowed_by(self, spec: ToolSpec) -> str:
        """Return the full name or `namespace/` that the tool's name looks like; empty when there is none."""
        own_name = spec.resource_id or spec.name.partition("/")[2]
        for name in (own_name, spec.name):
            full_name, source = self._full_names.get(skeleton(name), ("", spec.source))
            if source != spec.source:
                return full_name
        prefix = _NAMESPACE.match(own_name)
        namespace = self._namespaces.get(skeleton(prefix[1]), spec.source) if prefix else spec.source
        return f"{namespace}/" if namespace != spec.source else ""

    def _follow(self, change: CatalogChange) -> None:
        for spec in change.removed:
            self._full_names.pop(skeleton(spec.name), None)
        self._put((*change.added, *change.changed))

    def _put(self, specs: Iterable[ToolSpec]) -> None:
        for spec in specs:
            self._full_names[skeleton(spec.name)] = (spec.name, spec.source)
