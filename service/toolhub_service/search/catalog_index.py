"""A catalog's index: it follows small changes at once, and large ones in time slices, so that calls can run between.

Removed and changed tools cannot be found from that moment on. New ones can be found at once when at most `AT_ONCE`
tools came together, otherwise when they are indexed. An index with more holes than tools is rebuilt: a new one takes in
the same tools, in time slices, and replaces the first when it is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Final

from toolhub_service.aio.cooperative import run_in_slices
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.search.fields import fields_of
from toolhub_service.search.index import InvertedIndex

AT_ONCE: Final = 64
"""As many as a source changes in one batch (``offers.BATCH``)."""
HOLES_MIN: Final = 256
"""The number of holes below which no rebuild pays."""


class CatalogIndex:
    """Before `start` and after `close` all changes are indexed at once."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog
        self._current = _PartialIndex(catalog, InvertedIndex())
        self._rebuilt: _PartialIndex | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._was_completed = asyncio.Event()
        self._unsubscribe = catalog.subscribe(self._follow)
        self._current.change((), (spec.name for spec in catalog.all()))
        self._catch_up()

    @property
    def index(self) -> InvertedIndex:
        """The current index; a rebuild replaces the object."""
        return self._current.index

    @property
    def behind(self) -> int:
        """Number of tools in the catalog that cannot be found yet."""
        return len(self._current.lacking)

    async def start(self, notify: Callable[[str], None]) -> None:
        """Index many tools in slices from now on; `notify` is called with errors. Returns at once."""
        self._task = asyncio.create_task(self._keep_up(notify), name="index tools")

    async def close(self) -> None:
        """Stop following the catalog."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def complete(self) -> None:
        """Wait until every tool of the catalog can be found."""
        while self.behind:
            self._was_completed.clear()
            await self._was_completed.wait()

    def _follow(self, change: CatalogChange) -> None:
        gone = [spec.name for spec in change.removed + change.changed]
        coming = [spec.name for spec in change.added + change.changed]
        self._current.change(gone, coming)
        if self._rebuilt is not None:
            self._rebuilt.change(gone, coming)
        # Removed tools leave holes that every search passes over; a rebuilt index has none.
        elif self.index.holes > max(HOLES_MIN, len(self.index) + self.behind):
            self._rebuilt = _PartialIndex(self._catalog, InvertedIndex(self.index.analyser))
            self._rebuilt.change((), (spec.name for spec in self._catalog.all()))
        if self._task is None:
            self._catch_up()
        # So few are indexed at once, so that a tool can be found as soon as it can be called.
        elif len(coming) <= AT_ONCE:
            for name in coming:
                self._current.take(name)
        self._woken.set()

    def _catch_up(self) -> None:
        for _ in self._steps():
            pass

    async def _keep_up(self, notify: Callable[[str], None]) -> None:
        while True:
            self._woken.clear()
            try:
                await run_in_slices(self._steps())
            except Exception as defect:  # noqa: BLE001 - the other tools are still to be read
                notify(f"a tool cannot be searched: {type(defect).__name__}")
            else:
                await self._woken.wait()

    def _steps(self) -> Generator[None, None, None]:
        """Yield once a tool until nothing is left to do."""
        while self._step():
            yield

    def _step(self) -> bool:
        """Index one tool, missing ones first, then the rebuild. Return False when nothing was left to do."""
        if self._current.lacking:
            self._current.take(self._current.lacking.pop())
        elif self._rebuilt is None:
            return False
        elif self._rebuilt.lacking:
            self._rebuilt.take(self._rebuilt.lacking.pop())
        else:
            # Swapped when it is complete: until then searches use the old one.
            self._current, self._rebuilt = self._rebuilt, None
        if not self.behind:
            self._was_completed.set()
        return True


class _PartialIndex:
    """An index, and the tools that are missing from it."""

    def __init__(self, catalog: ToolCatalog, index: InvertedIndex) -> None:
        self._catalog = catalog
        self.index = index
        self.lacking: set[str] = set()

    def change(self, gone: Iterable[str], coming: Iterable[str]) -> None:
        """Drop removed tools, and mark new ones as missing."""
        for name in gone:
            if self.index.slot(name) is not None:
                self.index.remove(name)
            self.lacking.discard(name)
        self.lacking.update(coming)

    def take(self, name: str) -> None:
        """Index a tool in its current version."""
        self.lacking.discard(name)
        spec = self._catalog.get(name)
        if spec is not None:
            self.index.put(name, fields_of(spec))
