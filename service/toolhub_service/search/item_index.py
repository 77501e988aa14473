"""Full-text search of remembered items: the terms an item is indexed under, and the ranking of a query's results.

One index for every backend: a term is a 64-bit digest of its scope and its word, and a posting holds the term's weight
in an item. So the items of two principals share no posting, and their statistics never mix. Words are those of the
catalog's search (stems of English, pairs of Chinese, Japanese and Korean characters), and single such characters at a
lower weight, which find what a pair misses.

Ranking is BM25 with a fixed mean length, so that the weight of a posting is known when it is written. Work is bounded
whatever is stored: rare words select the candidates, and common ones are only looked up in the best of those. When all
words of a query are common, the candidates are the newest items that have the rarest of them.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from toolhub_service.domain.memory import MemoryItem, Scope
from toolhub_service.search.analyser import Analyser, ideographs

Term: TypeAlias = int
"""A signed 64-bit integer."""
Posting: TypeAlias = "tuple[Term, int, int]"
"""A term, the number of an item, and the term's weight in it."""

K1: Final = 1.2
B: Final = 0.75
MEAN_WORDS: Final = 40.0
"""BM25's mean length, in words; the optimum is flat."""
TAG_WORDS: Final = 2.0
"""How many occurrences a word in a tag counts as."""
CHARACTER_WEIGHT: Final = 0.3
"""The weight of a single Chinese, Japanese or Korean character; a word or a pair has 1.0."""
_SCALE: Final = 1_000

QUERY_MAX_WORDS: Final = 24
DRIVING_MAX: Final = 1_000
"""Most postings that are read for candidates."""
CHECKED_WORDS: Final = 12
CONTENDERS: Final = 100
"""Candidates in which common words are looked up."""
TAGGED_CONTENDERS: Final = 300
"""The same when tags that many items have are looked up, too, with half as many words."""

_ALL, _TAG, _WORD, _CHARACTER = b"a", b"t", b"w", b"c"


class _Scoped:
    """Terms of one scope."""

    def __init__(self, scope: Scope) -> None:
        self._seed = hashlib.blake2b(repr(tuple(scope)).encode(), digest_size=8)

    def term(self, kind: bytes, word: str = "") -> Term:
        digest = self._seed.copy()
        digest.update(kind)
        digest.update(word.encode("utf-8", "backslashreplace"))
        return int.from_bytes(digest.digest(), "big", signed=True)


def index_terms(item: MemoryItem) -> dict[Term, int]:
    """Return the terms an item is found by with their weights: its words, its tags, and one that all items have."""
    # Its own analyser: one is not thread-safe, and would keep words that are to be forgotten.
    read = Analyser()
    counted = Counter[str](read.terms(item.text))
    length = sum(counted.values())
    counts: dict[str, float] = dict(counted)
    for word in read.terms(" ".join(item.tags)):
        counts[word] = counts.get(word, 0.0) + TAG_WORDS
    scoped = _Scoped(Scope(item.owner, item.agent_id, item.user_id))
    terms = {scoped.term(_WORD, word): _weight(count, length) for word, count in counts.items()}
    characters = Counter("".join(ideographs(f"{item.text} {' '.join(item.tags)}")))
    terms |= {scoped.term(_CHARACTER, one): _weight(count, length) for one, count in characters.items()}
    terms |= {scoped.term(_TAG, tag): 0 for tag in item.tags}
    terms[scoped.term(_ALL)] = 0
    return terms


def _weight(count: float, length: int) -> int:
    return round(_SCALE * count * (K1 + 1) / (count + K1 * (1 - B + B * length / MEAN_WORDS)))


class ScopedTerms(NamedTuple):
    """One word or tag in each of the scopes that a caller sees."""

    terms: tuple[Term, ...]
    gain: float = 0.0

    def count(self, counts: Mapping[Term, int]) -> int:
        """Return how many items have it."""
        return sum(counts.get(term, 0) for term in self.terms)


