"""Synonyms, because people seldom ask for a tool by the words in its description.

`thesaurus.txt` covers the everyday subjects of tools (files, the web, travel, money, media, work, …), written by hand
in English and Chinese, one group of related words per line; a word may be in several. A tool that has only a related
word is found by it, at a lower weight than one that has the word itself (`index.py`); so a Chinese query finds tools
described in English.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Final

_MAX_CHARS: Final = 4
"""Length of the longest Chinese words."""


class RelatedTerms:
    """Related index terms by index term, and the known Chinese words. `terms` is the analyser's."""

    def __init__(self, terms: Callable[[str], Sequence[str]]) -> None:
        related: dict[str, dict[str, None]] = defaultdict(dict)
        for group in files(__package__).joinpath("thesaurus.txt").read_text(encoding="utf-8").splitlines():
            members = [term for word in group.split() for term in (terms(word) if word.isascii() else (word,))]
            for term in members:
                related[term].update(dict.fromkeys(other for other in members if other != term))
        self._related = {term: tuple(others) for term, others in related.items()}

    def of(self, term: str) -> tuple[str, ...]:
        """Return the related terms, in the order of the thesaurus; empty for an unknown word."""
        return self._related.get(term, ())

    def words(self, run: str) -> Iterator[str]:
        """Yield the known words in a run of Chinese, from left to right, the longest first."""
        at = 0
        while at < len(run):
            for length in range(min(_MAX_CHARS, len(run) - at), 0, -1):
                if run[at : at + length] in self._related:
                    yield run[at : at + length]
                    at += length
                    break
            else:
                at += 1
