"""Finding tools: BM25 over the catalog's words, past uses and meaning, filtered before anything is ranked or counted.

The index follows the catalog (`catalog_index.py`). What a caller may not see neither takes a place among the hits nor
shows in their number. Which tools a filter or a viewer may see is worked out once and kept as a bit mask, to which a
change of the catalog adds only what changed, so that a search costs a few vector operations whatever it matches. What a
tenant's tools were used for lifts them in its own searches only. Hits say where they matched and why they stand where
they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.catalog_index import CatalogIndex
from toolhub_service.registry.embedding import Meaning
from toolhub_service.registry.filter import LISTED, Test, ToolFilter
from toolhub_service.registry.fusion import MEANING_WEIGHT, WORDS_WEIGHT, fused
from toolhub_service.registry.hit import SearchHit, SearchResult, explained
from toolhub_service.registry.index import InvertedIndex, Lookup, Scores, Slots
from toolhub_service.registry.query import QueryReader
from toolhub_service.registry.slot_map import SlotMap
from toolhub_service.registry.usage_index import TenantUsage, UsageLookup

MASKS_MAX: Final = 64
"""Filters and viewers whose masks are kept; 10 kB each for 10,000 tools."""
COMPLETE_S: Final = 0.2
"""How long a search waits for tools that came many at once."""
CLOSE_TOOLS: Final = 100
"""Tools that are near the query in meaning and may be hits for that alone."""

Mask: TypeAlias = npt.NDArray[np.bool_]
Learnt = Callable[[str], TenantUsage | None]
"""What a tenant's tools were used for; None: nothing is known."""
NO_MEANING: Final = Meaning()
_EMPTY: Final = np.zeros(0, np.bool_)


