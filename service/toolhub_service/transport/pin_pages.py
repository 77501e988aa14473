"""Pins as operators read and decide them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from toolhub.v1 import pin_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.source_ports import SourceDesk
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.transport.convert.pin import from_pin, from_whole_pin, is_approval, to_pin_filter
from toolhub_service.transport.convert.tool import from_spec
from toolhub_service.transport.page_tokens import read_pin_cursor, write_pin_cursor

_PAGE_DEFAULT = 100
_PAGE_MAX = 1_000
_WHOLE_PAGE_MAX = 100
_WHOLE_PAGE_BYTES = 2 * 1024 * 1024
"""After which a page of whole pins ends, so that it fits the 4 MiB a client takes by default."""


@dataclass(frozen=True, slots=True)
class PinPages:
    desk: SourceDesk
    catalog: ToolCatalog

    async def page(self, request: pb.ListPinsRequest) -> pb.ListPinsResponse:
        """Newest first. Raises HubFailure INVALID_ARGUMENT for a token that the hub did not make."""
        whole = request.view == tool_pb2.TOOL_VIEW_FULL
        limit = min(request.page_size or _PAGE_DEFAULT, _WHOLE_PAGE_MAX if whole else _PAGE_MAX)
        after = read_pin_cursor(request.page_token)
        found, total = await self.desk.pins(to_pin_filter(request), after=after, limit=limit + 1)
        shown = await self._whole(found[:limit]) if whole else [from_pin(pin) for pin in found[:limit]]
        return pb.ListPinsResponse(
            pins=shown,
            next_page_token=_cursor(found[len(shown) - 1]) if len(shown) < len(found) else "",
            total_size=total,
        )

    async def decided(self, request: pb.DecidePinRequest, *, by: str) -> pb.DecidePinResponse:
        """Raises HubFailure NOT_FOUND, or ToolFailure when the pins cannot be reached."""
        pin = await self.desk.decide(
            request.source,
            request.tool,
            request.digest,
            approve=is_approval(request.decision),
            by=by,
            comment=request.comment,
        )
        message = from_whole_pin(pin, await self.desk.approved(pin))
        spec = self.catalog.get(pin.tool)
        if spec is not None:
            message.tool_spec.CopyFrom(from_spec(spec, full=True))
        return pb.DecidePinResponse(pin=message, revision=self.catalog.revision)

    async def _whole(self, pins: Sequence[Pin]) -> list[pin_pb2.Pin]:
        """As many from the beginning as a page holds, one at least."""
        shown: list[pin_pb2.Pin] = []
        size = 0
        for pin in pins:
            message = from_whole_pin(pin, await self.desk.approved(pin))
            size += message.ByteSize()
            if shown and size > _WHOLE_PAGE_BYTES:
                break
            shown.append(message)
            await asyncio.sleep(0)  # a difference takes milliseconds; calls go between two of them
        return shown


def _cursor(last: Pin) -> str:
    return write_pin_cursor((last.seen_at_unix_ms, last.source, last.tool, last.digest))
