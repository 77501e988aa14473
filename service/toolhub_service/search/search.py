"""Search for tools by BM25 over words, past uses and meaning, filtered before anything is ranked or counted.

The index follows the catalog (`catalog_index.py`). Tools that a caller may not see affect neither the hits nor their
number. The tools that a filter or a viewer may see are computed once and cached as a bit mask, to which a change of the
catalog adds only what changed, so that a search costs a few vector operations whatever it matches. A tenant's past uses
raise tools in its own searches only. Hits say where they matched and why they are ranked as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.arrays import load, np
from toolhub_service.search.catalog_index import CatalogIndex
from toolhub_service.search.embedding import Meaning
from toolhub_service.search.filters import LISTED, Test, ToolFilter
from toolhub_service.search.fusion import MEANING_WEIGHT, WORDS_WEIGHT, fuse_rankings
from toolhub_service.search.hits import SearchHit, SearchResult, explain_hit, mark_as_named
from toolhub_service.search.index import InvertedIndex, Lookup, Scores, Slots
from toolhub_service.search.query import QueryReader, related_terms
from toolhub_service.search.usage_index import SlotMap, TenantUsage, UsageLookup

if TYPE_CHECKING:
    import numpy.typing as npt


MASKS_MAX: Final = 64
"""Most filters and viewers whose masks are cached; a mask takes 10 kB for 10,000 tools."""
COMPLETE_S: Final = 0.2
"""How long a search waits for many new tools to be indexed."""
CLOSE_TOOLS: Final = 100
"""Most tools that are near the query in meaning and may be hits for that reason alone."""

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Learnt = Callable[[str], TenantUsage | None]
"""Returns a tenant's past uses; None: nothing is known."""
NO_MEANING: Final = Meaning()


class ToolSearch:
    """A search over one catalog. `learnt` and `unix_ms` (the wall clock) go together, because uses fade."""

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
        # By filter or viewer; a changed tool gets a new slot, so a mask can only be too short.
        self._masks: dict[Hashable, Mask] = {}
        self._masks_made_for = self._index
        self._meaning_slots = SlotMap()
        self._is_loaded = False
        """Return whether the modules that only a search needs are loaded."""

    async def start(self, notify: Callable[[str], None]) -> None:
        """Index many tools in slices from now on; `notify` is called with errors. Returns at once."""
        await self._following.start(notify)

    async def close(self) -> None:
        """Stop following the catalog."""
        await self._following.close()

    @property
    def revision(self) -> str:
        """Return what a search depends on: the catalog's revision, and how many of its tools cannot be found yet."""
        behind = self._following.behind
        return f"{behind:x}.{self._catalog.revision}" if behind else self._catalog.revision

    async def complete(self, timeout_s: float = COMPLETE_S) -> None:
        """Wait until every tool can be found, but not longer than that; call it before a search."""
        if not self._is_loaded:
            await asyncio.gather(load(), asyncio.to_thread(related_terms))
            self._is_loaded = True
        if self._following.behind:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._following.complete()
            except TimeoutError:
                pass  # the result says what is missing

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
        """Return the hits `offset` to `offset + limit`.

        A query that is the name of a tool, with or without its source, finds that tool first. One without words returns
        all that the filter matches, by name.

        `viewer` is the key of `allowed` (principal and policy revision): equal viewers may see the same tools, which
        are then computed once. None: `allowed` is called for each match. `tenant`: whose past uses count; empty:
        nobody's. `meaning`: the result of `ToolMeanings.of`.
        """
        wanted = self._reader.read(query, self._index.numbers)
        named = self._index.find_named(query)
        if not wanted and not named:
            return self._by_name(where, allowed, limit, offset)
        shown = self._mask(where, where.compile())
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
            slots, scores = fuse_rankings(
                [(slots[np.argsort(-scores, kind="stable")], WORDS_WEIGHT), (close, MEANING_WEIGHT)]
            )
            places = {slot: place for place, slot in enumerate(close.tolist(), 1)}
        if named:
            slots, scores = self._put_named_first(named, slots, scores, shown, allowed)
        best = self._best(slots, scores, offset + limit)[offset:]
        hits = tuple(self._hit(slot, score, lookup, uses, places.get(slot, 0)) for slot, score in best)
        hits = tuple(mark_as_named(hit) if slot in named else hit for hit, (slot, _) in zip(hits, best, strict=True))
        return SearchResult(hits, len(slots), self._catalog.revision, tuple(ranked_by), self._note(meaning))

    @property
    def _index(self) -> InvertedIndex:
        return self._following.index

    def _note(self, meaning: Meaning) -> str:
        behind = self._following.behind
        if not behind:  # counting the tools of a changed catalog takes 100 ms for 100,000
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
            slots = slots[self._check(slots, allowed)]
        return slots, scores[slots]

    def _put_named_first(
        self, named: Sequence[int], slots: Slots, scores: Scores, shown: Mask, allowed: Test | None
    ) -> tuple[Slots, Scores]:
        """Return the ranking with the tools of that name above all others, in their order."""
        first = np.array(named, np.int64)
        first = first[shown[first]]
        if allowed is not None:
            first = first[self._check(first, allowed)]
        more = np.setdiff1d(first, slots)
        slots, scores = np.concatenate((slots, more)), np.concatenate((scores, np.zeros(len(more), np.float32)))
        scores[np.isin(slots, first)] += scores.max(initial=0.0) + 1.0
        return slots, scores

    def _close(self, meaning: Meaning, shown: Mask, allowed: Test | None) -> Slots:
        """Return the tools nearest in meaning, best first, among those that are shown."""
        if meaning.closeness is None:
            return np.zeros(0, np.int64)
        slots = self._meaning_slots.slots(self._index, meaning.names, meaning.version)
        near = np.flatnonzero((slots >= 0) & (meaning.closeness > 0))
        near = near[shown[slots[near]]]
        if allowed is not None:
            near = near[self._check(slots[near], allowed)]
        order = np.argsort(-meaning.closeness[near], kind="stable")[:CLOSE_TOOLS]
        found: Slots = slots[near[order]]
        return found

    def _mask(self, key: Hashable, test: Test) -> Mask:
        if self._masks_made_for is not self._index or len(self._masks) > MASKS_MAX:
            self._masks.clear()
            self._masks_made_for = self._index
        mask = self._masks.get(key)
        checked = 0 if mask is None else len(mask)
        if mask is None or checked < self._index.slot_count:
            added = self._check(np.arange(checked, self._index.slot_count), test)
            mask = self._masks[key] = added if mask is None else np.concatenate((mask, added))
        return mask

    def _check(self, slots: Slots, test: Test) -> Mask:
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
        return explain_hit(spec, score, matches, lifts, place)

    def _by_name(self, where: ToolFilter, allowed: Test | None, limit: int, offset: int) -> SearchResult:
        meant = where.compile()
        shown = [spec for spec in self._catalog.all() if meant(spec) and (allowed is None or allowed(spec))]
        hits = tuple(SearchHit(spec, 0.0) for spec in shown[offset : offset + limit])
        return SearchResult(hits, len(shown), self._catalog.revision)
