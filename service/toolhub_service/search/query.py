"""Parses search queries: the terms to look up, their weights, and the related terms that may match instead.

A term counts once however often a query repeats it, because repetitions are mostly values, not intent. Numbers in
sentences are left out: they are values of arguments, not words about a tool. Those among a few words, or joined to one
as in `operation_37`, count where the name of a tool holds them. Filler words ("specific", "provide", "recommend") count
less, because they say little about the intent; they are not stop words, because some tools are about just that.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from toolhub_service.search.analyser import Analyser, ideographs
from toolhub_service.search.thesaurus import RelatedTerms

_JOINED_NUMBER: Final = re.compile(r"(?<=[^\W\d][_./-])\d+\b|\b\d+(?=[_./-][^\W\d])")
_FEW_WORDS: Final = 5
QUERY_MAX_TERMS: Final = 64
"""Most distinct terms of one query that are looked up: the first ones."""
WRAPPING_WEIGHT: Final = 0.7

_WRAPPING_WORDS: Final = (
    "specific specifically provide detailed detail details information info recommend recommendation assistance assist "
    "assistant include various available comprehensive ensure request require regarding related relevant use using "
    "user users based given currently current offer allow enable potential prefer option suggest suggestion consider "
    "considering particular particularly possible possibly"
)


class QueryTerm(NamedTuple):
    word: str
    """In its original spelling, lower case."""
    term: str
    weight: float
    related: tuple[str, ...]
    """Related terms that may match instead; empty for a filler word."""


@cache
def related_terms() -> RelatedTerms:
    """Return the thesaurus's related terms.

    They are made by the first search, in 10 ms; any thread may call this, because it uses its own analyser.
    """
    return RelatedTerms(Analyser().terms)


class QueryReader:
    """Reads queries; shares the analyser of the index."""

    def __init__(self, analyser: Analyser) -> None:
        self._analyser = analyser
        self._wrapping = frozenset(analyser.terms(_WRAPPING_WORDS))

    def read(self, text: str, numbers: Container[str] = ()) -> Sequence[QueryTerm]:
        """Return distinct terms in order, at most 64; none when the text has no word besides stop words.

        `numbers`: those that names of tools hold.
        """
        words: dict[str, str] = {}
        for word, term in self._analyser.entries(text):
            words.setdefault(term, word)
        chinese = dict.fromkeys(chain.from_iterable(map(related_terms().words, ideographs(text))))
        words.update(zip(chinese, chinese, strict=True))
        told = _JOINED_NUMBER.findall(text) if len(words) > _FEW_WORDS else words
        kept = [
            (term, word) for term, word in words.items() if not term.isdigit() or (term in numbers and term in told)
        ]
        kept = kept or list(words.items())
        return [self._term(word, term, chinese) for term, word in kept[:QUERY_MAX_TERMS]]

    def _term(self, word: str, term: str, chinese: Container[str]) -> QueryTerm:
        if term in self._wrapping:
            return QueryTerm(word, term, WRAPPING_WEIGHT, ())
        if not word.isascii() and word not in chinese:
            return QueryTerm(word, term, 1.0, ())  # two characters of different words may look like a third word
        return QueryTerm(word, term, 1.0, related_terms().of(term))
