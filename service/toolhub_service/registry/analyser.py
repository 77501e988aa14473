"""From text to index terms: the analyser, which is most of what makes search good.

Words are split at camelCase, snake_case, dots and all other punctuation, folded to lower case (NFKC), rid of English
stop words and stemmed (Snowball English); runs of Chinese, Japanese and Korean characters become overlapping bigrams.
Documents and queries pass through the same code. One event loop uses it: the stemmer is not thread-safe.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import Stemmer

TEXT_MAX_CHARS: Final = 50_000
"""What is read of one text; a description longer than this adds nothing to search by."""
WORD_MAX_CHARS: Final = 64
_CACHE_MAX_WORDS: Final = 200_000

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003134f"
_WORD: Final = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IDEOGRAPH: Final = re.compile(f"[{_CJK}]")

_FUNCTION_WORDS: Final = (
    "a about above after again against all also am an and any are aren as at be because been before being below "
    "between but by can cannot could d did do does doing don done during each every few for from further had has "
    "have having he her hers him his how i if in into is isn it its itself just let like ll m many may me might "
    "more most much must my no not now of off on once one only onto or other our ours out over own please re s "
    "same shall she should so some such t than that the their theirs them then there these they this those "
    "through to too under until up us ve very want was we were what when where which while who whom whose why "
    "will with within would you your yours "
)
# What people say around a wish ("can you help me look for a tool"). Verbs that tell tools apart, such as get, find,
# list and show, are not among them.
_ASKING_WORDS: Final = (
    "anyone anything getting give go going got help keep kind know look looking lot make need needs see someone "
    "something sort take tell thing things tool tools wanted wants way ways "
)
STOP_WORDS: Final = frozenset(f"{_FUNCTION_WORDS}{_ASKING_WORDS}".split())


class Analyser:
    """Splits text into words and maps each word to its index term, remembering what it has seen."""

    def __init__(self) -> None:
        self._stem = Stemmer.Stemmer("english").stemWord
        self._terms: dict[str, tuple[str, str]] = {}

    def words(self, text: str) -> list[str]:
        """Lower-case words and CJK bigrams in order, stop words included."""
        folded = text[:TEXT_MAX_CHARS]
        if not folded.isascii():
            folded = unicodedata.normalize("NFKC", folded)
        words: list[str] = []
        for run in _WORD.findall(_CAMEL.sub(" ", folded).lower()):
            if len(run) > 1 and _IDEOGRAPH.match(run):
                words.extend(run[at : at + 2] for at in range(len(run) - 1))
            else:
                words.append(run[:WORD_MAX_CHARS])
        return words

    def term(self, word: str) -> str:
        """The index term of a word of `words`; empty for a stop word."""
        return self.entry(word)[1]

    def entry(self, word: str) -> tuple[str, str]:
        """The word, as one shared object, and its term."""
        known = self._terms.get(word)
        if known is None:
            if len(self._terms) >= _CACHE_MAX_WORDS:
                self._terms.clear()
            known = (word, "" if word in STOP_WORDS else self._stem(word))
            self._terms[word] = known
        return known

    def terms(self, text: str) -> list[str]:
        """Index terms of a text in order, without stop words."""
        return [term for word in self.words(text) if (term := self.term(word))]
