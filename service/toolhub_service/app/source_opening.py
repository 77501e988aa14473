"""From an entry of sources.yaml to a source that can be read and called. One opener a kind, made when one is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Adapter
from toolhub_service.domain.source import Definition
from toolhub_service.domain.source_ports import ToolSource


@dataclass(frozen=True, slots=True)
class OpenedSource:
    source: ToolSource
    restored: Callable[[JsonObject], Definition | None] | None = None
    """Makes a definition of what a pin has kept."""


class Opener(Protocol):
    """Makes the sources of one kind, and knows the adapter that runs their tools."""

    @property
    def adapter(self) -> Adapter: ...

    def endpoint(self, name: str, entry: Any) -> str:
        """Where such a source stands, without credentials, whether it can be opened or not."""
        ...

    def open(self, name: str, entry: Any) -> OpenedSource:
        """Nothing is connected yet. Raises ValueError (ValueMissing, too), OSError or HubFailure for the operator."""
        ...

    def forget(self, name: str) -> None:
        """Its tools are called no more."""
        ...
