"""An inverted index with BM25 ranking that takes additions and removals one by one.

Okapi BM25 with Lucene's idf (never negative): score = sum of idf x tf x (k1 + 1) / (tf + k1 x (1 - b + b x length /
mean)). If a document lacks a word of the query, its best related word counts instead, at RELATED_WEIGHT / (1 + df / 3):
much when no tool has the word itself, next to nothing when many do. A term's postings are three growing arrays (slot,
weight, fields), read in place by numpy, so that adding a document is an append and a query a few vector operations per
term. Slots only grow; a removed document leaves a hole that is masked, until the whole index is rebuilt
(`catalog_index.py`). k1 = 2.0 and b = 0.75 measured best on public tool corpora; the optimum is flat.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from toolhub_service.search.analyser import Analyser
from toolhub_service.search.arrays import np
from toolhub_service.search.fields import Field, weighted_texts
from toolhub_service.search.query import QueryTerm

if TYPE_CHECKING:
    import numpy.typing as npt


K1: Final = 2.0
B: Final = 0.75
RELATED_WEIGHT: Final = 0.7
RELATED_WEIGHT_MIN: Final = 0.02
"""Below this weight related words are not looked up: the word itself is in a hundred tools."""

Slots: TypeAlias = "npt.NDArray[np.int64]"
Scores: TypeAlias = "npt.NDArray[np.float32]"


class _Posting:
    """The documents of one term: parallel arrays, slots ascending."""

    __slots__ = ("count", "fields", "slots", "weights")

    def __init__(self) -> None:
        self.slots = array("q")
        self.weights = array("f")
        self.fields = array("B")
        self.count = 0
        """How many of them are live documents."""

    def at(self, slot: int) -> tuple[float, int]:
        """Return weight and fields of a document that has the term."""
        at = bisect_left(self.slots, slot)
        return self.weights[at], self.fields[at]


class _PostingMatch(NamedTuple):
    """A posting that matches a term of a query."""

    wanted: QueryTerm
    term: str
    posting: _Posting
    factor: float
    """Weight x idf x (k1 + 1)."""

    def gains(self, norms: Scores) -> tuple[Slots, Scores]:
        slots = np.frombuffer(self.posting.slots, np.int64)
        tf = np.frombuffer(self.posting.weights, np.float32)
        return slots, tf * np.float32(self.factor) / (tf + norms[slots])


class Lookup:
    """The postings for a query; valid until a document is added or removed."""

    __slots__ = ("by_term", "matches")

    def __init__(self, matches: Sequence[Sequence[_PostingMatch]]) -> None:
        self.matches = matches
        """The matches of each term of the query that has any."""
        self.by_term: dict[str, list[_PostingMatch]] = {}
        for match in chain.from_iterable(matches):
            self.by_term.setdefault(match.term, []).append(match)


class TermMatch(NamedTuple):
    """How a document matches a term of a query, or a related one."""

    wanted: QueryTerm
    is_related: bool
    written: str
    """The form of its first occurrence in the document, lower case."""
    fields: int
    """Bits of `Field`."""
    score: float


_PUNCTUATION: Final = re.compile(r"[\W_]+")


def normalise_name(text: str) -> str:
    """Return a name without case and punctuation: `acme/Get.Item`, `acme__get_item` and `ACME get-item` are one."""
    return _PUNCTUATION.sub("_", text.casefold()).strip("_")


def names_in_key(key: str) -> set[str]:
    return {normalise_name(key), normalise_name(key.partition("/")[2])} - {""}


class InvertedIndex:
    """Documents by key; queries return slots, which `key` maps back."""

    def __init__(self, analyser: Analyser | None = None) -> None:
        self.analyser = analyser or Analyser()
        self._postings: dict[str, _Posting] = {}
        self._keys: list[str] = []
        self._words: list[tuple[str, ...]] = []
        self._lengths = array("f")
        self._slots: dict[str, int] = {}
        self._holes: list[int] = []
        self._length_sum = 0.0
        self._norms: Scores | None = None
        self._scratch: Scores | None = None
        self.numbers: Counter[str] = Counter()
        """How many names hold each number."""
        self._named: dict[str, list[str]] = {}
        """Keys by name as people write it: with and without the source."""
        self.generation = 0
        """Rises with every change."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slot_count(self) -> int:
        """Number of slots in use and holes; the next document gets this slot."""
        return len(self._keys)

    @property
    def holes(self) -> int:
        """Number of slots of removed documents; they are never reused."""
        return len(self._holes)

    def key(self, slot: int) -> str:
        return self._keys[slot]

    def slot(self, key: str) -> int | None:
        return self._slots.get(key)

    def idf(self, term: str) -> float:
        """Return how much a term distinguishes documents; highest for one that no document has."""
        posting = self._postings.get(term)
        return self._idf(posting.count if posting else 0)

    def find_named(self, text: str) -> list[int]:
        """Return the slots of the documents whose key is this text, or its part after the slash; case and punctuation
        do not count."""
        name = normalise_name(text)
        return [self._slots[key] for key in self._named.get(name, ())] if name else []

    def put(self, key: str, texts: Mapping[Field, str]) -> None:
        """Add a document, or replace the one with that key."""
        if key in self._slots:
            self.remove(key)
        slot = len(self._keys)
        weights: dict[str, float] = {}
        fields: dict[str, int] = {}
        words: dict[str, str] = {}
        for field, gain, text in weighted_texts(texts):
            bit = int(field)
            entries = self.analyser.entries(text)
            words.update(entries)
            for _, term in entries:
                weights[term] = weights.get(term, 0.0) + gain
                fields[term] = fields.get(term, 0) | bit
        for term, weight in weights.items():
            posting = self._postings.get(term)
            if posting is None:
                posting = self._postings[term] = _Posting()
            posting.slots.append(slot)
            posting.weights.append(weight)
            posting.fields.append(fields[term])
            posting.count += 1
        for name in names_in_key(key):
            self._named.setdefault(name, []).append(key)
        self.numbers.update(self._numbers_of(key))
        length = sum(weights.values())
        self.generation += 1
        self._slots[key] = slot
        self._keys.append(key)
        self._words.append(tuple(words))
        self._lengths.append(length)
        self._length_sum += length
        self._norms = None

    def remove(self, key: str) -> None:
        """Remove a document. Raises KeyError when there is none with that key."""
        slot = self._slots.pop(key)
        self.generation += 1
        for term in {self.analyser.term(word) for word in self._words[slot]}:
            posting = self._postings[term]
            posting.count -= 1
            if not posting.count:
                del self._postings[term]
        self._length_sum -= self._lengths[slot]
        for name in names_in_key(key):
            self._named[name].remove(key)
            if not self._named[name]:
                del self._named[name]
        self.numbers -= Counter(self._numbers_of(key))
        self._words[slot] = ()
        self._holes.append(slot)
        self._norms = None

    def _numbers_of(self, key: str) -> set[str]:
        return {term for term in self.analyser.terms(key) if term.isdigit()}

    def lookup(self, query: Sequence[QueryTerm]) -> Lookup:
        return Lookup([matches for wanted in query if (matches := self._matches(wanted))])

    def scores(self, lookup: Lookup) -> Scores:
        """Return the score of every slot: above 0 when the document has a term or a related one."""
        scores = np.zeros(len(self._keys), np.float32)
        norms = self._current_norms()
        for matches in lookup.matches:
            if len(matches) == 1:
                slots, gains = matches[0].gains(norms)
                scores[slots] += gains
            else:
                self._add_best(scores, matches, norms)
        if self._holes:
            # Postings of a removed tool stay until the index is rebuilt.
            scores[self._holes] = 0.0
        return scores

    def explain(self, slot: int, lookup: Lookup) -> list[TermMatch]:
        """Return what each term of the query adds to a document's score, in the document's order, without terms that
        add nothing."""
        norm = float(self._current_norms()[slot])
        best: dict[str, TermMatch] = {}
        term_of, matches_by_term = self.analyser.term, lookup.by_term
        for word in self._words[slot]:
            for match in matches_by_term.get(term_of(word), ()):
                tf, fields = match.posting.at(slot)
                gain = match.factor * tf / (tf + norm)
                known = best.get(match.wanted.term)
                if known is None or gain > known.score:
                    best[match.wanted.term] = TermMatch(
                        match.wanted, match.term != match.wanted.term, word, fields, gain
                    )
        return list(best.values())

    def _matches(self, wanted: QueryTerm) -> list[_PostingMatch]:
        """Return the postings of a term and of its related terms."""
        own = self._postings.get(wanted.term)
        matches = [self._match(wanted, wanted.term, own, wanted.weight)] if own is not None else []
        # The more tools use the query's own word, the less its related words count.
        weight = wanted.weight * RELATED_WEIGHT / (1.0 + (own.count if own else 0) / 3.0)
        if weight >= RELATED_WEIGHT_MIN:
            for term in wanted.related:
                posting = self._postings.get(term)
                if posting is not None:
                    matches.append(self._match(wanted, term, posting, weight))
        return matches

    def _match(self, wanted: QueryTerm, term: str, posting: _Posting, weight: float) -> _PostingMatch:
        return _PostingMatch(wanted, term, posting, weight * self._idf(posting.count) * (K1 + 1))

    def _add_best(self, scores: Scores, matches: Sequence[_PostingMatch], norms: Scores) -> None:
        """Add to each slot the maximum of its values in several postings; the scratch array is all zeros between
        calls."""
        if self._scratch is None or len(self._scratch) < len(scores):
            self._scratch = np.zeros(len(scores) * 2, np.float32)
        # Concatenated, because most postings are so short that a numpy call costs more than its computation.
        slots = np.frombuffer(b"".join([match.posting.slots for match in matches]), np.int64)
        tf = np.frombuffer(b"".join([match.posting.weights for match in matches]), np.float32)
        factors = np.array([match.factor for match in matches], np.float32).repeat(
            [len(match.posting.slots) for match in matches]
        )
        best = self._scratch
        np.maximum.at(best, slots, tf * factors / (tf + norms[slots]))
        scores[slots] += best[slots]
        best[slots] = 0.0

    def _idf(self, count: int) -> float:
        return math.log(1.0 + (len(self._slots) - count + 0.5) / (count + 0.5))

    def _current_norms(self) -> Scores:
        """Return k1 x (1 - b + b x length / mean length) of each slot."""
        if self._norms is None:
            mean = self._length_sum / max(1, len(self._slots)) or 1.0
            lengths = np.frombuffer(self._lengths, np.float32) if self._keys else np.zeros(0, np.float32)
            self._norms = (K1 * (1.0 - B) + lengths * (K1 * B / mean)).astype(np.float32)
        return self._norms
