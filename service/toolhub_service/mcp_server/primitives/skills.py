"""Skills as MCP has them (SEP-2640): each file a resource `skill://SOURCE/SKILL/PATH`, and a list with all digests.

A skill is a tool that reads it. A caller who may see that tool sees the skill, and a file is read by a call of it, in
the nine steps. A client's list shows what the hub has pinned; a file that has changed since then is refused, not sent.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import SkillListing, ToolSpec
from toolhub_service.mcp_server.calling import Calling
from toolhub_service.mcp_server.convert_calls import ARTIFACT_URI, Context, error_to_dict, invoke
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import TTL_MS, Offer
from toolhub_service.schema import canonical_json

EXTENSION: Final = "io.modelcontextprotocol/skills"
SKILL_URI: Final = "skill://"
TEMPLATE: Final = {
    "uriTemplate": f"{SKILL_URI}{{source}}/{{skill}}/{{+path}}",
    "name": "skill",
    "description": "A file of a skill; SKILL.md has its instructions.",
}

# The extension's own limits, which every client must accept.
_FILES_MAX: Final = 512
_SKILL_MAX_BYTES: Final = 16 * 1024 * 1024
_PAGE_MAX_BYTES: Final = 512 * 1024
_MAIN: Final = "SKILL.md"
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_URI_SAFE: Final = "/-._~!$&'()*+,;=:@"
_URI_MAX_CHARS: Final = 4_000


class Served(NamedTuple):
    root: str
    """Its URI up to the path of a file."""
    spec: ToolSpec
    listing: SkillListing

    def entry(self) -> dict[str, Any]:
        resources = [
            {"uri": self.root + quote(path, safe=_URI_SAFE), "digest": f"sha256:{sha256}", "size": size_bytes}
            for path, sha256, size_bytes in self.listing.files
        ]
        return {"uri": self.root + _MAIN, "frontmatter": dict(self.listing.frontmatter), "resources": resources}


Read = Callable[[str], Awaitable[dict[str, Any]]]
"""(URI) -> a ReadResourceResult, for the principal."""


class Skills:
    def __init__(self, engine: Engine, offer: Offer, calling: Calling) -> None:
        self._engine = engine
        self._offer = offer
        self._calling = calling

    def page(self, principal: Principal, cursor: str) -> dict[str, Any]:
        """Return a ListSkillsResult: skills whose reading tool comes after `cursor`, by name."""
        page: dict[str, Any] = {"skills": [], "ttlMs": TTL_MS, "cacheScope": "private", "resultType": "complete"}
        size_bytes, last = 0, ""
        for served in self._all(principal):
            if served.spec.name <= cursor:
                continue
            entry = served.entry()
            size_bytes += len(canonical_json.dumps(entry))
            if page["skills"] and size_bytes > _PAGE_MAX_BYTES:
                return page | {"nextCursor": last}
            page["skills"].append(entry)
            last = served.spec.name
        return page

    def get(self, principal: Principal, uri: str) -> dict[str, Any]:
        """Return a GetSkillResult.

        Raises MCPError -32602 both for a missing skill and one that the principal may not see.
        """
        found = next((each for each in self._all(principal) if each.root + _MAIN == uri), None)
        if found is None:
            raise _unknown(uri, INVALID_PARAMS)
        return {"skill": found.entry(), "ttlMs": TTL_MS, "cacheScope": "private", "resultType": "complete"}

    def resources(self, principal: Principal) -> list[dict[str, Any]]:
        """Return the instructions of each, as lists of resources have them, which name the other files."""
        return [
            {
                "uri": each.root + _MAIN,
                "name": each.listing.frontmatter["name"],
                "description": each.listing.frontmatter["description"],
                "mimeType": "text/markdown",
            }
            for each in self._all(principal)
        ]

    async def read(
        self, context: Context, principal: Principal, session_id: str, uri: str, read: Read, not_found: int
    ) -> dict[str, Any]:
        """Return a ReadResourceResult. Raises MCPError, with code `not_found` for what the principal cannot see."""
        source, _, rest = uri.removeprefix(SKILL_URI).partition("/")
        root = f"{SKILL_URI}{source}/{rest.partition('/')[0]}/"
        path = unquote(rest.partition("/")[2])
        found = next((each for each in self._all(principal) if each.root == root), None)
        # Checked against the pinned list, not the disk: a path that leads elsewhere is in no list.
        if found is None or len(uri) > _URI_MAX_CHARS or all(path != each[0] for each in found.listing.files):
            raise _unknown(uri, not_found)
        call = self._calling.call(context, principal, session_id, found.spec.name, {"resource": path})
        answer = await invoke(self._engine.invoker, call, context)
        assert isinstance(answer, ToolResult)  # no dry run was asked for
        if answer.error is not None:
            code = not_found if answer.error.kind is ErrorKind.NOT_FOUND else INTERNAL_ERROR
            raise MCPError(
                code, f"{answer.error.kind.value}: {answer.error.message}", error_to_dict(answer.error)["_meta"]
            )
        return {
            "contents": [await _contents(uri, path, answer, read)],
            "ttlMs": 0,
            "cacheScope": "private",
            "resultType": "complete",
        }

    def _all(self, principal: Principal) -> Iterator[Served]:
        for spec in self._engine.catalog.all():
            listing = spec.skill
            if listing is not None and self._offer.may_see(principal, spec) and _is_servable(listing):
                yield Served(f"{SKILL_URI}{spec.source}/{listing.frontmatter['name']}/", spec, listing)


def _is_servable(listing: SkillListing) -> bool:
    """Return whether the extension's naming rules and limits hold; otherwise it can only be read as a tool."""
    name = listing.frontmatter.get("name")
    description = listing.frontmatter.get("description")
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and isinstance(description, str)
        and any(path == _MAIN for path, _, _ in listing.files)
        and len(listing.files) <= _FILES_MAX
        and sum(size_bytes for _, _, size_bytes in listing.files) <= _SKILL_MAX_BYTES
    )


async def _contents(uri: str, path: str, answer: ToolResult, read: Read) -> dict[str, Any]:
    value: Any = answer.value
    media_type = (
        "text/markdown" if path.endswith(".md") else mimetypes.guess_type(path)[0] or "application/octet-stream"
    )
    named = {"uri": uri, "mimeType": media_type}
    if isinstance(value.get("text"), str):
        return {**named, "text": value["text"]}
    if isinstance(value.get("artifact"), str):
        (contents,) = (await read(ARTIFACT_URI + value["artifact"]))["contents"]
        return {**contents, **named}
    raise MCPError(
        INTERNAL_ERROR, f"The file could not be kept: {value.get('dropped', 'it has no text')}.", {"uri": uri}
    )


def _unknown(uri: str, code: int) -> MCPError:
    return MCPError(
        code, f"There is no such skill or file. skills/list has those of this hub ({SKILL_URI}…).", {"uri": uri}
    )
