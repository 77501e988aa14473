"""Pages of tools (AIP-158) that report the total, whether the catalog changed meanwhile, and which sources are silent.

A list is ordered by name and continues after the last name shown, so that a tool that existed throughout is neither
skipped nor repeated whatever was added or removed between two pages. A search has no such order: once the catalog has
changed, or more of it can be found, its next page is refused and the search must be repeated. Uses learnt between two
pages may move a hit across their border. A page ends before the first tool that its message has no room for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.embedding import Meaning
from toolhub_service.search.filters import LISTED, Test, ToolFilter
from toolhub_service.search.hits import SearchHit, SearchResult
from toolhub_service.search.page_tokens import PAGE_SIZE_DEFAULT, page_size_of, read_token, write_token
from toolhub_service.search.search import NO_MEANING, ToolSearch


class PageRequest(msgspec.Struct, frozen=True):
    size: int = 0
    """Tools at most; 0: `default`; above 1,000: 1,000."""
    token: str = ""
    """`next_token` of the page before; empty: the first page."""
    default: int = PAGE_SIZE_DEFAULT
    question: str = "list"
    """The request apart from the filter: a token is valid for one request only."""


FIRST_PAGE = PageRequest()


class Viewer(msgspec.Struct, frozen=True):
    """The caller for whom a list is made."""

    scope: str
    """Names the caller: pages and cached verdicts are bound to it."""
    allowed: Test
    """Whether policy could allow the caller some call of the tool."""
    revision: Hashable = None
    """Revision of the policy behind `allowed`; None: verdicts are not cached."""
    knows: Test | None = None
    """Whether the caller may know that a tool exists; None: yes for each."""


class ToolPage(msgspec.Struct, frozen=True):
    tools: tuple[ToolSpec, ...]
    next_token: str
    """Empty on the last page."""
    total_size: int
    """How many match now, over all pages."""
    denied_size: int
    """How many more match and are denied to the viewer; shown only where policy says so."""
    revision: str
    changed: bool
    """The catalog changed since the page before."""
    sources: tuple[SourceStatus, ...]
    """Every source that is not READY and could have held a match."""


@dataclass(frozen=True, slots=True)
class HitPage(SearchResult):
    next_token: str = ""
    """Empty on the last page."""
    sources: tuple[SourceStatus, ...] = ()
    """As in `ToolPage`."""


def list_tools(
    catalog: ToolCatalog,
    where: ToolFilter = LISTED,
    page: PageRequest = FIRST_PAGE,
    *,
    viewer: Viewer | None = None,
    sources: Iterable[SourceStatus] = (),
    fitting: Callable[[Sequence[ToolSpec]], int] = len,
) -> ToolPage:
    """Return one page ordered by name, of as many tools as are `fitting`.

    Raises HubFailure INVALID_ARGUMENT for a bad size or a token of another request.
    """
    size = page_size_of(page.size, page.default)
    fingerprint = where.fingerprint(page.question, viewer.scope if viewer else "")
    place = read_token(page.token, fingerprint)
    meant = list(filter(where.compile(), catalog.all()))
    if viewer is not None and viewer.knows is not None:
        meant = list(filter(viewer.knows, meant))
    shown = [spec for spec in meant if viewer.allowed(spec)] if viewer else meant
    # By the last name shown, not by a count: tools added or removed meanwhile shift no page.
    start = bisect_right(shown, place.after, key=lambda spec: spec.name) if place else 0
    tools = tuple(shown[start : start + size])
    tools = tools[: fitting(tools)]
    more = start + len(tools) < len(shown)
    return ToolPage(
        tools=tools,
        next_token=write_token(fingerprint, catalog.revision, tools[-1].name) if more else "",
        total_size=len(shown),
        denied_size=len(meant) - len(shown),
        revision=catalog.revision,
        changed=place is not None and not place.is_of(catalog.revision),
        sources=silent_sources(sources, where),
    )


def search_tools(
    search: ToolSearch,
    query: str,
    where: ToolFilter = LISTED,
    page: PageRequest = FIRST_PAGE,
    *,
    viewer: Viewer | None = None,
    sources: Iterable[SourceStatus] = (),
    meaning: Meaning = NO_MEANING,
    fitting: Callable[[Sequence[SearchHit]], int] = len,
) -> HitPage:
    """One page of hits, best first. The viewer's own past uses count.

    Raises HubFailure INVALID_ARGUMENT like `list_tools`, or FAILED_PRECONDITION when the catalog has changed since the
    page before.
    """
    size = page_size_of(page.size)
    fingerprint = where.fingerprint("search", query, viewer.scope if viewer else "")
    place = read_token(page.token, fingerprint)
    # A ranking has no order to continue in once the catalog has changed; a list by name has.
    if place and not place.is_of(search.revision):
        message = "the catalog changed between two pages and the ranking with it: search again without a page_token"
        raise HubFailure(Reason.CATALOG_CHANGED, message)
    offset = int(place.after) if place and place.after.isdecimal() else 0
    found = search.search(
        query,
        where,
        allowed=viewer.allowed if viewer else None,
        viewer=(viewer.scope, viewer.revision) if viewer and viewer.revision is not None else None,
        tenant=viewer.scope if viewer else "",
        meaning=meaning,
        limit=size,
        offset=offset,
    )
    hits = found.hits[: fitting(found.hits)]
    end = offset + len(hits)
    return HitPage(
        *(hits, found.total_size, found.revision, found.ranked_by, found.note),
        next_token=write_token(fingerprint, search.revision, str(end)) if hits and end < found.total_size else "",
        sources=silent_sources(sources, where),
    )


def silent_sources(sources: Iterable[SourceStatus], where: ToolFilter = LISTED) -> tuple[SourceStatus, ...]:
    """Return the sources that are not READY and could have held a match, by name. One that is switched off offers
    nothing that was missed."""
    could_hold = (
        status
        for status in sources
        if status.state not in (SourceState.READY, SourceState.DISABLED)
        and (not where.sources or status.name in where.sources)
        and (not where.kinds or status.kind in where.kinds)
    )
    return tuple(sorted(could_hold, key=lambda status: status.name))
