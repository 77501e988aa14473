"""Resources of sources: one list of all that a caller may see, and the routing of each URI to its source.

A resource keeps the URI that its source gives it while no other source that the caller may see claims the same, by its
list or by a template. A URI that several claim belongs to none of them: each resource has `toolhub://sources/SOURCE/`
and its own URI, by which it can always be read. So no source can impersonate another, and none has URIs of the hub's
own schemes.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import INVALID_PARAMS

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import Primitive, ToolSpec, ToolState
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.primitives.source_primitives import Primitives, Requester, protocol_error

SOURCE_URI: Final = "toolhub://sources/"
"""Before a source's name, a slash and its own URI."""

_OWN_SCHEMES: Final = ("toolhub:", "skill:")
_CLAIMING: Final = frozenset({ToolState.ACTIVE, ToolState.UNAVAILABLE})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_URI_MAX_CHARS: Final = 2_000
# Most sources that are asked for lists concurrently.
_AT_ONCE: Final = 8
# How long a caller's list of a source is cached here: a read searches all of them for its URI.
_KEPT_S: Final = 15.0
_KEPT_MAX_ENTRIES: Final = 50_000


class Template(NamedTuple):
    shown: Mapping[str, Any]
    """The template as its source lists it."""
    prefix: str
    """Prefix of all its URIs, at least a scheme; empty: it claims none."""
    parsed: UriTemplate | None

    def claims(self, uri: str) -> bool:
        if self.parsed is None or not uri.startswith(self.prefix):
            return False
        return self.parsed.match(uri) is not None


class Listing(NamedTuple):
    """What one source offers to one caller."""

    source: str
    resources: Mapping[str, Mapping[str, Any]]
    """By URI, in the source's order."""
    templates: Sequence[Template]
    is_unavailable: bool = False
    """It was read before its source became unreachable: it still claims its URIs."""

    def claims(self, uri: str) -> bool:
        return uri in self.resources or any(template.claims(uri) for template in self.templates)


class Found(NamedTuple):
    listings: Sequence[Listing]
    unread: Sequence[str]
    """Sources whose list is unavailable."""


def shown_uri(source: str, uri: str) -> str:
    """Return the URI that clients see, which a source cannot place in the hub's own schemes."""
    return f"{SOURCE_URI}{source}/{uri}" if uri.lower().startswith(_OWN_SCHEMES) else uri


class _Kept(NamedTuple):
    listing: Listing
    until_s: float
    holds_for: tuple[str, str]
    """Digest of the tool that lists, revision of the policy."""


