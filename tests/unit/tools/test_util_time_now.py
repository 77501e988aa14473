from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.util_context import bare_context, called, refused
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.tools.util_tools import TimeNow


class FixedClock:
    def monotonic_s(self) -> float:
        return 0.0

    def unix_ms(self) -> int:
        return 1_767_225_600_123  # 2026-01-01T00:00:00.123Z


@pytest.mark.parametrize(
    ("arguments", "iso", "zone"),
    [
        ({}, "2026-01-01T00:00:00.123+00:00", "UTC"),
        ({"timezone": "Europe/Berlin"}, "2026-01-01T01:00:00.123+01:00", "Europe/Berlin"),
        ({"timezone": "Asia/Kathmandu"}, "2026-01-01T05:45:00.123+05:45", "Asia/Kathmandu"),
        ({"timezone": "America/New_York"}, "2025-12-31T19:00:00.123-05:00", "America/New_York"),
    ],
)
async def test_the_tool_returns_the_time_of_the_clock_in_the_zone(arguments: Any, iso: str, zone: str) -> None:
    context = bare_context()
    result = await called(TimeNow(FixedClock()), context, **arguments)
    assert result == {"iso": iso, "epochMs": 1_767_225_600_123, "timezone": zone}
    assert len(context.evidence) == 1


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Europe/Berlln", "Europe/Berlin"),
        ("kathmandu", "Asia/Kathmandu"),
    ],
)
async def test_an_unknown_zone_is_answered_with_near_names(name: str, near: str) -> None:
    error = await refused(TimeNow(FixedClock()), timezone=name)
    assert error.kind is ErrorKind.INVALID_INPUT
    assert near in str(error.details["near"])


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/localtime", "Europe/../Europe/Berlin", "Europe", "a\0b", "😀"]
)
async def test_a_zone_name_is_never_used_as_a_path(name: str) -> None:
    assert (await refused(TimeNow(FixedClock()), timezone=name)).kind is ErrorKind.INVALID_INPUT
