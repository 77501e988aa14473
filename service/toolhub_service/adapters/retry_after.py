"""How long a server wishes to be left alone (RFC 9110 §10.2.3), within reason."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_S: Final = 3_600.0
"""Nobody is kept waiting for longer by one header."""


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, in either of its forms; 0 when it says nothing readable."""
    if not header:
        return 0.0
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), LONGEST_S)
    except (TypeError, ValueError, OverflowError):
        return 0.0