class ToolSearch:
    """A search over one catalog. `learnt` and `unix_ms` (the wall clock) go together: uses fade."""

    def __init__(
        self,
        catalog: ToolCatalog,
        *,
        learnt: Learnt | None = None,
        unix_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._catalog = catalog
        self._learnt = learnt
        self._unix_ms = unix_ms
        self._following = CatalogIndex(catalog)
        self._reader = QueryReader(self._index.analyser)
        self._masks: dict[Hashable, Mask] = {}
        """By filter or viewer; a changed tool has a new slot, so that a mask is at most too short."""
        self._masks_made_for = self._index
        self._meaning_slots = SlotMap()

    async def start(self, told: Callable[[str], None]) -> None:
        """Take in many tools at once in turns from now on; `told` hears of what cannot be read. Returns at once."""
        await self._following.start(told)

    async def close(self) -> None:
        """Stop following the catalog."""
        await self._following.close()

    @property
    def revision(self) -> str:
        """Names what a search goes by: the catalog, and how much of it cannot be found yet."""
        behind = self._following.behind
        return f"{behind:x}.{self._catalog.revision}" if behind else self._catalog.revision

    async def complete(self, timeout_s: float = COMPLETE_S) -> None:
        """Wait until every tool can be found, but no longer than that."""
        if self._following.behind:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._following.complete()
            except TimeoutError:
                pass  # the search says what it lacks

    def search(
        self,
        query: str,
        where: ToolFilter = LISTED,
        *,
        allowed: Test | None = None,
        viewer: Hashable = None,
        tenant: str = "",
        meaning: Meaning = NO_MEANING,
        limit: int = 10,
        offset: int = 0,
    ) -> SearchResult:
        """The hits `offset` to `offset + limit`. A query without words gives every match of the filter by name.

        `viewer` names whom `allowed` speaks for (principal and policy revision): equal viewers are allowed equally,
        and what they may see is then worked out once. None: asked anew for each match. `tenant`: whose past uses count;
        empty: nobody's. `meaning`: what the query is close to, from `ToolMeanings.of`.
        """
        wanted = self._reader.read(query)
        if not wanted:
            return self._by_name(where, allowed, limit, offset)
        shown = self._mask(where, where.compiled())
        if allowed is not None and viewer is not None:
            shown = shown & self._mask(("viewer", viewer), allowed)
            allowed = None
        learnt = self._learnt(tenant) if tenant and self._learnt else None
        uses = learnt.lookup(wanted, self._index, self._unix_ms()) if learnt else None
        lookup = self._index.lookup(wanted)
        slots, scores = self._by_words(lookup, uses, shown, allowed)
        close = self._close(meaning, shown, allowed)
        ranked_by = ["words"] + ["usage"] * (uses is not None) + ["meaning"] * bool(len(meaning.names))
        places: dict[int, int] = {}
        if len(meaning.names):
            slots, scores = fused([(slots[np.argsort(-scores, kind="stable")], WORDS_WEIGHT), (close, MEANING_WEIGHT)])
            places = {slot: place for place, slot in enumerate(close.tolist(), 1)}
        best = self._best(slots, scores, offset + limit)[offset:]
        hits = tuple(self._hit(slot, score, lookup, uses, places.get(slot, 0)) for slot, score in best)
        return SearchResult(hits, len(slots), self._catalog.revision, tuple(ranked_by), self._note(meaning))

    @property
    def _index(self) -> InvertedIndex:
        return self._following.index

    def _note(self, meaning: Meaning) -> str:
        behind = self._following.behind
        if not behind:  # counting the tools of a catalog that has changed takes 100 ms for 100,000
            return meaning.note
        lacks = f"{behind:,} of {len(self._catalog.all()):,} tools cannot be found yet"
        return "; ".join(filter(None, (lacks, meaning.note)))

    def _by_words(
        self, lookup: Lookup, uses: UsageLookup | None, shown: Mask, allowed: Test | None
    ) -> tuple[Slots, Scores]:
        scores = self._index.scores(lookup)
        if uses is not None:
            slots, gains = uses.gains()
            scores[slots] += gains
        slots = np.flatnonzero(scores)
        slots = slots[shown[slots]]
        if allowed is not None:
            slots = slots[self._judge(slots, allowed)]
        return slots, scores[slots]

    def _close(self, meaning: Meaning, shown: Mask, allowed: Test | None) -> Slots:
        """The tools nearest in meaning, best first, among those that are shown."""
        if meaning.closeness is None:
            return np.zeros(0, np.int64)
        slots = self._meaning_slots.slots(self._index, meaning.names, meaning.version)
        near = np.flatnonzero((slots >= 0) & (meaning.closeness > 0))
        near = near[shown[slots[near]]]
        if allowed is not None:
            near = near[self._judge(slots[near], allowed)]
        order = np.argsort(-meaning.closeness[near], kind="stable")[:CLOSE_TOOLS]
        found: Slots = slots[near[order]]
        return found

    def _mask(self, key: Hashable, test: Test) -> Mask:
        if self._masks_made_for is not self._index or len(self._masks) > MASKS_MAX:
            self._masks.clear()
            self._masks_made_for = self._index
        mask = self._masks.get(key, _EMPTY)
        if len(mask) < self._index.slot_count:
            added = self._judge(np.arange(len(mask), self._index.slot_count), test)
            mask = self._masks[key] = np.concatenate((mask, added))
        return mask

    def _judge(self, slots: Slots, test: Test) -> Mask:
        specs = (self._catalog.get(self._index.key(slot)) for slot in slots.tolist())
        return np.fromiter((spec is not None and test(spec) for spec in specs), np.bool_, len(slots))

    def _best(self, slots: Slots, scores: Scores, count: int) -> list[tuple[int, float]]:
        if count < len(slots):
            threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
            near = scores >= threshold
            slots, scores = slots[near], scores[near]
        ranked = sorted(
            zip(slots.tolist(), scores.tolist(), strict=True), key=lambda hit: (-hit[1], self._index.key(hit[0]))
        )
        return ranked[:count]

    def _hit(self, slot: int, score: float, lookup: Lookup, uses: UsageLookup | None, place: int) -> SearchHit:
        spec = self._catalog.get(self._index.key(slot))
        assert spec is not None  # the index follows the catalog, change by change
        matches = self._index.explain(slot, lookup)
        lifts = uses.explain(spec.name) if uses is not None else ()
        return explained(spec, score, matches, lifts, place)

    def _by_name(self, where: ToolFilter, allowed: Test | None, limit: int, offset: int) -> SearchResult:
        meant = where.compiled()
        shown = [spec for spec in self._catalog.all() if meant(spec) and (allowed is None or allowed(spec))]
        hits = tuple(SearchHit(spec, 0.0) for spec in shown[offset : offset + limit])
        return SearchResult(hits, len(shown), self._catalog.revision)
