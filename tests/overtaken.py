"""A deadline that passes while work is under way, on a machine however slow.

How long a call takes to begin is the machine's affair. A deadline that was up before it had begun shows nothing of what
the test is about, so another attempt is made with a longer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_ATTEMPTS = 6
_GROWTH = 4.0
_STEPS = 200
"""Of the loop; what needs no thread and no other process waits after fewer."""


async def overtaken(
    attempt: Callable[[float], Awaitable[Result]], began: Callable[[Result], bool], *, first_s: float = 0.2
) -> Result:
    """What `attempt(timeout_s)` came to once its deadline was up after the work had `began`."""
    for number in range(_ATTEMPTS):
        result = await attempt(first_s * _GROWTH**number)
        if began(result):
            return result
    raise AssertionError(f"nothing had begun in time, last {result}")


async def overdue(work: Coroutine[Any, Any, Result], after_s: float) -> Result:
    """The outcome of work when so many seconds pass at once, as soon as it waits; it must run in this loop alone."""
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(work)
    time_s = loop.time
    for _ in range(_STEPS):
        await asyncio.sleep(0)
    loop.time = lambda: time_s() + after_s  # type: ignore[method-assign]
    return await running