class SourceResources:
    def __init__(self, engine: Engine, primitives: Primitives) -> None:
        self._engine = engine
        self._primitives = primitives
        self._kept: OrderedDict[tuple[Principal, str], _Kept] = OrderedDict()
        """Cached listings, by caller (as far as its credential matters) and source."""
        self._kept_entries = 0
        engine.resource_news.subscribe(self._on_change)

    async def find_all(self, requester: Requester) -> Found:
        """Return what each source offers that the caller may see."""
        specs = [
            spec
            for spec in self._primitives.all(Primitive.RESOURCE_LIST).values()
            if spec.state in _CLAIMING and not self._primitives.is_hidden(requester.principal, spec)
        ]
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(spec: ToolSpec) -> Listing | None:
            async with gate:
                return await self._listing(requester, spec)

        listings = await asyncio.gather(*map(one, specs))
        unread = [
            spec.source
            for spec, listing in zip(specs, listings, strict=True)
            if listing is None or listing.is_unavailable
        ]
        return Found([listing for listing in listings if listing is not None], unread)

    async def read(self, requester: Requester, uri: str, absent: int) -> tuple[ToolResult, ToolSpec, str]:
        """Return the source's answer, its tool and the requested URI.

        A refusal becomes an MCPError, with the code `absent` both for missing and for hidden resources.
        """
        source, own = await self.route(requester, uri)
        spec = self._primitives.of_source(Primitive.RESOURCE_READ, source)
        if spec is None or not own:
            raise no_resource(uri, absent)
        answer = await self._primitives.call(requester, spec, {"uri": own})
        if answer.error is None:
            return answer, spec, own
        if self._primitives.is_hidden(requester.principal, spec) or answer.error.kind is ErrorKind.NOT_FOUND:
            raise no_resource(uri, absent)
        raise protocol_error(answer.error)

    async def route(self, requester: Requester, uri: str) -> tuple[str, str]:
        """Return which source to ask, and for what; empty: none. Raises MCPError when several have it."""
        if uri.startswith(SOURCE_URI):
            return _split_source_uri(uri)
        if uri.lower().startswith(_OWN_SCHEMES) or len(uri) > _URI_MAX_CHARS:
            return "", ""
        found = await self.find_all(requester)
        claiming = [listing.source for listing in found.listings if listing.claims(uri)]
        # The order of sources must not decide: a new one could take over a URI of another.
        if len(claiming) > 1:
            ways = " or ".join(f"{SOURCE_URI}{source}/{uri}" for source in claiming[:3])
            raise MCPError(INVALID_PARAMS, f"Several sources have a resource of this URI. Read {ways}.", {"uri": uri})
        if claiming:
            return claiming[0], uri
        # No source lists it. A source may have unlisted ones; with two sources the owner is ambiguous.
        reading = [
            spec.source
            for spec in self._primitives.all(Primitive.RESOURCE_READ).values()
            if not self._primitives.is_hidden(requester.principal, spec)
        ]
        return (reading[0], uri) if len(reading) == 1 else ("", "")

    async def source_of_template(self, requester: Requester, template: str) -> tuple[str, str]:
        """Return whose template it is, and its source's name for it. Raises MCPError."""
        if template.startswith(SOURCE_URI):
            return _split_source_uri(template)
        found = await self.find_all(requester)
        having = [each.source for each in found.listings if _has(each, template)]
        if len(having) != 1:
            raise no_resource(template)
        return having[0], template

    def to_entries(self, found: Found) -> list[dict[str, Any]]:
        """Return resources with the URIs for reading them, as entries of a ListResourcesResult."""
        return [
            {**entry, "uri": uri if self._is_only(found, listing, uri) else f"{SOURCE_URI}{listing.source}/{uri}"}
            for listing in found.listings
            if not listing.is_unavailable
            for uri, entry in listing.resources.items()
        ]

    def templates(self, found: Found) -> list[dict[str, Any]]:
        templates = []
        for listing in found.listings:
            for template in () if listing.is_unavailable else listing.templates:
                own = str(template.shown["uriTemplate"])
                others = (each for each in found.listings if each is not listing)
                is_only = bool(template.prefix) and not any(_has(other, own) for other in others)
                uri = own if is_only else f"{SOURCE_URI}{listing.source}/{own}"
                templates.append({**template.shown, "uriTemplate": uri})
        return templates

    def uri_in_answer(self, source: str, asked: str, own: str, uri: str) -> str:
        """The URI of one of the contents that came for `asked`, which its source calls `own`: the one that was asked
        for, or one that no other source can have."""
        return asked if uri == own else f"{SOURCE_URI}{source}/{uri}"

    def _on_change(self, source: str, uri: str) -> None:
        """Mark a changed list for reading again; it claims its URIs until then."""
        for key, kept in tuple(self._kept.items()) if not uri else ():
            if key[1] == source:
                # Expired and not removed: if its source is unreachable by then, the older list still claims its URIs.
                self._kept[key] = kept._replace(until_s=0.0)

    def _is_only(self, found: Found, listing: Listing, uri: str) -> bool:
        if uri.lower().startswith(_OWN_SCHEMES) or not _SCHEME.match(uri):
            return False
        return not any(other.claims(uri) for other in found.listings if other is not listing)

    async def _listing(self, requester: Requester, spec: ToolSpec) -> Listing | None:
        """Return what the source offers; None when it never was available. An older list still claims its URIs."""
        key = (requester.principal, spec.source)
        holds_for = (spec.digest, self._engine.policy.revision)
        now_s = asyncio.get_running_loop().time()
        kept = self._kept.get(key)
        if kept is not None and kept.holds_for != holds_for:
            kept = None
        if kept is not None and kept.until_s > now_s:
            return kept.listing
        unavailable = kept.listing._replace(is_unavailable=True) if kept is not None else None
        if spec.state is ToolState.UNAVAILABLE:
            return unavailable
        answer = await self._primitives.call(requester, spec, {})
        if answer.error is not None:
            return unavailable
        listing = _listing_of(spec.source, answer.value)
        self._keep(key, _Kept(listing, now_s + _KEPT_S, holds_for))
        return listing

    def _keep(self, key: tuple[Principal, str], kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self._kept_entries += _size(kept) - (_size(before) if before is not None else 0)
        self._kept[key] = kept
        # Counted in entries: one source may list a thousand times what another does.
        while self._kept_entries > _KEPT_MAX_ENTRIES and len(self._kept) > 1:
            self._kept_entries -= _size(self._kept.popitem(last=False)[1])


def no_resource(uri: str, code: int = INVALID_PARAMS) -> MCPError:
    message = (
        "There is no such resource that you may read. Take its URI from resources/list; that of a source is read as "
        f"{SOURCE_URI}SOURCE/URI, too."
    )
    return MCPError(code, message, {"uri": uri})


def _split_source_uri(uri: str) -> tuple[str, str]:
    source, _, own = uri.removeprefix(SOURCE_URI).partition("/")
    return source, own


def _has(listing: Listing, template: str) -> bool:
    return any(each.shown["uriTemplate"] == template for each in listing.templates)


def _size(kept: _Kept) -> int:
    return 1 + len(kept.listing.resources) + len(kept.listing.templates)


def _listing_of(source: str, value: Any) -> Listing:
    """Return the listing of the tool's value, which may have been cut."""
    resources = {entry["uri"]: entry for entry in _entries(value["resources"])}
    templates = [_template(entry) for entry in _entries(value["templates"])]
    return Listing(source, resources, templates)


def _entries(listed: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    return (entry for entry in listed if isinstance(entry, Mapping))


def _template(entry: Mapping[str, Any]) -> Template:
    text = str(entry["uriTemplate"])
    prefix = text.partition("{")[0]
    # A template whose scheme is a variable would claim every URI there is.
    if not _SCHEME.match(prefix) or prefix.lower().startswith(_OWN_SCHEMES):
        return Template(entry, "", None)
    try:
        return Template(entry, prefix, UriTemplate.parse(text))
    except InvalidUriTemplate:
        return Template(entry, "", None)