class Question:
    """A caller's query as terms."""

    def __init__(self, caller: Scope, query: str, tags: Sequence[str]) -> None:
        self._scoped = [_Scoped(scope) for scope in caller.visible()]
        words = list(dict.fromkeys(Analyser().terms(query)))[:QUERY_MAX_WORDS]
        characters = list(dict.fromkeys("".join(ideographs(query))))[:QUERY_MAX_WORDS]
        self.words = [self._terms(_WORD, word, 1.0) for word in words]
        self.words += [self._terms(_CHARACTER, one, CHARACTER_WEIGHT) for one in characters]
        self.tags = [self._terms(_TAG, tag) for tag in dict.fromkeys(tags)]
        self.everything = self._terms(_ALL)

    def all_terms(self) -> list[Term]:
        return [term for each in (*self.words, *self.tags, self.everything) for term in each.terms]

    def _terms(self, kind: bytes, word: str = "", gain: float = 0.0) -> ScopedTerms:
        return ScopedTerms(tuple(scoped.term(kind, word) for scoped in self._scoped), gain)


class Ranking:
    """The steps of one search; between them the caller reads postings."""

    def __init__(self, question: Question, counts: Mapping[Term, int]) -> None:
        """`counts`: how many items have each term of the question."""
        total = question.everything.count(counts)
        known = sorted((each.count(counts), each) for each in question.words if each.count(counts))
        tags = sorted((each.count(counts), each) for each in question.tags)
        self.is_empty = not known or any(not count for count, _ in tags)
        self._gains = {
            term: each.gain * math.log1p((total - count + 0.5) / (count + 0.5)) / _SCALE
            for count, each in known
            for term in each.terms
        }
        self._scores: dict[int, float] = {}
        self._tags = [each.terms for _, each in tags]
        self._tagged: tuple[Term, ...] = ()
        self.driving: list[tuple[Term, int]] = []
        """For each term, how many of the newest postings to read."""
        self._plan(known, tags, counts)

    def _plan(
        self,
        known: Sequence[tuple[int, ScopedTerms]],
        tags: Sequence[tuple[int, ScopedTerms]],
        counts: Mapping[Term, int],
    ) -> None:
        # A tag that few items have selects the candidates by itself.
        if tags and tags[0][0] <= DRIVING_MAX:
            self._tagged = tags[0][1].terms
            self.driving += [(term, DRIVING_MAX) for term in self._tagged if term in counts]
        left, checked = DRIVING_MAX, []
        for at, (count, each) in enumerate(known):
            if at == 0 or count <= left:
                self.driving += [(term, left) for term in each.terms if term in counts]
                left -= min(count, left)
            else:
                checked.append(each)
        checked.sort(key=lambda each: -self._gains[each.terms[0]])
        self._checked = [term for each in checked[:CHECKED_WORDS] for term in each.terms if term in counts]

    def take(self, postings: Iterable[Posting]) -> tuple[list[Term], list[int]]:
        """Take the postings of `driving`; return the terms to look up, and the items to look them up in."""
        scores: dict[int, float] = {}
        tagged = set()
        for term, item, weight in postings:
            if term in self._tagged:
                tagged.add(item)
                scores.setdefault(item, 0.0)
            else:
                scores[item] = scores.get(item, 0.0) + weight * self._gains[term]
        if self._tagged:
            scores = {item: score for item, score in scores.items() if item in tagged}
            self._tags = self._tags[1:]
        required = [term for terms in self._tags for term in terms]
        most = TAGGED_CONTENDERS if required else CONTENDERS
        if len(scores) > most:
            best = sorted(scores, key=lambda item: (-scores[item], -item))[:most]
            scores = {item: scores[item] for item in best}
        self._scores = scores
        checked = self._checked[: len(self._checked) // 2] if required else self._checked
        return ([*required, *checked], list(scores)) if required or checked else ([], [])

    def best(self, postings: Iterable[Posting], limit: int) -> list[tuple[int, float]]:
        """Return numbers of items with their scores, best first; `postings` are those that `take` asked for."""
        scores, having = self._scores, {item: set[Term]() for item in self._scores} if self._tags else {}
        for term, item, weight in postings:
            if term in self._gains:
                scores[item] += weight * self._gains[term]
            elif having:
                having[item].add(term)
        for terms in self._tags:
            scores = {item: score for item, score in scores.items() if not having[item].isdisjoint(terms)}
        ranked = sorted(scores, key=lambda item: (-scores[item], -item))
        return [(item, scores[item]) for item in ranked[:limit] if scores[item] > 0]
