"""Resources of an MCP server: one tool that lists them and one that reads them, by the server's own URIs.

The list is read when it is first needed, and cached for as long as the server declares it valid and reports no change;
a cached list also answers while the server is away. Models read its texts like descriptions of tools, so they are
checked in the same way; a list is too long and changes too often to be pinned.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

from mcp import MCPError
from mcp_types import INVALID_PARAMS

from toolhub_service.adapters.definitions import Overrides, SourceTerms
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.answers import own_meta
from toolhub_service.adapters.mcp.calling import ToolCaller, time_left_s
from toolhub_service.adapters.mcp.link import McpServer, McpSession
from toolhub_service.adapters.mcp.lists import count_of, read_list
from toolhub_service.adapters.mcp.prompts import evidence_of, fixed_definition
from toolhub_service.adapters.mcp.result_value import INLINE_MAX_BYTES, LargeParts
from toolhub_service.adapters.upstream import as_object, as_string, one_line, shorten, write_json
from toolhub_service.aio.cooperative import TimeSlice
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Primitive
from toolhub_service.guards.descriptions import check_definition
from toolhub_service.guards.secrets import Redact

RESOURCE_LISTS: Final = (("resources/list", "resources"), ("resources/templates/list", "resourceTemplates"))
"""Methods, each with the member that holds its entries."""
LIST: Final = "resources.list"
READ: Final = "resources.read"
SUBSCRIBE: Final = "resources.subscribe"
URI_MAX_CHARS: Final = 2_000
RESOURCES_MAX: Final = 1_000
TEMPLATES_MAX: Final = 100
TEXT_MAX_BYTES: Final = 256 * 1024
"""Limit of one text in a result; a larger one becomes an artifact."""

_LIST_MAX_BYTES: Final = 768 * 1024  # below what a result may hold without being cut
_WORDS_MAX_BYTES: Final = 1_024
_NAME_MAX_CHARS: Final = 256
_CONTENTS_MAX: Final = 200
_CONTENTS: Final = ("mimeType", "text", "blob", "_meta")
_TTL_S: Final = 60.0  # where the server declares none
_TTL_MAX_S: Final = 600.0
_ASKED_S: Final = 5.0  # for a server to accept a subscription of 2026-07-28
_NOT_FOUND_ONCE: Final = -32002  # before 2026-07-28

_SHOWN: Final = (("resources", "uri", RESOURCES_MAX), ("templates", "uriTemplate", TEMPLATES_MAX))
_ENTRIES: Final[JsonObject] = {"type": "array", "items": {"type": "object"}}
_LIST_OUTPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {"resources": _ENTRIES, "templates": _ENTRIES, "complete": {"type": "boolean"}},
    "required": ["resources", "templates", "complete"],
}
_URI: Final[JsonObject] = {"type": "string", "minLength": 1, "maxLength": URI_MAX_CHARS}
_READ_INPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {"uri": {**_URI, "description": "As the list has it, or an expanded template."}},
    "required": ["uri"],
    "additionalProperties": False,
}
_READ_OUTPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "contents": {
            "type": "array",
            "items": {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
        }
    },
    "required": ["contents"],
}
_SUBSCRIBE_OUTPUT: Final[JsonObject] = {"type": "object", "properties": {"subscribed": {"type": "boolean"}}}
_NOTHING: Final[JsonObject] = {"type": "object", "properties": {}, "additionalProperties": False}


def resource_definitions(terms: SourceTerms, overrides: Overrides, *, may_subscribe: bool) -> list[Definition]:
    """Return the tools of a source that has resources. Raises Unnamed."""
    listing = fixed_definition(
        terms,
        overrides,
        LIST,
        Primitive.RESOURCE_LIST,
        description=f"The resources of {terms.name}, and templates of URIs of more.",
        input_schema=_NOTHING,
        output_schema=_LIST_OUTPUT,
    )
    reading = fixed_definition(
        terms,
        overrides,
        READ,
        Primitive.RESOURCE_READ,
        description=f"The contents of a resource of {terms.name}. What is large comes as an artifact.",
        input_schema=_READ_INPUT,
        output_schema=_READ_OUTPUT,
    )
    subscribing = None
    if may_subscribe:
        subscribing = fixed_definition(
            terms,
            overrides,
            SUBSCRIBE,
            Primitive.RESOURCE_SUBSCRIPTION,
            description=f"Have {terms.name} tell of changes of a resource; MCP clients of the hub are told.",
            input_schema=_READ_INPUT,
            output_schema=_SUBSCRIBE_OUTPUT,
        )
    return [definition for definition in (listing, reading, subscribing) if definition is not None]


class _Known(NamedTuple):
    value: JsonObject
    until_s: float
    """Loop clock."""
    changes: int
    """Number of changes that the server had announced when the list was read."""


class ResourceList:
    """The resources of one server."""

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._reading = asyncio.Lock()

    async def outcome(self, server: McpServer, call: GrantedCall, redact: Redact) -> Outcome:
        """Return `{resources, templates, complete}`. Raises ToolFailure when it cannot be read and never could."""
        async with self._reading:
            if not self._holds(server):
                try:
                    self._known = await _read_list(server, call, redact)
                except ToolFailure:
                    # While the server is away, an old list is better than none.
                    if self._known is None:
                        raise
        assert self._known is not None
        summary = f"{call.spec.name} listed the resources of {call.spec.source}"
        proof = Evidence(EvidenceType.TOOL, call.call.call_id, summary, attributes={"source": call.spec.source})
        return Outcome(value=self._known.value, evidence=(proof,))

    def _holds(self, server: McpServer) -> bool:
        known = self._known
        if known is None or known.changes != server.resource_changes:
            return False
        return known.until_s > asyncio.get_running_loop().time()


async def _read_list(server: McpServer, call: GrantedCall, redact: Redact) -> _Known:
    # Counted before the reading, so that a change during it makes the list outdated again.
    changes = server.resource_changes
    session = await server.link.session(call.deadline_s)
    found: dict[str, list[JsonValue]] = {}
    is_whole, ttl_s, left_bytes = True, _TTL_MAX_S, _LIST_MAX_BYTES
    for (method, member), (shown, place, most) in zip(RESOURCE_LISTS, _SHOWN, strict=True):
        page = await read_list(server.link, session, method, member, most, time_left_s(call))
        if page.error is not None and member == "resources":
            raise failures.protocol_failure(call, page.error, redact)
        entries = found[shown] = []
        time_slice = TimeSlice()
        for raw in page.entries:
            entry = _entry(raw, place)
            left_bytes -= len(write_json(entry) or b"")
            if not entry or left_bytes < 0 or any(finding.is_serious for finding in check_definition(entry)):
                is_whole = False
                continue
            entries.append(entry)
            await time_slice.pause_if_due()
        is_whole = is_whole and page.is_whole
        ttl_s = min(ttl_s, page.ttl_s or _TTL_S)
    value: JsonObject = {"resources": found["resources"], "templates": found["templates"], "complete": is_whole}
    return _Known(value, asyncio.get_running_loop().time() + ttl_s, changes)


def _entry(raw: JsonObject, place: str) -> dict[str, JsonValue]:
    """Return a resource or a template with the members that clients use; empty when it has no usable address."""
    uri, name = as_string(raw.get(place)), as_string(raw.get("name"))
    if not 0 < len(uri) <= URI_MAX_CHARS or not uri.isprintable():
        return {}
    entry: dict[str, JsonValue] = {place: uri, "name": one_line(name or uri, _NAME_MAX_CHARS)}
    for words in ("title", "description"):
        if text := as_string(raw.get(words)):
            entry[words] = shorten(text, _WORDS_MAX_BYTES)
    if media_type := as_string(raw.get("mimeType")):
        entry["mimeType"] = one_line(media_type, _NAME_MAX_CHARS)
    if (size := count_of(raw.get("size"))) is not None:
        entry["size"] = size
    if meta := own_meta(raw):
        entry["_meta"] = meta
    if isinstance(hints := raw.get("annotations"), dict) and len(write_json(hints) or b"") <= _WORDS_MAX_BYTES:
        entry["annotations"] = hints
    return entry


async def read_resource(server: McpServer, call: GrantedCall, caller: ToolCaller) -> Outcome:
    """Return `{contents: [{uri, mimeType?, text | blob | artifact, …}]}`. Raises ToolFailure, QuestionAsked."""
    uri = str(call.args["uri"])
    try:
        answer, session = await caller.result(server, call, None, method="resources/read", fields={"uri": uri})
    except ToolFailure as failure:
        raise _absent(call, failure) or failure from failure
    contents = answer.get("contents")
    if not isinstance(contents, list) or len(contents) > _CONTENTS_MAX:
        raise failures.outside_protocol(call, f"it has no list of at most {_CONTENTS_MAX} contents")
    keeping = LargeParts(call.call, caller.artifacts, INLINE_MAX_BYTES, TEXT_MAX_BYTES)
    shown: list[JsonValue] = []
    for each in contents:
        fields = as_object(each)
        if fields is None or not (isinstance(fields.get("text"), str) or isinstance(fields.get("blob"), str)):
            raise failures.outside_protocol(call, "its contents are neither a text nor bytes")
        own = {place: fields[place] for place in _CONTENTS if place in fields}
        shown.append({**await keeping.contents(own), "uri": as_string(fields.get("uri")) or uri})
    return Outcome(
        value={"contents": shown},
        evidence=evidence_of(call, session, f"read {one_line(uri, 200)}", answer),
        artifacts=tuple(keeping.refs),
        truncated=keeping.is_incomplete,
    )


async def subscribe_to_resource(server: McpServer, call: GrantedCall, caller: ToolCaller) -> Outcome:
    """Return `{subscribed}`. A subscription lasts until the source is closed, also over new connections. Raises
    ToolFailure."""
    uri = str(call.args["uri"])
    session = await server.link.session(call.deadline_s)
    if not session.is_modern:
        try:
            await caller.result(server, call, None, method="resources/subscribe", fields={"uri": uri})
        except ToolFailure as failure:
            raise _absent(call, failure) or failure from failure
    # Only after the server accepted it: a refused subscription is not repeated at the next connection.
    asked = server.link.watched.add(uri)
    if session.is_modern:
        with suppress(TimeoutError):  # the subscription follows a little after the answer
            async with asyncio.timeout(_ASKED_S):
                await asked.wait()
    proofs = evidence_of(call, session, f"subscribed to {one_line(uri, 200)}")
    return Outcome(value={"subscribed": True}, evidence=proofs)


async def subscribe_again(server: McpServer, session: McpSession) -> None:
    """Subscribe on a new connection of 2025-11-25, which has no subscriptions; changes may have been missed
    meanwhile."""
    for uri in tuple(server.link.watched.uris):
        # A resource that no longer exists ends only its own subscription.
        with suppress(MCPError):
            await server.link.send(session, "resources/subscribe", {"uri": uri}, timeout_s=_ASKED_S)
            # Changes without a connection are unknown, so the resource counts as changed.
            server.link.on_resource_change(uri)


def _absent(call: GrantedCall, failure: ToolFailure) -> ToolFailure | None:
    """Return the failure for a URI that the server does not have: INVALID_PARAMS from 2026-07-28 on. Otherwise None."""
    upstream = failure.error.upstream
    if upstream is None or upstream.status not in (INVALID_PARAMS, _NOT_FOUND_ONCE):
        return None
    message = f"{call.spec.source} has no such resource. It says: {upstream.excerpt}"
    return refuse(ErrorKind.NOT_FOUND, message)
