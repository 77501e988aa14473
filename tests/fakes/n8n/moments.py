"""Times as n8n writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def iso(after_s: float = 0.0) -> str:
    """Now, or so many seconds later: `2026-11-21T20:55:20.334Z`."""
    moment = datetime.now(UTC) + timedelta(seconds=after_s)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000)
