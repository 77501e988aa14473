"""Disk work that may take long, in a thread, so that other calls go on.

Cancelling waits until the thread has noticed it (between two chunks): a thread that outlived its call would use
descriptors that are closed and may have been reused.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from typing import TypeVar, cast

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Progress

INLINE_BYTES = 128 * 1024
"""Up to this size reading, hashing or writing costs less than a thread."""
LONG_BYTES = 64 * 1024 * 1024
"""From this size work waits for one of few threads of its own, because it would occupy a shared thread for seconds."""
_REPORT_EVERY_S = 0.1

T = TypeVar("T")


async def to_thread(work: Callable[[threading.Event], T], executor: Executor | None = None) -> T:
    """Run `work(stop)` in a thread. When this is cancelled `stop` is set and the thread awaited, if it has begun."""
    stop, has_begun = threading.Event(), threading.Event()

    def begin() -> T | None:
        has_begun.set()
        return None if stop.is_set() else work(stop)

    thread = asyncio.get_running_loop().run_in_executor(executor, begin)
    try:
        return cast(T, await asyncio.shield(thread))
    except asyncio.CancelledError:
        stop.set()
        while has_begun.is_set() and not thread.done():
            try:
                await asyncio.wait({thread})
            except asyncio.CancelledError:
                continue  # raised below, once the thread has ended
        # A second cancellation must wait too: the thread still uses descriptors that the caller closes.
        if thread.done() and not thread.cancelled():
            thread.exception()  # retrieved, so that asyncio does not report it as lost
        raise


async def to_thread_if_large(size_bytes: int, work: Callable[[threading.Event | None], T]) -> T:
    """Run small work at once, where a thread would cost more than it frees, else as `to_thread` does."""
    if size_bytes <= INLINE_BYTES:
        return work(None)
    return await to_thread(work, _long_work() if size_bytes >= LONG_BYTES else None)


@cache
def _long_work() -> Executor:
    """Return threads for half of the processors: hashing releases the interpreter's lock, and served calls need the
    others."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), thread_name_prefix="long-work")


def raise_if_cancelled(stop: threading.Event | None) -> None:
    """Call this between chunks of work. Raises ToolFailure CANCELLED when `stop` is set."""
    if stop is not None and stop.is_set():
        raise refuse(ErrorKind.CANCELLED, "The call was cancelled before it was done.")


class ByteProgress:
    """Reports bytes done from a thread to a sink on the loop, at most ten times a second."""

    def __init__(self, sink: EventSink, total_bytes: int, *, every_s: float = _REPORT_EVERY_S) -> None:
        """Must be made on the loop."""
        self._every_s = every_s
        self._sink = sink
        self._total_bytes = total_bytes
        self._loop = asyncio.get_running_loop()
        self._done_bytes = 0
        self._reported: Progress | None = None
        self._reported_at_s = time.monotonic()

    def advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        now_s = time.monotonic()
        if now_s - self._reported_at_s >= self._every_s:
            self._reported_at_s = now_s
            self._report()

    def finish(self) -> None:
        """Report the end; no report is sent twice."""
        self._total_bytes = self._done_bytes
        self._report()

    def _report(self) -> None:
        progress = Progress(step=self._done_bytes, total=max(self._total_bytes, self._done_bytes), unit="bytes")
        if progress != self._reported:
            self._reported = progress
            # The sink belongs to the loop; the bytes are counted in a thread.
            self._loop.call_soon_threadsafe(self._sink.progress, progress)
