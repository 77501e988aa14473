"""A deadline that passes while work is under way, on a machine however slow.

How long a call takes to begin is the machine's affair. A deadline that was up before it had begun shows nothing of what
the test is about, so another attempt is made with a longer one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")

_ATTEMPTS = 4
_GROWTH = 4.0


async def overtaken(
    attempt: Callable[[float], Awaitable[Result]], began: Callable[[Result], bool], *, first_s: float = 0.2
) -> Result:
    """What `attempt(timeout_s)` came to once its deadline was up after the work had `began`."""
    for number in range(_ATTEMPTS):
        result = await attempt(first_s * _GROWTH**number)
        if began(result):
            return result
    raise AssertionError(f"nothing had begun in time, last {result}")
