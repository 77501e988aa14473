"""core/util.time.now: the time, in any time zone. The cheapest tool there is."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Meta

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class TimeNow(Tool["TimeNow.In", "TimeNow.Out"]):
    name = "core/util.time.now"
    description = (
        "Tell the current date and time: ISO 8601 with offset, milliseconds since 1970 (UTC) and the time zone. "
        "Use it instead of guessing today's date."
    )
    tags = ("time", "date", "clock", "timezone", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (
        Example("Now in UTC", {}),
        Example("Now in Berlin", {"timezone": "Europe/Berlin"}),
    )

    class In(ToolInput, frozen=True):
        timezone: Annotated[str, Meta(description="IANA name, such as Europe/Berlin.", min_length=1, max_length=64)] = (
            "UTC"
        )

    class Out(ToolOutput, frozen=True):
        iso: str
        epoch_ms: int
        timezone: str

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names = frozenset(available_timezones() | {"UTC"})
        self._zones: dict[str, tzinfo] = {"UTC": UTC}

    async def run(self, args: TimeNow.In, context: ToolContext) -> TimeNow.Out:
        zone = self._zones.get(args.timezone) or self._load(args.timezone)
        now_ms = self._clock.unix_ms()
        iso = datetime.fromtimestamp(now_ms / 1000, zone).isoformat(timespec="milliseconds")
        context.proves(EvidenceType.METRIC, "clock", f"The hub's clock said {iso}.")
        return self.Out(iso=iso, epoch_ms=now_ms, timezone=args.timezone)

    def _load(self, name: str) -> tzinfo:
        """Only known names reach the file system; each is read once."""
        if name not in self._names:
            raise _unknown(name, self._names)
        self._zones[name] = zone = ZoneInfo(name)
        return zone


def _unknown(name: str, names: frozenset[str]) -> ToolFailure:
    by_last_part = {known.rpartition("/")[2].casefold(): known for known in sorted(names)}
    near = [by_last_part[name.casefold()]] if name.casefold() in by_last_part else []
    near += [known for known in difflib.get_close_matches(name, sorted(names), n=5) if known not in near]
    return refuse(
        ErrorKind.INVALID_INPUT,
        f"{name!r} is not an IANA time zone. Use a name such as {near[0] if near else 'Europe/Berlin'}, or UTC.",
        near=list(near),
    )
