"""The analyser: from text to index terms. It contributes most to the quality of the search.

Words are split at camelCase, snake_case, dots and all other punctuation, folded to lower case (NFKC), filtered by
English stop words and stemmed (Snowball English); runs of Chinese, Japanese and Korean characters become overlapping
bigrams. Documents and queries pass through the same code. One event loop uses it: the stemmer is not thread-safe.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import chain
from typing import Final, TypeAlias

import Stemmer

TEXT_MAX_CHARS: Final = 50_000
"""Most characters read of one text; the rest of a longer description does not improve the search."""
WORD_MAX_CHARS: Final = 64
_CACHE_MAX_RUNS: Final = 200_000

Entry: TypeAlias = tuple[str, str]
"""A word in lower case, or two Chinese, Japanese or Korean characters, with its index term."""

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
# Filler words ("can you help me look for a tool"). Verbs that distinguish tools, such as get, find, list and show, are
# not among them.
_ASKING_WORDS: Final = (
    "anyone anything getting give go going got help keep kind know look looking lot need needs see someone "
    "something sort take tell thing things tool tools wanted wants way ways "
)
STOP_WORDS: Final = frozenset(f"{_FUNCTION_WORDS}{_ASKING_WORDS}".split())


class Analyser:
    """Splits text into words and maps each word to its index term, with a cache."""

    def __init__(self) -> None:
        self._stem = Stemmer.Stemmer("english").stemWord
        # The entries of a run of letters and digits, as it was written.
        self._known: dict[str, tuple[Entry, ...]] = {}

    def entries(self, text: str) -> list[Entry]:
        """Return the words of a text in order, without stop words. Equal words share one entry object."""
        known = self._known
        entries: list[Entry] = []
        for run in _runs(text[:TEXT_MAX_CHARS]):
            found = known.get(run)
            entries += self._read(run) if found is None else found
        return entries

    def term(self, word: str) -> str:
        """Return the index term of a word of `entries`; empty for a stop word."""
        entries = self._entries_of_word(word)
        return entries[0][1] if entries else ""

    def terms(self, text: str) -> list[str]:
        """Return the index terms of a text in order, without stop words."""
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
        """Return no entries for a stop word."""
        entries = self._known.get(word)
        if entries is None:
            if len(self._known) >= _CACHE_MAX_RUNS:
                self._known.clear()
            entries = self._known[word] = () if word in STOP_WORDS else ((word, self._stem(word)),)
        return entries


def ideographs(text: str) -> list[str]:
    """Return the runs of Chinese, Japanese or Korean characters."""
    if text.isascii():
        return []
    return _IDEOGRAPHS.findall(unicodedata.normalize("NFKC", text[:TEXT_MAX_CHARS]))


def _runs(text: str) -> list[str]:
    """Return the runs of letters and digits."""
    if text.isascii():
        return text.translate(_ASCII_SPACED).split()  # three times as fast as a regular expression
    return _WORD.findall(unicodedata.normalize("NFKC", text))
