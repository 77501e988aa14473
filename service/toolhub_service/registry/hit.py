"""What a search answers: hits with the grounds for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.document import Field
from toolhub_service.registry.index import TermMatch
from toolhub_service.registry.query import QueryTerm

REASONS_MAX: Final = 12


class Reason(NamedTuple):
    """One ground for a hit."""

    part: str
    """`words`: a word of the query occurs in the tool; `related`: a word of like meaning does; `usage`: the word
    occurs in purposes of past calls; `meaning`: the embedder says so."""
    word: str = ""
    """The word of the query, lower case; empty for `meaning`."""
    found: str = ""
    """The word of the tool that stands for it; empty for `usage` and `meaning`."""
    fields: tuple[str, ...] = ()
    """Where in the tool it was found."""
    score: float = 0.0
    """Its share of the score by words and usage; 0 for `meaning`."""
    place: int = 0
    """In the ranking by meaning, from 1; 0 for the others."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    tool: ToolSpec
    score: float
    """Above 0, comparable within one answer only; 0 when the query was empty."""
    fields: tuple[str, ...] = ()
    """Where it matched: `name`, `description`, `arguments`, `tags`, `capabilities`, `usage`."""
    terms: tuple[str, ...] = ()
    """The words that matched, as they stand in the tool, lower case."""
    reasons: tuple[Reason, ...] = ()
    """At most 12: meaning first, then the weightiest."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    hits: tuple[SearchHit, ...]
    """Best first, then by name."""
    total_size: int
    """How many tools match in all."""
    revision: str
    """The catalog that was searched."""
    ranked_by: tuple[str, ...] = ()
    """Which of `words`, `usage`, `meaning` had a say; empty when the query was empty."""
    note: str = ""
    """What the ranking lacks: tools that cannot be found yet; the say of meaning, where an embedder is configured."""


def explained(
    tool: ToolSpec,
    score: float,
    matches: Sequence[TermMatch],
    lifts: Sequence[tuple[QueryTerm, float]],
    place: int,
) -> SearchHit:
    """A hit and its grounds. `lifts`: what uses add, term by term; `place`: by meaning, 0: none."""
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
    reasons.sort(key=_by_score)
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


def _by_score(reason: Reason) -> float:
    return -reason.score
