"""A deadline for work that costs nothing where the work never waits.

`asyncio.timeout_at` makes an object, a timer and an entry in the loop's heap for each use, 7 µs a call, and can do
nothing to work that never gives the loop a turn. So the work is begun first, and a timer made only when it has come to
its first wait: from there on it is asyncio's own timeout, in the task that runs the work all along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def within(deadline_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns. Raises TimeoutError when it still waits at the deadline (loop clock)."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    async with asyncio.timeout_at(deadline_s):
        return await _rest(work, awaited)


@coroutine
def _rest(work: Coroutine[Any, Any, Result], awaited: Any) -> Generator[Any, Any, Result]:
    """Hand on to the task what begun work waits for, and to the work what comes of it (PEP 380, by hand)."""
    try:
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - cancellation too is the work's to see
                awaited = work.throw(thrown)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        result: Result = done.value
        return result
