"""One MCP server as the adapter calls it and its source reads it: the link, and what is known of its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.shared.inbound import x_mcp_header_map

from toolhub_service.adapters.mcp.link import McpLink
from toolhub_service.adapters.mcp.terms import Elicitation
from toolhub_service.adapters.overrides import Overrides
from toolhub_service.domain.tool import ToolSpec

HeaderMap = Mapping[tuple[str, ...], str]
_MAPS_MAX: Final = 4_096


def _nothing() -> None: ...


@dataclass(slots=True, eq=False)
class McpServer:
    """Shared by `McpAdapter` and `McpToolSource`; one a source."""

    name: str
    """Of the source."""
    link: McpLink
    overrides: Overrides
    elicitation: Elicitation = "decline"
    task_support: dict[str, str] = field(default_factory=dict)
    """By own name: `required` or `optional`, as the last reading brought it; others are not there."""
    has_task_extension: bool = False
    """Whether it may answer any call with a task (2026-07-28)."""
    changed: Callable[[], None] = _nothing
    """To be called when a tool's definition turns out to be another than the one that is known."""
    _header_maps: dict[str, HeaderMap] = field(default_factory=dict)

    def runs_as_task(self, spec: ToolSpec) -> bool:
        """Whether a job of this tool runs as a task of the server."""
        return spec.cost.is_async or self.has_task_extension or spec.resource_id in self.task_support

    def headers_of(self, spec: ToolSpec) -> HeaderMap:
        """Which arguments are mirrored into headers (2026-07-28, `x-mcp-header`); nearly always none."""
        known = self._header_maps.get(spec.digest)
        if known is None:
            if len(self._header_maps) >= _MAPS_MAX:
                self._header_maps.clear()
            schema: Any = spec.input_schema
            known = self._header_maps[spec.digest] = x_mcp_header_map(schema)
        return known
