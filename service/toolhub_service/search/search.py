"""Search for tools by BM25 over words, past uses and meaning, filtered before anything is ranked or counted.

The index follows the catalog (`catalog_index.py`). Tools that a caller may not see affect neither the hits nor their
number. The tools that a filter or a viewer may see are computed once and cached as a bit mask, to which a change of the
catalog adds only what changed, so that a search costs a few vector operations whatever it matches. A tenant's past uses
raise tools in its own searches only. Hits say where they matched and why they are ranked as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState, canonical_capabilities
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.arrays import load, np
from toolhub_service.search.catalog_index import CatalogIndex
from toolhub_service.search.embedding import Meaning
from toolhub_service.search.index import Field, InvertedIndex, Lookup, Scores, Slots, TermMatch
from toolhub_service.search.query import QueryReader, QueryTerm, related_terms
from toolhub_service.search.usage_index import SlotMap, TenantUsage, UsageLookup

if TYPE_CHECKING:
    import numpy.typing as npt

# The filter that lists, searches and exports share.

Test = Callable[[ToolSpec], bool]
LISTED_STATES = frozenset({ToolState.ACTIVE, ToolState.UNAVAILABLE})
"""The states listed by default; they include UNAVAILABLE, so that a caller learns what is only temporarily missing."""


class ToolFilter(msgspec.Struct, frozen=True):
    """Fields are joined by AND, the entries of one field by OR, except capabilities.

    An empty field matches everything.
    """

    names: tuple[str, ...] = ()
    """Globs such as `core/fs.*`, case-sensitive."""
    kinds: frozenset[ToolKind] = frozenset()
    capabilities: frozenset[str] = frozenset()
    """All of these must be present; older names are accepted."""
    tags: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    states: frozenset[ToolState] = LISTED_STATES

    def compiled(self) -> Test:
        """Return a predicate that tests only the fields that are set, cheapest first: for filtering many tools."""
        tests = tuple(self._tests())
        if len(tests) == 1:
            return tests[0]
        return lambda spec: all(test(spec) for test in tests)

    def matches(self, spec: ToolSpec) -> bool:
        return all(test(spec) for test in self._tests())

    def fingerprint(self, *scope: str) -> str:
        """Return a digest of this filter within `scope` (query, principal), to which a page token is bound."""
        parts = [sorted(str(entry) for entry in group) for group in msgspec.structs.astuple(self)]
        return hashlib.sha256(repr((parts, scope)).encode()).hexdigest()[:16]

    def _tests(self) -> Iterator[Test]:
        if self.states:
            yield lambda spec: spec.state in self.states
        if self.kinds:
            yield lambda spec: spec.kind in self.kinds
        if self.sources:
            yield lambda spec: spec.source in self.sources
        if self.tags:
            yield lambda spec: not self.tags.isdisjoint(spec.tags)
        if self.capabilities:
            wanted = canonical_capabilities(self.capabilities)
            yield lambda spec: wanted <= canonical_capabilities(spec.capabilities)
        if self.names:
            yield lambda spec: any(fnmatchcase(spec.name, glob) for glob in self.names)


LISTED = ToolFilter()
"""Every ACTIVE or UNAVAILABLE tool."""


# Search results: hits with the reasons for them.

REASONS_MAX: Final = 12


class Reason(NamedTuple):
    """One reason for a hit."""

    part: str
    """`words`: a word of the query occurs in the tool; `related`: a related word does; `usage`: the word occurs in
    purposes of past calls; `meaning`: the embedder finds them close."""
    word: str = ""
    """The word of the query, lower case; empty for `meaning`."""
    found: str = ""
    """The word of the tool that matched it; empty for `usage` and `meaning`."""
    fields: tuple[str, ...] = ()
    """Where in the tool it was found."""
    score: float = 0.0
    """Its share of the score from words and usage; 0 for `meaning`."""
    place: int = 0
    """The rank by meaning, from 1; 0 for the others."""


class SearchHit(msgspec.Struct, frozen=True):
    tool: ToolSpec
    score: float
    """Above 0, comparable within one result only; 0 when the query was empty."""
    fields: tuple[str, ...] = ()
    """Where it matched: `name`, `description`, `arguments`, `tags`, `usage`."""
    terms: tuple[str, ...] = ()
    """The words that matched, in the tool's spelling, lower case."""
    reasons: tuple[Reason, ...] = ()
    """At most 12: meaning first, then by weight."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    hits: tuple[SearchHit, ...]
    """Best first, then by name."""
    total_size: int
    """How many tools match in all."""
    revision: str
    """Revision of the catalog that was searched."""
    ranked_by: tuple[str, ...] = ()
    """Which of `words`, `usage`, `meaning` were used; empty when the query was empty."""
    note: str = ""
    """What the ranking lacks: tools that cannot be found yet, or meaning, when an embedder is configured."""


def explained(
    tool: ToolSpec,
    score: float,
    matches: Sequence[TermMatch],
    lifts: Sequence[tuple[QueryTerm, float]],
    place: int,
) -> SearchHit:
    """Return a hit with its reasons.

    `lifts`: the scores added by uses, by term; `place`: the rank by meaning, 0: none.
    """
    reasons = [
        Reason(
            "related" if match.is_related else "words",
            match.wanted.word,
            match.written,
            _NAMES[match.fields],
            match.score,
        )
        for match in matches
    ]
    reasons += [Reason("usage", wanted.word, "", ("usage",), gain) for wanted, gain in lifts]
    reasons.sort(key=lambda reason: -reason.score)
    if place:
        reasons.insert(0, Reason("meaning", place=place))
    fields = int(Field.USAGE) if lifts else 0
    for match in matches:
        fields |= match.fields
    met = tuple(dict.fromkeys(match.written for match in matches))
    return SearchHit(tool, score, _NAMES[fields], met, tuple(reasons[:REASONS_MAX]))


_NAMES: Final = {
    bits: tuple(str(field.name).lower() for field in Field if field.value & bits) for bits in range(2 * Field.USAGE)
}


def _as_named(hit: SearchHit) -> SearchHit:
    """Return the hit of a query that is the tool's name: also one whose words are all too common to count."""
    if "name" in hit.fields:
        return hit
    return msgspec.structs.replace(hit, fields=("name", *hit.fields), terms=(hit.tool.name.lower(), *hit.terms))


