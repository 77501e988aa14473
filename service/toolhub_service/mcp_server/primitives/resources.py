"""Resources: those of sources, and artifacts, which are listed for and read by their owner alone, as over gRPC."""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from toolhub_service.domain.artifact import Artifact, ArtifactFilter
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.result import ToolResult
from toolhub_service.mcp_server.convert_calls import ARTIFACT_URI, META_PREFIX, is_id, resource_link
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.primitives.source_primitives import Requester, meta_of
from toolhub_service.mcp_server.primitives.source_resources import Found, SourceResources, no_resource

READ_MAX_BYTES: Final = 8 * 1024 * 1024
"""Limit of one answer: larger content is read over gRPC, in pieces."""

# In the older protocol an answer is one event of a stream, of which clients accept 1 MiB, in base64.
_READ_ONCE_MAX_BYTES: Final = 700 * 1024
_PAGE: Final = 100
_CONTENTS: Final = ("mimeType", "text", "blob", "_meta")
_SOURCES_PAGE: Final = 500
NOT_FOUND_ONCE: Final = -32002
_TEXTS: Final = ("application/json", "application/xml", "application/yaml", "application/x-ndjson")


class Resources:
    def __init__(self, engine: Engine, sources: SourceResources) -> None:
        self._engine = engine
        self._sources = sources

    async def page(self, requester: Requester, cursor: str) -> dict[str, Any]:
        """Return a ListResourcesResult: those of sources by source, then the caller's artifacts, last to expire
        first."""
        page: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
        start, place = _place(cursor)
        listed: list[dict[str, Any]] = []
        if start is not None:
            found = await self._sources.find_all(requester)
            every = self._sources.to_entries(found)
            listed = every[start : start + _SOURCES_PAGE]
            page |= unread_of(found)
            # Artifacts begin on the page after the last resource of a source, so that a cursor has one of two forms.
            if start + _SOURCES_PAGE < len(every):
                return page | {"resources": listed, "nextCursor": json.dumps(start + _SOURCES_PAGE)}
        kept, after = await self._engine.artifacts.page(
            ArtifactFilter(principal=requester.principal.id), after=place, limit=_PAGE
        )
        for artifact in kept:
            link = resource_link(artifact.ref)
            del link["type"]
            listed.append(link)
        if after is not None:
            page["nextCursor"] = json.dumps(after)
        return page | {"resources": listed}

    async def templates(self, requester: Requester) -> dict[str, Any]:
        found = await self._sources.find_all(requester)
        own = {
            "uriTemplate": f"{ARTIFACT_URI}{{artifact_id}}",
            "name": "artifact",
            "description": "A large value that a call of yours has kept, as its answer names it.",
        }
        return {
            "resourceTemplates": [own, *self._sources.templates(found)],
            "ttlMs": 0,
            "cacheScope": "private",
            "resultType": "complete",
            **unread_of(found),
        }

    async def read(self, requester: Requester, uri: str, *, is_modern: bool) -> dict[str, Any]:
        """Return a ReadResourceResult. Raises the same MCPError for a missing resource and one of another owner."""
        code = INVALID_PARAMS if is_modern else NOT_FOUND_ONCE
        most = READ_MAX_BYTES if is_modern else _READ_ONCE_MAX_BYTES
        result: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
        if uri.startswith(ARTIFACT_URI):
            media_type, data = await self._artifact(
                requester.principal, uri, uri.removeprefix(ARTIFACT_URI), most, code
            )
            return result | {"contents": [{"uri": uri, "mimeType": media_type, **_contents(media_type, data)}]}
        answer, spec, own = await self._sources.read(requester, uri, code)
        contents = []
        for each in contents_of(answer):
            shown: dict[str, Any] = {place: each[place] for place in _CONTENTS if place in each}
            shown["uri"] = self._sources.uri_in_answer(spec.source, uri, own, each["uri"])
            if "artifact" in each:
                kept = str(each["artifact"])
                media_type, data = await self._artifact(requester.principal, uri, kept, most, code)
                shown |= {"mimeType": each.get("mimeType") or media_type, **_contents(media_type, data)}
            elif "dropped" in each:
                raise MCPError(INTERNAL_ERROR, f"It has {each['bytes']:,} bytes, and {each['dropped']}.", {"uri": uri})
            # Base64 writes four characters for three bytes.
            most -= len(shown["text"]) if "text" in shown else len(shown.get("blob", "")) * 3 // 4
            if most < 0:
                raise MCPError(INTERNAL_ERROR, "Its contents together are too large for one answer.", {"uri": uri})
            contents.append(shown)
        return result | {"contents": contents, "_meta": meta_of(answer, spec)}

    async def _artifact(
        self, principal: Principal, uri: str, artifact_id: str, most: int, code: int
    ) -> tuple[str, bytes]:
        """Return (media type, bytes). Raises MCPError."""
        if not is_id(artifact_id):
            raise no_resource(uri, code)
        auditor = principal if Role.AUDITOR in principal.roles else None
        try:
            artifact = await self._engine.artifacts.open(principal.id, artifact_id, auditor=auditor)
            if artifact.size_bytes > most:
                message = f"It has {artifact.size_bytes:,} bytes, of which {most:,} can be read over MCP."
                raise MCPError(code, f"{message} Use `toolhub artifacts get {artifact_id}`.", {"uri": uri})
            return artifact.media_type, await self._bytes(artifact)
        except ToolFailure as refused:
            raise MCPError(code, refused.error.message, {"uri": uri}) from refused

    async def _bytes(self, artifact: Artifact) -> bytes:
        read = bytearray()
        chunks = self._engine.artifacts.read(artifact)
        async with aclosing(cast(Any, chunks)):
            async for chunk in chunks:
                read += chunk
        return bytes(read)


def _contents(media_type: str, data: bytes) -> dict[str, str]:
    kind = media_type.partition(";")[0].strip().lower()
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml")):
        try:
            return {"text": data.decode()}
        except UnicodeDecodeError:
            pass  # Declared as text but not UTF-8: sent as bytes, so that none is lost.
    return {"blob": base64.b64encode(data).decode()}


def unread_of(found: Found) -> dict[str, Any]:
    """Return the sources that could not be asked: then the list is incomplete."""
    return {"_meta": {f"{META_PREFIX}sources_not_read": list(found.unread)}} if found.unread else {}


def contents_of(answer: ToolResult) -> list[dict[str, Any]]:
    """Of a value that may have been cut."""
    value: Any = answer.value
    contents = value.get("contents", ()) if isinstance(value, dict) else ()
    return [each for each in contents if isinstance(each, dict)]


def _place(cursor: str) -> tuple[int | None, tuple[int, str] | None]:
    """Return where a page begins among resources of sources, else (None) after which artifact.

    Raises MCPError for a foreign cursor.
    """
    if not cursor:
        return 0, None
    try:
        place = json.loads(cursor)
        if isinstance(place, int) and place >= 0:
            return place, None
        at, artifact_id = place
        if isinstance(at, int) and 0 <= at < 2**63 and isinstance(artifact_id, str) and is_id(artifact_id):
            return None, (at, artifact_id)
    except (ValueError, TypeError, RecursionError):
        pass  # Nothing that this hub gave out
    raise MCPError(INVALID_PARAMS, "The cursor is none of this list. Begin without one.")
