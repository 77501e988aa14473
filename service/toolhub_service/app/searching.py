"""How tools are found: the search over the catalog, what it learns from use, and the embedder of the configuration."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from toolhub_service.adapters.custom import is_trusted
from toolhub_service.app.means import Means
from toolhub_service.app.storing import Stores
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.embedding import Embedder, ToolMeanings
from toolhub_service.registry.search import ToolSearch
from toolhub_service.registry.usage import UsageLearning
from toolhub_service.telemetry import names


@dataclass(frozen=True, slots=True)
class Searching:
    """Made by `make_searching`; `start`, then `close`."""

    search: ToolSearch
    learning: UsageLearning | None
    """None: search.learn is off."""
    meanings: ToolMeanings | None
    """None: no embedder is configured."""
    told: Callable[[str], None]
    """Hears of troubles."""

    async def start(self) -> None:
        """Indexing, learning and embedding go on in the background; returns at once."""
        await self.search.start(self.told)
        if self.learning is not None:
            await self.learning.start()
        if self.meanings is not None:
            await self.meanings.start()

    async def close(self) -> None:
        if self.meanings is not None:
            await self.meanings.close()
        if self.learning is not None:
            await self.learning.close()
        await self.search.close()


def make_searching(means: Means, catalog: ToolCatalog, stores: Stores) -> Searching:
    """Raises HubFailure when the embedder of the configuration cannot be had."""
    learning = _learning(means, stores) if means.settings.search.learn else None
    embedder = _embedder(means)
    search = ToolSearch(catalog, learnt=learning.of if learning is not None else None, unix_ms=means.clock.unix_ms)
    told, redact = _teller(means), means.redactor.text
    meanings = ToolMeanings(catalog, embedder, told=told, redact=redact) if embedder is not None else None
    return Searching(search, learning, meanings, told)


def _learning(means: Means, stores: Stores) -> UsageLearning:
    learning = UsageLearning(stores.usage, clock=means.clock, redact=means.redactor.text, told=_teller(means))
    means.observing.calls.learn = learning.settled
    return learning


def _embedder(means: Means) -> Embedder | None:
    """What `search.embedder` names, called when it is a class or a function. Raises HubFailure."""
    path = means.settings.search.embedder
    if not path:
        return None
    module, _, name = path.partition(":")
    if not is_trusted(module, means.settings.tools.trusted_namespaces):
        raise _unusable(path, "its module is not in tools.trusted_namespaces")
    try:
        found = getattr(importlib.import_module(module), name)
        embedder: Embedder = found() if callable(found) else found
    except Exception as error:  # foreign code: whatever it raises, the operator is told which class
        raise _unusable(path, f"it could not be loaded: {type(error).__name__}") from error
    if not isinstance(getattr(embedder, "dimension", None), int):
        raise _unusable(path, "it has no `dimension`")
    return embedder


def _unusable(path: str, why: str) -> HubFailure:
    return HubFailure(HubStatus.FAILED_PRECONDITION, "EMBEDDER_UNUSABLE", f"search.embedder {path}: {why}.", path=path)


def _teller(means: Means) -> Callable[[str], None]:
    def told(problem: str) -> None:
        means.observing.log.warning(names.LOG_SEARCH_TROUBLE, problem=problem)

    return told
