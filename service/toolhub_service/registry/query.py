"""A query, read: which terms are looked up, how much each counts and what may stand for it.

A term counts once however often a query repeats it: what is repeated are mostly values, not wishes. Numbers beside
words are left out: they are values of arguments, not words about a tool. Words that people wrap around a wish
("specific", "provide", "recommend") count less, for they say little of what is wanted; they are not stop words, because
some tools are about just that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from toolhub_service.registry.analyser import Analyser
from toolhub_service.registry.related import RelatedTerms

QUERY_MAX_TERMS: Final = 64
"""Distinct terms of one query that are looked up: the first ones."""
WRAPPING_WEIGHT: Final = 0.7

_WRAPPING_WORDS: Final = (
    "specific specifically provide detailed detail details information info recommend recommendation assistance assist "
    "assistant include various available comprehensive ensure request require regarding related relevant use using "
    "user users based given currently current offer allow enable potential prefer option suggest suggestion consider "
    "considering particular particularly possible possibly"
)


class QueryTerm(NamedTuple):
    word: str
    """As it was written, lower case."""
    term: str
    weight: float
    related: tuple[str, ...]
    """Terms of like meaning that may stand for it; empty for a wrapping word."""


class QueryReader:
    """Reads queries; shares the analyser of the index."""

    def __init__(self, analyser: Analyser) -> None:
        self._analyser = analyser
        self._related = RelatedTerms(analyser)
        self._wrapping = frozenset(analyser.terms(_WRAPPING_WORDS))

    def read(self, text: str) -> Sequence[QueryTerm]:
        """Distinct terms in order, at most 64; empty when the text has no word that says anything."""
        words: dict[str, str] = {}
        for word, term in self._analyser.entries(text):
            words.setdefault(term, word)
        said = [(term, word) for term, word in words.items() if not term.isdigit()] or list(words.items())
        return [self._term(word, term) for term, word in said[:QUERY_MAX_TERMS]]

    def _term(self, word: str, term: str) -> QueryTerm:
        if term in self._wrapping:
            return QueryTerm(word, term, WRAPPING_WEIGHT, ())
        return QueryTerm(word, term, 1.0, self._related.of(term))
