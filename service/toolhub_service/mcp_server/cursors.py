"""Cursors of MCP's lists, sealed for the caller and the list: any other cursor is refused."""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from toolhub_service.domain.call import Principal
from toolhub_service.runtime.page_seal import PageSeal


class Cursors:
    def __init__(self, key: bytes) -> None:
        """`key`: the same in all processes of one address."""
        self._seal = PageSeal(key)

    def open(self, cursor: str | None, principal: Principal, listed: str) -> str:
        """Return where the page begins; empty: at the beginning. Raises MCPError for a cursor that this caller did not
        get for this list."""
        place = self._seal.open(cursor or "", principal.id, f"mcp {listed}")
        if place is None:
            raise MCPError(INVALID_PARAMS, "The cursor is none of this list. Begin without one.")
        return place

    def seal(self, page: dict[str, Any], principal: Principal, listed: str) -> dict[str, Any]:
        """Return the page with its cursor sealed; one without is the last."""
        place = page.get("nextCursor")
        return page if place is None else page | {"nextCursor": self._seal.seal(place, principal.id, f"mcp {listed}")}
