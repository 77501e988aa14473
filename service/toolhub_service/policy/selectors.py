"""Selectors: which principals an entry of policy.yaml applies to, and as which of them a call is judged.

    robot, corp:*                   a principal's id, as a glob over its text
    spiffe://example.org/agents/*   a SPIFFE id, segment by segment: `*` never crosses a `/`, and `/**` at the end
                                    stands for all that is below
    group:corp/admins               who has the group by a token of the issuer `corp`
    issuer:corp                     who has a token of that issuer
    actor:corp:bot                  for whom somebody with that id acts

What begins like one of the last four is never compared with the text of an id: a key that somebody names
`group:corp/admins` gets nothing of it, nor does the group of that name of another issuer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Final, NamedTuple

from toolhub_service.domain.call import Principal
from toolhub_service.policy.document import PolicyDocument
from toolhub_service.policy.patterns import Pattern

GROUP: Final = "group:"
ISSUER: Final = "issuer:"
ACTOR: Final = "actor:"
SPIFFE: Final = "spiffe://"
_ISSUER_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_BELOW: Final = "**"
_NEAR: Final = 0.75
"""Share of letters in common from which on a word counts as a misspelt one."""


class Party(NamedTuple):
    """One whose rights a call needs: the principal, who acts for it, or for whom it acts."""

    id: str
    issuer: str = ""
    groups: frozenset[str] = frozenset()
    actor: str = ""
    """Who acts for it in this call; empty: it acts itself."""
    is_known: bool = True
    """Whether grants or roles speak of it. False: of one whom a message names rules alone do, which can only narrow."""


def parties_of(principal: Principal, spoken_for: Iterable[Party] = ()) -> tuple[Party, ...]:
    """All whose rights a call needs, the principal first. `spoken_for`: whom its message names.

    Of those that no credential of the call is made out to nothing is known but the id and the issuer that it begins
    with: no groups.
    """
    actors = principal.actors
    first = Party(principal.id, principal.issuer, principal.groups, actors[0] if actors else "")
    acting = (named(actor, behind) for actor, behind in zip(actors, (*actors[1:], ""), strict=False))
    return first, *acting, *spoken_for


def named(id: str, actor: str = "") -> Party:
    """One of whom only the id is known."""
    # A SPIFFE id has a colon as well, and `spiffe` is the name of no issuer.
    issuer = "" if id.startswith(SPIFFE) else id.partition(":")[0] if ":" in id else ""
    return Party(id, issuer, frozenset(), actor)


class _SpiffeId:
    """A SPIFFE id whose path may have stars."""

    def __init__(self, text: str) -> None:
        self._domain, *segments = text.removeprefix(SPIFFE).split("/")
        self._has_more = segments[-1:] == [_BELOW]
        self._segments = [Pattern(segment) for segment in (segments[:-1] if self._has_more else segments)]

    def matches(self, id: str) -> bool:
        if not id.startswith(SPIFFE):
            return False
        domain, *segments = id.removeprefix(SPIFFE).split("/")
        more = len(segments) - len(self._segments)
        # `/**` wants one segment at least: the path above it is another workload's id.
        if domain != self._domain or not all(segments) or (more < 1 if self._has_more else more != 0):
            return False
        return all(wanted.matches(segment) for wanted, segment in zip(self._segments, segments, strict=False))


def _of_id(text: str) -> Pattern | _SpiffeId:
    return _SpiffeId(text) if text.startswith(SPIFFE) else Pattern(text)


class Selector:
    """One entry of a list of principals."""

    __slots__ = ("_group", "_id", "_kind", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._kind = next((kind for kind in (GROUP, ISSUER, ACTOR) if text.startswith(kind)), "")
        rest = text.removeprefix(self._kind)
        issuer, _, group = rest.partition("/")
        self._group = (issuer, Pattern(group)) if self._kind == GROUP else (rest, None)
        self._id = _of_id(rest)

    @property
    def is_anyone(self) -> bool:
        return self.text == "*"

    def matches(self, party: Party) -> bool:
        issuer, group = self._group
        if group is not None:
            return party.issuer == issuer and any(map(group.matches, party.groups))
        if self._kind == ISSUER:
            return party.issuer == issuer
        id = party.actor if self._kind == ACTOR else party.id
        # An empty id is nobody's, and `*` would match it.
        return bool(id) and self._id.matches(id)


class Selectors:
    """Several; a party is meant when one of them matches it."""

    __slots__ = ("_all",)

    def __init__(self, texts: Iterable[str]) -> None:
        self._all = tuple(map(Selector, texts))

    def match(self, party: Party) -> Selector | None:
        """The first that matches."""
        for selector in self._all:
            if selector.matches(party):
                return selector
        return None

    def match_all(self, parties: Iterable[Party]) -> bool:
        return all(self.match(party) is not None for party in parties)

    def match_any(self, parties: Iterable[Party]) -> bool:
        return any(self.match(party) is not None for party in parties)

    def single_out(self, party: Party) -> bool:
        """Whether one that is not simply `*` matches it."""
        return any(selector.matches(party) for selector in self._all if not selector.is_anyone)

    def __str__(self) -> str:
        return ", ".join(selector.text for selector in self._all)


# What is written as one of these and is none.


def misspelt(document: PolicyDocument) -> Iterator[tuple[str, str]]:
    """Path and sentence of each selector that could never mean what it says."""
    for path, text in selectors_in(document):
        if fault := _fault(text):
            yield f"$.{path}", f"`{text}`: {fault}"


def selectors_in(document: PolicyDocument) -> Iterator[tuple[str, str]]:
    """Path and text of every selector, in the order of the sections."""
    for section in ("grants", "roles", "rules", "limits", "egress"):
        for index, entry in enumerate(getattr(document, section)):
            for place, text in enumerate(entry.principals):
                yield f"{section}[{index}].principals[{place}]", text
    for index, rule in enumerate(document.rules):
        for place, text in enumerate(rule.approval.approvers):
            yield f"rules[{index}].approval.approvers[{place}]", text
    for place, text in enumerate(document.impersonate):
        yield f"impersonate[{place}]", text


def meaning_nobody(
    document: PolicyDocument,
    issuers: frozenset[str] | None,
    principals: frozenset[str],
    problem_of: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    """The same of each that means nobody known. `issuers`: the names of those that are configured; None: nobody knows.
    `principals`: whom keys are made for. `problem_of`: what is wrong with a glob over those; empty: nothing."""
    for path, text in selectors_in(document):
        id, issuer = _named_by(text)
        meant = "" if issuers is None else _selector_meant(text, issuers)
        if meant and not any(map(Pattern(text).matches, principals)):
            yield path, f"`{text}` begins with no known issuer; did you mean `{meant}`?"
        elif issuer and issuers is not None and issuer not in issuers:
            yield path, f"`{text}`: auth.jwt.issuers has none of that name"
        elif id.partition(":")[0] not in (issuers or ()) and (problem := problem_of(id)):
            yield path, problem


def _named_by(text: str) -> tuple[str, str]:
    """The glob over ids of whom keys are made for, and the issuer, that a selector names; `*` where it names none."""
    text = text.removeprefix(ACTOR)
    if text.startswith((GROUP, ISSUER)):
        return "*", text.partition(":")[2].partition("/")[0]
    return ("*" if text.startswith(SPIFFE) else text), ""


def _selector_meant(text: str, issuers: frozenset[str]) -> str:
    """The selector of a kind that the text was meant to be, by the spelling of what it begins with; empty: it is one,
    or looks like none."""
    kind, colon, rest = text.partition(":")
    if not colon or kind in issuers or f"{kind}:" in (GROUP, ISSUER, ACTOR) or text.startswith(SPIFFE):
        return ""
    near = get_close_matches(kind.lower(), ("group", "issuer", "actor", "spiffe"), n=1, cutoff=_NEAR)
    if near == ["spiffe"]:
        return SPIFFE + rest.lstrip("/")
    return f"{near[0]}:{rest}" if near else ""


def _fault(text: str) -> str:
    if text.startswith(GROUP):
        issuer, _, group = text.removeprefix(GROUP).partition("/")
        is_one = group and _ISSUER_NAME.fullmatch(issuer)
        return "" if is_one else "write `group:ISSUER/GROUP`; the issuer is named without stars, for each has its own"
    if text.startswith(ISSUER):
        is_one = _ISSUER_NAME.fullmatch(text.removeprefix(ISSUER))
        return "" if is_one else "write `issuer:NAME`, without stars"
    if text.startswith(ACTOR):
        actor = text.removeprefix(ACTOR)
        if not actor or actor.startswith((GROUP, ISSUER, ACTOR)):
            return "write `actor:ID`: of those who act nothing but the id is known"
        return _fault(actor)
    if not text.startswith(SPIFFE):
        return ""
    domain, *segments = text.removeprefix(SPIFFE).split("/")
    if "*" in domain or not domain:
        return "name the trust domain, without stars"
    if any(_BELOW in segment for segment in (segments[:-1] if segments[-1:] == [_BELOW] else segments)):
        return "`**` stands for all that is below, as the last segment of the path and alone in it"
    return "" if all(segments) else "the path of a SPIFFE id has no empty segment"
