"""Artifacts as resources: listed, and read by their owner alone, as over gRPC."""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from toolhub_service.domain.artifact import Artifact, ArtifactFilter
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.mcp_server.calls import ARTIFACT_URI, resource_link
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import TTL_MS

READ_MAX_BYTES: Final = 8 * 1024 * 1024
"""Of one answer: what is larger is read over gRPC, in pieces."""

# In the older era an answer is one event of a stream, of which clients take 1 MiB, in base64.
_READ_ONCE_MAX_BYTES: Final = 700 * 1024
_PAGE: Final = 100
_ID_MAX_CHARS: Final = 128
NOT_FOUND_ONCE: Final = -32002
_TEXTS: Final = ("application/json", "application/xml", "application/yaml", "application/x-ndjson")


class Resources:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def page(self, principal: Principal, cursor: str) -> dict[str, Any]:
        """A ListResourcesResult: the caller's own, those that expire last first."""
        found, after = await self._engine.artifacts.page(
            ArtifactFilter(principal=principal.id), after=_place(cursor), limit=_PAGE
        )
        listed = [{**resource_link(artifact.ref)} for artifact in found]
        for resource in listed:
            del resource["type"]
        page: dict[str, Any] = {"resources": listed, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
        if after is not None:
            page["nextCursor"] = json.dumps(after)
        return page

    def templates(self) -> dict[str, Any]:
        template = {
            "uriTemplate": f"{ARTIFACT_URI}{{artifact_id}}",
            "name": "artifact",
            "description": "A large value that a call of yours has kept, as its answer names it.",
        }
        return {
            "resourceTemplates": [template],
            "ttlMs": TTL_MS,
            "cacheScope": "public",
            "resultType": "complete",
        }

    async def read(self, principal: Principal, uri: str, *, is_new_era: bool) -> dict[str, Any]:
        """A ReadResourceResult. Raises MCPError alike for what does not exist and what is somebody else's."""
        code = INVALID_PARAMS if is_new_era else NOT_FOUND_ONCE
        artifact_id = uri.removeprefix(ARTIFACT_URI)
        if not uri.startswith(ARTIFACT_URI) or not 0 < len(artifact_id) <= _ID_MAX_CHARS:
            message = f"There is no such resource. Those of this hub begin with {ARTIFACT_URI}."
            raise MCPError(code, message, {"uri": uri})
        may_read_all = Role.AUDITOR in principal.roles
        try:
            artifact = await self._engine.artifacts.open(principal.id, artifact_id, may_read_all=may_read_all)
            most = READ_MAX_BYTES if is_new_era else _READ_ONCE_MAX_BYTES
            if artifact.size_bytes > most:
                message = f"It has {artifact.size_bytes:,} bytes, of which {most:,} can be read over MCP."
                raise MCPError(code, f"{message} Use `toolhub artifacts get {artifact_id}`.", {"uri": uri})
            data = await self._bytes(artifact)
        except ToolFailure as refused:
            raise MCPError(code, refused.error.message, {"uri": uri}) from refused
        contents = {"uri": uri, "mimeType": artifact.media_type, **_contents(artifact.media_type, data)}
        return {"contents": [contents], "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}

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
            pass
    return {"blob": base64.b64encode(data).decode()}


def _place(cursor: str) -> tuple[int, str] | None:
    """Raises MCPError for what is no cursor of ours."""
    if not cursor:
        return None
    try:
        at, artifact_id = json.loads(cursor)
        if isinstance(at, int) and isinstance(artifact_id, str):
            return at, artifact_id
    except (ValueError, TypeError):
        pass
    raise MCPError(INVALID_PARAMS, "The cursor is none of this list. Begin without one.")
