"""Following the catalog: one listener for the whole process, fanned out in memory.

A watch keeps what a tool was when it was told last and what it is now, and nothing between: a slow watcher costs memory
for the tools it lags behind with, not for their changes, and for a thousand of those at most. Beyond, it is told to
read the catalog again, which costs it one snapshot and the hub nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Self

from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.domain.reasons import Reason
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.transport.convert.tool import from_spec
from toolhub_service.transport.status import RpcFailure

CHANGES_MAX = 1_000
"""Tools of which a watcher may not have heard."""
_MESSAGE_MAX_BYTES = 2 * 1024 * 1024
"""Half of what a client takes by default."""


class Step(NamedTuple):
    """From what a watcher knows of a tool to what it is."""

    was_there: bool
    now: ToolSpec | None
    """None: it is gone."""


class ToolNews:
    """Hears of every change of the catalog and tells whoever watches."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog
        self._tails: set[ToolTail] = set()
        self._closed = False
        self._stop = catalog.subscribe(self._heard)

    @property
    def watchers(self) -> int:
        return len(self._tails)

    def watch(self) -> ToolTail:
        """Follow the catalog from now on; to be closed. Raises RpcFailure UNAVAILABLE when the hub is leaving."""
        if self._closed:
            raise _leaving()
        tail = ToolTail(self._tails.discard)
        self._tails.add(tail)
        return tail

    async def told(self, request: pb.WatchToolsRequest, *, full: bool) -> AsyncGenerator[pb.WatchToolsResponse, None]:
        """The messages of one watch: the revision at once, then what changes. Raises RpcFailure UNAVAILABLE."""
        with self.watch() as tail:
            revision = self._catalog.revision
            yield pb.WatchToolsResponse(revision=revision, reset=request.known_revision != revision)
            while True:
                steps = await tail.next()
                if steps == []:
                    continue  # all of it was undone before it was told
                yield _message(self._catalog.revision, steps, full=full)

    def close(self) -> None:
        """The hub is leaving: every watch ends, with a status that says to come again."""
        if not self._closed:
            self._closed = True
            self._stop()
        for tail in self._tails:
            tail.end()

    def _heard(self, change: CatalogChange) -> None:
        for tail in self._tails:
            tail.offer(change)


class ToolTail:
    """One watch."""

    def __init__(self, closed: Callable[[ToolTail], None]) -> None:
        self._closed = closed
        self._waiting: dict[str, Step] = {}
        self._lost = False
        self._ended = False
        self._news = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed(self)

    def offer(self, change: CatalogChange) -> None:
        """What one batch did."""
        if self._lost:
            return
        for spec in change.added:
            self._put(spec.name, False, spec)
        for spec in change.changed:
            self._put(spec.name, True, spec)
        for spec in change.removed:
            self._put(spec.name, True, None)
        if len(self._waiting) > CHANGES_MAX:
            self._waiting.clear()
            self._lost = True
        self._news.set()

    def end(self) -> None:
        """Tell nothing more but that the hub is leaving."""
        self._ended = True
        self._news.set()

    async def next(self) -> list[tuple[str, Step]] | None:
        """What has changed, by name; None: more than is kept. Raises RpcFailure when the hub is leaving."""
        await self._news.wait()
        if self._ended:
            raise _leaving()
        self._news.clear()
        if self._lost:
            self._lost = False
            return None
        steps, self._waiting = sorted(self._waiting.items()), {}
        return steps

    def _put(self, name: str, was_there: bool, now: ToolSpec | None) -> None:
        waiting = self._waiting.pop(name, None)
        step = Step(waiting.was_there if waiting else was_there, now)
        if step.was_there or now is not None:  # else it came and went before it was told
            self._waiting[name] = step


def _message(revision: str, steps: list[tuple[str, Step]] | None, *, full: bool) -> pb.WatchToolsResponse:
    if steps is not None:
        changes = [_change(name, step, full=full) for name, step in steps]
        message = pb.WatchToolsResponse(revision=revision, changes=changes)
        if message.ByteSize() <= _MESSAGE_MAX_BYTES:
            return message
    return pb.WatchToolsResponse(revision=revision, reset=True)


def _change(name: str, step: Step, *, full: bool) -> pb.ToolChange:
    if step.now is None:
        return pb.ToolChange(type=pb.TOOL_CHANGE_TYPE_REMOVED, name=name)
    type = pb.TOOL_CHANGE_TYPE_CHANGED if step.was_there else pb.TOOL_CHANGE_TYPE_ADDED
    return pb.ToolChange(type=type, name=name, tool=from_spec(step.now, full=full))


def _leaving() -> RpcFailure:
    return RpcFailure(
        Reason.DRAINING,
        "This hub is leaving; watch again, with the last revision.",
        retry_after_s=0.5,
    )
