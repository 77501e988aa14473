"""How long a server wishes to be left alone (RFC 9110 §10.2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MAX_S: Final = 3_600.0


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds, where it gives them as a number; else 0. Its dates are not read: clocks differ."""
    said = headers.get("retry-after", "").strip()
    return min(float(said), _MAX_S) if said.isascii() and said.isdigit() and len(said) <= 9 else 0.0
