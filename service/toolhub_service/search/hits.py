"""Search results: hits with the reasons for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.search.fields import Field
from toolhub_service.search.index import TermMatch
from toolhub_service.search.query import QueryTerm

if TYPE_CHECKING:
    pass


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


def explain_hit(
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


def mark_as_named(hit: SearchHit) -> SearchHit:
    """Return the hit of a query that is the tool's name: also one whose words are all too common to count."""
    if "name" in hit.fields:
        return hit
    return msgspec.structs.replace(hit, fields=("name", *hit.fields), terms=(hit.tool.name.lower(), *hit.terms))
