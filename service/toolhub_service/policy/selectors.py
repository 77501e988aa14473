"""Selectors: which principals an entry of policy.yaml applies to, and whose rights a call needs.

    robot, corp:*                   a principal's id, as a glob over its text
    spiffe://example.org/agents/*   a SPIFFE id, segment by segment: `*` never crosses a `/`, and `/**` at the end
                                    matches everything below
    group:corp/admins               a principal that has the group by a token of the issuer `corp`
    issuer:corp                     a principal with a token of that issuer
    actor:corp:bot                  a principal for whom the actor with that id acts

A selector with one of the last four prefixes is never compared with the text of an id: neither a key named
`group:corp/admins` nor a group of that name of another issuer matches it.
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
"""Share of common letters from which a word counts as a misspelt one."""


class Party(NamedTuple):
    """A party whose rights a call needs: the principal, one who acts for it, or one for whom it acts."""

    id: str
    issuer: str = ""
    groups: frozenset[str] = frozenset()
    actor: str = ""
    """The party that acts for it in this call; empty when it acts itself."""
    is_known: bool = True
    """Whether grants or roles name it. False for one named by the message that only rules concern, which can only
    narrow."""


def parties_of(principal: Principal, spoken_for: Iterable[Party] = ()) -> tuple[Party, ...]:
    """Return all parties whose rights a call needs, the principal first; `spoken_for` are those that its message names.

    Of parties other than the credential's subject only the id, and the issuer in its prefix, are known: no groups.
    """
    actors = principal.actors
    first = Party(principal.id, principal.issuer, principal.groups, actors[0] if actors else "")
    acting = (party_of_id(actor, behind) for actor, behind in zip(actors, (*actors[1:], ""), strict=False))
    return first, *acting, *spoken_for


def party_of_id(id: str, actor: str = "") -> Party:
    """Return a party of whom only the id is known."""
    # A SPIFFE id contains a colon as well, and `spiffe` is not an issuer.
    issuer = "" if id.startswith(SPIFFE) else id.partition(":")[0] if ":" in id else ""
    return Party(id, issuer, frozenset(), actor)


class _SpiffeId:
    """A SPIFFE id whose path may contain stars."""

    def __init__(self, text: str) -> None:
        self._domain, *segments = text.removeprefix(SPIFFE).split("/")
        self._has_more = segments[-1:] == [_BELOW]
        self._segments = [Pattern(segment) for segment in (segments[:-1] if self._has_more else segments)]

    def matches(self, id: str) -> bool:
        if not id.startswith(SPIFFE):
            return False
        domain, *segments = id.removeprefix(SPIFFE).split("/")
        more = len(segments) - len(self._segments)
        # `/**` needs at least one segment: the path above it is another workload's id.
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
        # An empty id belongs to nobody, but `*` would match it.
        return bool(id) and self._id.matches(id)


class Selectors:
    """Several selectors; a party matches when one of them matches it."""

    __slots__ = ("_all",)

    def __init__(self, texts: Iterable[str]) -> None:
        self._all = tuple(map(Selector, texts))

    def match(self, party: Party) -> Selector | None:
        """Return the first selector that matches."""
        for selector in self._all:
            if selector.matches(party):
                return selector
        return None

    def match_all(self, parties: Iterable[Party]) -> bool:
        return all(self.match(party) is not None for party in parties)

    def match_any(self, parties: Iterable[Party]) -> bool:
        return any(self.match(party) is not None for party in parties)

    def single_out(self, party: Party) -> bool:
        """Return whether a selector other than `*` matches."""
        return any(selector.matches(party) for selector in self._all if not selector.is_anyone)

    def __str__(self) -> str:
        return ", ".join(selector.text for selector in self._all)


# Malformed selectors.


def find_misspelt_selectors(document: PolicyDocument) -> Iterator[tuple[str, str]]:
    """Yield the path and a sentence for each selector that can never match what it says."""
    for path, text in selectors_in(document):
        if fault := selector_fault(text):
            yield f"$.{path}", f"`{text}`: {fault}"


def selectors_in(document: PolicyDocument) -> Iterator[tuple[str, str]]:
    """Yield the path and text of every selector, in the order of the sections."""
    for section in ("grants", "roles", "rules", "limits", "egress"):
        for index, entry in enumerate(getattr(document, section)):
            for place, text in enumerate(entry.principals):
                yield f"{section}[{index}].principals[{place}]", text
    for index, rule in enumerate(document.rules):
        for place, text in enumerate(rule.approval.approvers):
            yield f"rules[{index}].approval.approvers[{place}]", text
    for place, text in enumerate(document.impersonate):
        yield f"impersonate[{place}]", text


def find_unmatched_selectors(
    document: PolicyDocument,
    issuers: frozenset[str] | None,
    principals: frozenset[str],
    problem_of: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    """Yield the same for each selector that matches nobody known. `issuers` are the configured names, None when
    unknown; `principals` those with keys; `problem_of` returns what is wrong with a glob over these, empty for
    nothing."""
    for path, text in selectors_in(document):
        id, issuer = split_prefix(text)
        meant = "" if issuers is None else suggest_selector(text, issuers)
        if meant and not any(map(Pattern(text).matches, principals)):
            yield path, f"`{text}` begins with no known issuer; did you mean `{meant}`?"
        elif issuer and issuers is not None and issuer not in issuers:
            yield path, f"`{text}`: auth.jwt.issuers has none of that name"
        elif id.partition(":")[0] not in (issuers or ()) and (problem := problem_of(id)):
            yield path, problem


def split_prefix(text: str) -> tuple[str, str]:
    """Return the glob over ids of principals with keys and the issuer that a selector names; the glob is `*` where it
    names none."""
    text = text.removeprefix(ACTOR)
    if text.startswith((GROUP, ISSUER)):
        return "*", text.partition(":")[2].partition("/")[0]
    return ("*" if text.startswith(SPIFFE) else text), ""


def suggest_selector(text: str, issuers: frozenset[str]) -> str:
    """Return the typed selector that the text was probably meant to be, by the spelling of its prefix; empty when it is
    one already, or resembles none."""
    kind, colon, rest = text.partition(":")
    if not colon or kind in issuers or f"{kind}:" in (GROUP, ISSUER, ACTOR) or text.startswith(SPIFFE):
        return ""
    near = get_close_matches(kind.lower(), ("group", "issuer", "actor", "spiffe"), n=1, cutoff=_NEAR)
    if near == ["spiffe"]:
        return SPIFFE + rest.lstrip("/")
    return f"{near[0]}:{rest}" if near else ""


def selector_fault(text: str) -> str:
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
        return selector_fault(actor)
    if not text.startswith(SPIFFE):
        return ""
    domain, *segments = text.removeprefix(SPIFFE).split("/")
    if "*" in domain or not domain:
        return "name the trust domain, without stars"
    if any(_BELOW in segment for segment in (segments[:-1] if segments[-1:] == [_BELOW] else segments)):
        return "`**` stands for all that is below, as the last segment of the path and alone in it"
    return "" if all(segments) else "the path of a SPIFFE id has no empty segment"
