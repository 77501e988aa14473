"""Parses a query of the search: which terms are looked up, how much each counts and what may be found instead.

A term counts once however often a query repeats it: what is repeated are mostly values, not wishes. Numbers beside
words are left out: they are values of arguments, not words about a tool. Words that people wrap around a wish
("specific", "provide", "recommend") count less, for they say little of what is wanted; they are not stop words, because
some tools are about just that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import Stemmer

from toolhub_service.registry.thesaurus import RelatedTerms

# From text to index terms: the analyser, which is most of what makes search good.
#
# Words are split at camelCase, snake_case, dots and all other punctuation, folded to lower case (NFKC), rid of English
# stop words and stemmed (Snowball English); runs of Chinese, Japanese and Korean characters become overlapping bigrams.
# Documents and queries pass through the same code. One event loop uses it: the stemmer is not thread-safe.

TEXT_MAX_CHARS: Final = 50_000
"""What is read of one text; a description longer than this adds nothing to search by."""
WORD_MAX_CHARS: Final = 64
_CACHE_MAX_RUNS: Final = 200_000

Entry: TypeAlias = tuple[str, str]
"""A word in lower case, or two characters of Chinese, Japanese or Korean, and its index term."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003134f"
_WORD: Final = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IDEOGRAPH: Final = re.compile(f"[{_CJK}]")
_IDEOGRAPHS: Final = re.compile(f"[{_CJK}]+")
_ASCII_SPACED: Final = {code: " " for code in range(128) if not chr(code).isalnum()}

_FUNCTION_WORDS: Final = (
    "a about above after again against all also am an and any are aren as at be because been before being below "
    "between but by can cannot could d did do does doing don done during each every few for from further had has "
    "have having he her hers him his how i if in into is isn it its itself just let like ll m many may me might "
    "more most much must my no not now of off on once one only onto or other our ours out over own please re s "
    "same shall she should so some such t than that the their theirs them then there these they this those "
    "through to too under until up us ve very want was we were what when where which while who whom whose why "
    "will with within would you your yours "
)
# What people say around a wish ("can you help me look for a tool"). Verbs that distinguish tools, such as get, find,
# list and show, are not among them.
_ASKING_WORDS: Final = (
    "anyone anything getting give go going got help keep kind know look looking lot need needs see someone "
    "something sort take tell thing things tool tools wanted wants way ways "
)
STOP_WORDS: Final = frozenset(f"{_FUNCTION_WORDS}{_ASKING_WORDS}".split())


class Analyser:
    """Splits text into words and maps each word to its index term, remembering what it has seen."""

    def __init__(self) -> None:
        self._stem = Stemmer.Stemmer("english").stemWord
        # What a run of letters and digits, as it was written, means.
        self._known: dict[str, tuple[Entry, ...]] = {}

    def entries(self, text: str) -> list[Entry]:
        """The words of a text that say something, in order. Each entry is one shared object."""
        known = self._known
        entries: list[Entry] = []
        for run in _runs(text[:TEXT_MAX_CHARS]):
            found = known.get(run)
            entries += self._read(run) if found is None else found
        return entries

    def term(self, word: str) -> str:
        """The index term of a word of `entries`; empty for a stop word."""
        entries = self._entries_of_word(word)
        return entries[0][1] if entries else ""

    def terms(self, text: str) -> list[str]:
        """Index terms of a text in order, without stop words."""
        return [term for _, term in self.entries(text)]

    def _read(self, run: str) -> tuple[Entry, ...]:
        if run.isascii() and run == run.lower():
            return self._entries_of_word(run[:WORD_MAX_CHARS])
        if _IDEOGRAPH.match(run):
            bigrams = [run[at : at + 2] for at in range(len(run) - 1)] or [run]
            return tuple(chain.from_iterable(map(self._entries_of_word, bigrams)))
        words = [word[:WORD_MAX_CHARS] for word in _WORD.findall(_CAMEL.sub(" ", run).lower())]
        entries = tuple(chain.from_iterable(map(self._entries_of_word, words)))
        if len(run) <= WORD_MAX_CHARS:
            self._known[run] = entries
        return entries

    def _entries_of_word(self, word: str) -> tuple[Entry, ...]:
        """Empty for a stop word."""
        entries = self._known.get(word)
        if entries is None:
            if len(self._known) >= _CACHE_MAX_RUNS:
                self._known.clear()
            entries = self._known[word] = () if word in STOP_WORDS else ((word, self._stem(word)),)
        return entries


def ideographs(text: str) -> list[str]:
    """Runs of Chinese, Japanese or Korean characters."""
    if text.isascii():
        return []
    return _IDEOGRAPHS.findall(unicodedata.normalize("NFKC", text[:TEXT_MAX_CHARS]))


def _runs(text: str) -> list[str]:
    """Letters and digits that stand together."""
    if text.isascii():
        return text.translate(_ASCII_SPACED).split()  # three times as fast as the expression
    return _WORD.findall(unicodedata.normalize("NFKC", text))


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


@cache
def related_terms() -> RelatedTerms:
    """Those of the thesaurus. Made by the first search, in 10 ms; any thread may, for the analyser is its own."""
    return RelatedTerms(Analyser().terms)


class QueryReader:
    """Reads queries; shares the analyser of the index."""

    def __init__(self, analyser: Analyser) -> None:
        self._analyser = analyser
        self._wrapping = frozenset(analyser.terms(_WRAPPING_WORDS))

    def read(self, text: str) -> Sequence[QueryTerm]:
        """Distinct terms in order, at most 64; empty when the text has no word that says anything."""
        words: dict[str, str] = {}
        for word, term in self._analyser.entries(text):
            words.setdefault(term, word)
        chinese = dict.fromkeys(chain.from_iterable(map(related_terms().words, ideographs(text))))
        words.update(zip(chinese, chinese, strict=True))
        kept = [(term, word) for term, word in words.items() if not term.isdigit()] or list(words.items())
        return [self._term(word, term, chinese) for term, word in kept[:QUERY_MAX_TERMS]]

    def _term(self, word: str, term: str, chinese: Container[str]) -> QueryTerm:
        if term in self._wrapping:
            return QueryTerm(word, term, WRAPPING_WEIGHT, ())
        if not word.isascii() and word not in chinese:
            return QueryTerm(word, term, 1.0, ())  # two characters of different words may look like a third
        return QueryTerm(word, term, 1.0, related_terms().of(term))
