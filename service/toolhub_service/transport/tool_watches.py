"""Watches of the catalog: one listener for the whole process, fanned out in memory.

A watch keeps what a tool was when it was sent last and what it is now, and nothing between: a slow watcher costs
memory for the tools it lags behind with, not for their changes, and for at most a thousand tools. Beyond that it is
asked to read the catalog again, which costs it one snapshot and the hub nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import NamedTuple, Self

from toolhub.v1 import registry_service_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.transport.convert.tool import from_spec, is_full
from toolhub_service.transport.discovery import Discovery, check_filter, is_operator
from toolhub_service.transport.page_tokens import PAGE_MAX_BYTES
from toolhub_service.transport.status import RpcFailure

CHANGES_MAX = 1_000
"""Changed tools kept for one watcher; beyond them it is asked to read the catalog again."""


class Step(NamedTuple):
    """The change of one tool since the watcher was last sent it."""

    before: ToolSpec | None
    """None: the tool did not exist."""
    now: ToolSpec | None
    """None: the tool is gone."""


Sees = Callable[[ToolSpec], bool]


class ToolWatches:
    """Subscribes to the catalog once and passes each change to every watch."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog
        self._watches: set[ToolWatch] = set()
        self._closed = False
        self._stop = catalog.subscribe(self._on_change)

    @property
    def watchers(self) -> int:
        return len(self._watches)

    def watch(self) -> ToolWatch:
        """Follow the catalog from now on; the watch must be closed. Raises RpcFailure UNAVAILABLE when the hub is
        shutting down."""
        if self._closed:
            raise _draining()
        watch = ToolWatch(self._watches.discard)
        self._watches.add(watch)
        return watch

    async def messages(
        self, request: registry_service_pb2.WatchToolsRequest, principal: Principal, *, full: bool
    ) -> AsyncGenerator[registry_service_pb2.WatchToolsResponse, None]:
        """Yield the messages of an operator's watch: the revision at once, then every change it may see. Raises
        RpcFailure UNAVAILABLE."""
        sees = None if principal.tenancy is None else lambda spec: principal.may_know_source(spec.source)
        with self.watch() as watch:
            revision = self._catalog.revision
            yield registry_service_pb2.WatchToolsResponse(revision=revision, reset=request.known_revision != revision)
            while True:
                steps = await watch.next()
                if steps and sees is not None:
                    steps = [(name, seen) for name, step in steps if (seen := _step_for_caller(step, sees)) != _UNSEEN]
                if steps == []:
                    continue  # all of it was undone before it was sent, or belongs to others
                yield _message(self._catalog.revision, steps, full=full)

    async def visible(
        self, request: pb.ToolServiceWatchToolsRequest, discovery: Discovery, principal: Principal
    ) -> AsyncGenerator[pb.ToolServiceWatchToolsResponse, None]:
        """Yield the messages of a principal's watch: the token of its visible tools at once, then their changes. Raises
        RpcFailure UNAVAILABLE, and HubFailure as `Discovery.list_tools` does."""
        where = check_filter(request.filter, principal).compile()
        full = is_full(request.view, default=False)
        shows = partial(from_spec, full=full, for_operator=is_operator(principal))

        def sees(spec: ToolSpec) -> bool:
            return where(spec) and discovery.policy.could_allow(principal, spec)

        def message(steps: list[tuple[str, Step]] | None) -> pb.ToolServiceWatchToolsResponse:
            revision = self._catalog.revision
            token = f"{revision[:16]}.{discovery.policy.revision[:16]}"
            response = pb.ToolServiceWatchToolsResponse(revision=revision, resume_token=token, reset=steps is None)
            seen = ((name, _step_for_caller(step, sees)) for name, step in steps or ())
            response.changes.extend(_change(name, step, shows) for name, step in seen if step != _UNSEEN)
            if response.ByteSize() > PAGE_MAX_BYTES:
                del response.changes[:]
                response.reset = True
            return response

        with self.watch() as watch:
            first = message([])
            first.reset = request.resume_token != first.resume_token
            yield first
            while True:
                response = message(await watch.next())
                if response.reset or response.changes:
                    yield response

    def reset(self) -> None:
        """Called when the policy has changed: watchers of visible tools must read them again."""
        for watch in self._watches:
            watch.overflow()

    def close(self) -> None:
        """End every watch with a status that asks the client to reconnect: the hub is shutting down."""
        if not self._closed:
            self._closed = True
            self._stop()
        for watch in self._watches:
            watch.end()

    def _on_change(self, change: CatalogChange) -> None:
        for watch in self._watches:
            watch.offer(change)