# Reciprocal rank fusion: merges several rankings into one, by rank only.
#
# score = sum of weight / (RANK_OFFSET + place), places from 1 (Cormack, Clarke and Buettcher, SIGIR 2009, who take 60
# for long lists). Scores of different rankings cannot be compared, ranks can. Words count double: on public tool
# corpora 2 : 1 with an offset of 20 never ranks worse than words alone, while a small embedder alone, or an even mix,
# sometimes does.

RANK_OFFSET: Final = 20.0
WORDS_WEIGHT: Final = 2.0
MEANING_WEIGHT: Final = 1.0


def fused(rankings: Sequence[tuple[Slots, float]]) -> tuple[Slots, Scores]:
    """Return every slot of any ranking with its fused score, in order of slots.

    A ranking is its slots, best first, and its weight.
    """
    gains = [weight / (RANK_OFFSET + 1.0 + np.arange(len(slots))) for slots, weight in rankings]
    slots, places = np.unique(np.concatenate([slots for slots, _ in rankings]), return_inverse=True)
    return slots, np.bincount(places, np.concatenate(gains), len(slots)).astype(np.float32)


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
        named = self._index.named(query)
        if not wanted and not named:
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
        if named:
            slots, scores = self._named_first(named, slots, scores, shown, allowed)
        best = self._best(slots, scores, offset + limit)[offset:]
        hits = tuple(self._hit(slot, score, lookup, uses, places.get(slot, 0)) for slot, score in best)
        hits = tuple(_as_named(hit) if slot in named else hit for hit, (slot, _) in zip(hits, best, strict=True))
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

    def _named_first(
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
        return explained(spec, score, matches, lifts, place)

    def _by_name(self, where: ToolFilter, allowed: Test | None, limit: int, offset: int) -> SearchResult:
        meant = where.compiled()
        shown = [spec for spec in self._catalog.all() if meant(spec) and (allowed is None or allowed(spec))]
        hits = tuple(SearchHit(spec, 0.0) for spec in shown[offset : offset + limit])
        return SearchResult(hits, len(shown), self._catalog.revision)
