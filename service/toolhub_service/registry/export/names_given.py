"""The tool behind a name that an export has given it, for callers that no longer have the map of that export: another
connection, another replica, or the same program after a restart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from toolhub_service.domain.ports import Catalog
from toolhub_service.registry.export.exported_names import (
    EXPORTED_MAX_CHARS,
    MCP_MAX_CHARS,
    plain_name,
    tools_by_exported_name,
)

# The hexadecimal mark at the end of a name that was cut, or that would equal another tool's.
_MARKED: Final = re.compile(r"_[0-9a-f]{8,32}$")
_SEPARATOR: Final = "__"


class NamesGiven:
    """Finds the tools of one catalog by their exported names.

    Its maps are made when they are first needed, and again after the catalog has changed.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._version = -1
        self._plain: Mapping[str, str] = {}
        self._marked: Mapping[str, str] | None = None
        """Also names with a mark; None: not made yet."""

    def tool_of(self, name: str) -> str:
        """Return the full name of the only tool that any export may have shown under this name; empty for none and
        for several."""
        if self._version != self._catalog.version:
            self._version, self._plain, self._marked = self._catalog.version, self._plain_names(), None
        found = self._look_up(name)
        # Gemini's names begin with a letter or an underscore: an underscore is put before any other first character.
        return found or (self._look_up(name[1:]) if name.startswith("_") else "")

    def _look_up(self, name: str) -> str:
        found = self._plain.get(name, "")
        if found or _MARKED.search(name) is None:
            return found
        if self._marked is None:
            self._marked = tools_by_exported_name(spec.name for spec in self._catalog.all())
        return self._marked.get(name, "")

    def _plain_names(self) -> Mapping[str, str]:
        names: dict[str, str] = {}
        for spec in self._catalog.all():
            for short in {plain_name(spec.name, EXPORTED_MAX_CHARS), plain_name(spec.name, MCP_MAX_CHARS)}:
                names[short] = "" if short in names else spec.name
        return names


def possible_names(name: str) -> list[str]:
    """Return every full name whose exported form may be this one, judged by the text alone: for tools that are not in
    the catalog yet."""
    places = [found.start() for found in re.finditer(f"(?={_SEPARATOR})", name)]
    return [f"{name[:at]}/{name[at + len(_SEPARATOR) :]}" for at in places if at]