class ToolWatch:
    """One watch."""

    def __init__(self, closed: Callable[[ToolWatch], None]) -> None:
        self._closed = closed
        self._changes: dict[str, Step] = {}
        self._overflowed = False
        self._ended = False
        self._wake = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed(self)

    def offer(self, change: CatalogChange) -> None:
        """Add the changes of one batch."""
        if self._overflowed:
            return
        for spec in change.added:
            self._put(spec.name, None, spec)
        for spec, before in zip(change.changed, change.replaced, strict=True):
            self._put(spec.name, before, spec)
        for spec in change.removed:
            self._put(spec.name, spec, None)
        if len(self._changes) > CHANGES_MAX:
            self.overflow()
        self._wake.set()

    def overflow(self) -> None:
        """Ask the watcher to read the catalog again."""
        self._changes.clear()
        self._overflowed = True
        self._wake.set()

    def end(self) -> None:
        """End the watch with DRAINING."""
        self._ended = True
        self._wake.set()

    async def next(self) -> list[tuple[str, Step]] | None:
        """Return the changes by tool name; None when there were more than are kept. Raises RpcFailure when the hub is
        shutting down."""
        await self._wake.wait()
        if self._ended:
            raise _draining()
        self._wake.clear()
        if self._overflowed:
            self._overflowed = False
            return None
        steps = sorted(self._changes.items())
        self._changes = {}
        return steps

    def _put(self, name: str, before: ToolSpec | None, now: ToolSpec | None) -> None:
        earlier = self._changes.pop(name, None)
        step = Step(earlier.before if earlier else before, now)
        if step != _UNSEEN:  # else it appeared and disappeared before it was sent
            self._changes[name] = step


_UNSEEN = Step(None, None)


def _step_for_caller(step: Step, sees: Sees) -> Step:
    """Return the step as a caller sees it who does not see all tools."""
    before, now = step
    return Step(before if before and sees(before) else None, now if now and sees(now) else None)


def _message(
    revision: str, steps: list[tuple[str, Step]] | None, *, full: bool
) -> registry_service_pb2.WatchToolsResponse:
    if steps is not None:
        changes = [_change(name, step, partial(from_spec, full=full)) for name, step in steps]
        message = registry_service_pb2.WatchToolsResponse(revision=revision, changes=changes)
        if message.ByteSize() <= PAGE_MAX_BYTES:
            return message
    return registry_service_pb2.WatchToolsResponse(revision=revision, reset=True)


def _change(name: str, step: Step, shows: Callable[[ToolSpec], tool_pb2.ToolSpec]) -> registry_service_pb2.ToolChange:
    if step.now is None:
        return registry_service_pb2.ToolChange(type=registry_service_pb2.TOOL_CHANGE_TYPE_REMOVED, name=name)
    type = registry_service_pb2.TOOL_CHANGE_TYPE_CHANGED if step.before else registry_service_pb2.TOOL_CHANGE_TYPE_ADDED
    return registry_service_pb2.ToolChange(type=type, name=name, tool=shows(step.now))


def _draining() -> RpcFailure:
    return RpcFailure(Reason.DRAINING, "This hub is shutting down. Watch again with the last revision.")
