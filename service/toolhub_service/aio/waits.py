"""Waits of one task: for work that must end even if its caller is cancelled, and for work with a deadline.

`asyncio.timeout_at` creates an object, a timer and an entry in the loop's heap for each use, 7 µs a call, and cannot
interrupt work that never yields to the loop. So `until_deadline` starts the work first and creates a timer only at its
first wait: from there on it is asyncio's own timeout, in the task that runs the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shield_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Await the work to its end even when the waiting task is cancelled; that cancellation is dropped."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # The work itself was cancelled, not only the waiting task.
            if task.cancelled():
                raise
    return task.result()


Result = TypeVar("Result")


async def until_deadline(deadline_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the work's result. Raises TimeoutError when it still waits at the deadline (loop clock)."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    async with asyncio.timeout_at(deadline_s):
        return await _delegate(work, awaited)


@coroutine
def _delegate(work: Coroutine[Any, Any, Result], awaited: Any) -> Generator[Any, Any, Result]:
    """Like `yield from work` for work that has started and waits for `awaited` (PEP 380, by hand)."""
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
