"""Finding tools by words: BM25 over the catalog, filtered before anything is ranked or counted.

The index follows the catalog's changes. What a caller may not see neither takes a place among the hits nor shows in
their number. Which tools a filter or a viewer may see is worked out once and kept as a bit mask until the catalog
changes, so that a search costs a few vector operations whatever it matches. Hits say where they matched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.registry.document import Field, fields_of
from toolhub_service.registry.filter import LISTED, Test, ToolFilter
from toolhub_service.registry.index import InvertedIndex, Scores, Slots

QUERY_MAX_TERMS: Final = 64
"""Distinct terms of one query that are looked up: the first ones."""
MASKS_MAX: Final = 64
"""Filters and viewers whose masks are kept; 10 kB each for 10,000 tools."""

Mask: TypeAlias = npt.NDArray[np.bool_]
FieldTexts = Callable[[ToolSpec], Mapping[Field, str]]


@dataclass(frozen=True, slots=True)
class SearchHit:
    tool: ToolSpec
    score: float
    """Above 0, comparable within one answer only; 0 when the query was empty."""
    fields: tuple[str, ...] = ()
    """Where it matched: `name`, `description`, `arguments`, `tags`, `capabilities`, `usage`."""
    terms: tuple[str, ...] = ()
    """The words that matched, as they stand in the tool, lower case."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    hits: tuple[SearchHit, ...]
    """Best first, then by name."""
    total_size: int
    """How many tools match in all."""
    revision: str
    """The catalog that was searched."""


class ToolSearch:
    """A search over one catalog. `texts` says what of a tool is indexed."""

    def __init__(self, catalog: ToolCatalog, *, texts: FieldTexts = fields_of) -> None:
        self._catalog = catalog
        self._texts = texts
        self._index = InvertedIndex()
        self._masks: dict[Hashable, Mask] = {}
        for spec in catalog.all():
            self._index.put(spec.name, texts(spec))
        self.close = catalog.subscribe(self._follow)
        """Stop following the catalog."""

    def search(
        self,
        query: str,
        where: ToolFilter = LISTED,
        *,
        allowed: Test | None = None,
        viewer: Hashable = None,
        limit: int = 10,
        offset: int = 0,
    ) -> SearchResult:
        """The hits `offset` to `offset + limit`. A query without words gives every match of the filter by name.

        `viewer` names whom `allowed` speaks for (principal and policy revision): equal viewers are allowed equally,
        and what they may see is then worked out once. None: asked anew for each match.
        """
        wanted = self._query_terms(query)
        if not wanted:
            return self._by_name(where, allowed, limit, offset)
        slots, scores = self._index.rank(wanted)
        shown = self._mask(where, where.compiled())[slots]
        slots, scores = slots[shown], scores[shown]
        if allowed is not None:
            seen = self._judge(slots, allowed) if viewer is None else self._mask(("viewer", viewer), allowed)[slots]
            slots, scores = slots[seen], scores[seen]
        best = self._best(slots, scores, offset + limit)[offset:]
        hits = tuple(self._hit(slot, score, wanted) for slot, score in best)
        return SearchResult(hits=hits, total_size=len(slots), revision=self._catalog.revision)

    def refresh(self, spec: ToolSpec) -> None:
        """Index a tool anew, when `texts` has something new to say about it."""
        self._index.put(spec.name, self._texts(spec))
        self._masks.clear()

    def _follow(self, change: CatalogChange) -> None:
        for spec in change.removed:
            self._index.remove(spec.name)
        self._masks.clear()
        for spec in change.added + change.changed:
            self.refresh(spec)

    def _query_terms(self, query: str) -> tuple[str, ...]:
        """Distinct terms. Numbers beside words are left out: they are values of arguments, not words about a tool."""
        terms = dict.fromkeys(self._index.analyser.terms(query))
        words = [term for term in terms if not term.isdigit()]
        return tuple(words or terms)[:QUERY_MAX_TERMS]

    def _mask(self, key: Hashable, test: Test) -> Mask:
        mask = self._masks.get(key)
        if mask is None:
            if len(self._masks) >= MASKS_MAX:
                self._masks.clear()
            mask = self._masks[key] = self._judge(np.arange(self._index.slot_count), test)
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

    def _hit(self, slot: int, score: float, wanted: Sequence[str]) -> SearchHit:
        fields, words = self._index.explain(slot, wanted)
        spec = self._catalog.get(self._index.key(slot))
        assert spec is not None  # the index follows the catalog, change by change
        return SearchHit(spec, score, tuple(str(field.name).lower() for field in fields), words)

    def _by_name(self, where: ToolFilter, allowed: Test | None, limit: int, offset: int) -> SearchResult:
        meant = where.compiled()
        shown = [spec for spec in self._catalog.all() if meant(spec) and (allowed is None or allowed(spec))]
        hits = tuple(SearchHit(spec, 0.0) for spec in shown[offset : offset + limit])
        return SearchResult(hits=hits, total_size=len(shown), revision=self._catalog.revision)
