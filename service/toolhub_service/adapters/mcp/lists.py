"""Reads all pages of a server's lists besides tools (prompts, resources, templates), within limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND

from toolhub_service.adapters.mcp.failures import breakage_in
from toolhub_service.adapters.mcp.link import McpLink, McpSession
from toolhub_service.adapters.upstream import as_number, write_json
from toolhub_service.domain.json import JsonObject, JsonValue

PAGES_MAX: Final = 50
LIST_MAX_BYTES: Final = 8 * 1024 * 1024  # of all entries together, as JSON
CURSOR_MAX_CHARS: Final = 64 * 1024


def count_of(value: JsonValue) -> int | None:
    """Return the value if it is a count that every client can represent, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


class Listed(NamedTuple):
    entries: list[JsonObject]
    """JSON objects, not validated further."""
    is_whole: bool
    """False: a limit was reached, or the pages form a loop."""
    ttl_s: float | None
    """Seconds for which the server declares it valid; None: not declared."""
    error: MCPError | None
    """The error that ended the reading early."""


async def read_list(
    link: McpLink, session: McpSession, method: str, member: str, entries_max: int, timeout_s: float | None = None
) -> Listed:
    """Return the entries in `member` of all pages of `method`. `timeout_s`: per page. Never raises MCPError."""
    entries: list[JsonObject] = []
    cursors: set[str] = set()
    ttl_s: float | None = None
    cursor: str | None = None
    found: object = None
    left_bytes = LIST_MAX_BYTES
    for _ in range(PAGES_MAX):
        try:
            page = await link.send(session, method, {} if cursor is None else {"cursor": cursor}, timeout_s=timeout_s)
        except MCPError as error:
            # Servers declare lists that they do not have; an empty cursor may mean the end.
            if (cursor is None and error.error.code == METHOD_NOT_FOUND) or (cursor == "" and not breakage_in(error)):
                return Listed(entries, True, ttl_s, None)
            return Listed(entries, False, ttl_s, error)
        ttl_s = _shortest(ttl_s, page) if session.is_modern else None
        before, found = found, page.get(member)
        if cursor == "" and found == before:  # the same page again
            return Listed(entries, True, ttl_s, None)
        for entry in found if isinstance(found, list) else ():
            text = write_json(entry)
            if text is None or not isinstance(entry, Mapping):
                continue
            left_bytes -= len(text)
            if len(entries) >= entries_max or left_bytes < 0:
                return Listed(entries, False, ttl_s, None)
            entries.append(entry)
        following = page.get("nextCursor")
        if following is None:
            return Listed(entries, True, ttl_s, None)
        # A repeated cursor would be followed for ever.
        if not isinstance(following, str) or len(following) > CURSOR_MAX_CHARS or following in cursors:
            break
        cursors.add(following)
        cursor = following
    return Listed(entries, False, ttl_s, None)


def _shortest(ttl_s: float | None, page: JsonObject) -> float | None:
    """Return the shortest time to live so far; 0 only forbids copies and is ignored."""
    given_ms = as_number(page.get("ttlMs")) or 0.0
    if given_ms <= 0:
        return ttl_s
    return min(given_ms / 1_000, given_ms / 1_000 if ttl_s is None else ttl_s)
