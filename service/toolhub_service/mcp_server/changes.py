"""Notifies clients of changes, by `list_changed` and `resources/updated`: at most twice a second."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from toolhub_service.domain.call import Principal
from toolhub_service.domain.tool import Primitive
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.registry.catalog import CatalogChange

_EVERY_S: Final = 0.5
_SEND_S: Final = 1.0
# Most sessions of the older protocol that are notified; beyond that, the oldest are.
_SESSIONS_MAX: Final = 1_000


# Most resources with a pending notification; beyond that, none is added.
_UPDATED_MAX: Final = 10_000
_PROMPTS: Final = frozenset({Primitive.PROMPT})
_RESOURCES: Final = frozenset({Primitive.RESOURCE_LIST, Primitive.RESOURCE_READ})
_ALL: Final = frozenset(Primitive)


class Watch(NamedTuple):
    """One resource that one client watches."""

    source: str
    uri: str
    """The URI that its source uses."""
    shown: str
    """The URI that the client uses."""
    principal: Principal
    tool: str
    """The tool by which the source was asked for it: a caller who may no longer call it is not notified."""


class Changes:
    """Call `start`, then `close`. Notifications carry no changes, because lists differ by caller."""

    def __init__(self, engine: Engine) -> None:
        self.bus = InMemorySubscriptionBus()
        """Listeners of the newer protocol."""
        self._engine = engine
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._watches: dict[str, dict[str, Watch]] = {}
        self._streams: dict[object, tuple[Sequence[Watch], Callable[[ServerEvent], None]]] = {}
        self._lists: set[Primitive] = set()
        self._updated: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None
        self._stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        stops = (
            self._engine.catalog.subscribe(self._on_catalog),
            self._engine.resource_news.subscribe(self._on_resource),
        )

        def stop() -> None:
            for each in stops:
                each()

        self._stop = stop
        self._engine.on_policy(lambda: self._note(_ALL))
        self._telling = asyncio.create_task(self._notify_all(), name="tools/list_changed")

    def close(self) -> None:
        self._stop()
        self._sessions.clear()
        self._watches.clear()
        self._streams.clear()
        if self._telling is not None:
            self._telling.cancel()

    def add_session(self, session_id: str, session: ServerSession) -> None:
        """A client of the older protocol is ready for notifications."""
        self._sessions[session_id] = session
        if len(self._sessions) > _SESSIONS_MAX:
            self.forget(next(iter(self._sessions)))

    def watches_of(self, session_id: str) -> dict[str, Watch]:
        """Return the resources watched by a session of the older protocol, by the client's URIs."""
        return self._watches.setdefault(session_id, {})

    def subscribe(self, watches: Sequence[Watch], listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Notify a stream of the newer protocol of changes of lists, and of these resources.

        Return a function that ends it.
        """
        key = object()
        stop = self.bus.subscribe(listener)
        self._streams[key] = (watches, listener)

        def unsubscribe() -> None:
            stop()
            self._streams.pop(key, None)

        return unsubscribe

    def forget(self, session_id: str) -> None:
        """End a session of the older protocol. Notifying it would not fail, so this would never be noticed."""
        self._sessions.pop(session_id, None)
        self._watches.pop(session_id, None)

    def _on_catalog(self, change: CatalogChange) -> None:
        self._note({spec.primitive for spec in (*change.added, *change.changed, *change.removed)})

    def _on_resource(self, source: str, uri: str) -> None:
        # A source may report faster than clients are notified; beyond the bound its news are dropped, not queued.
        if uri and len(self._updated) < _UPDATED_MAX:
            self._updated.add((source, uri))
            self._changed.set()
        elif not uri:
            self._note(_RESOURCES)

    def _note(self, lists: Iterable[Primitive]) -> None:
        self._lists |= set(lists)
        self._changed.set()

    async def _notify_all(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            # Swapped before anything is awaited: changes while clients are notified go into the next notification.
            lists = self._lists
            self._lists = set()
            updated = self._updated
            self._updated = set()
            events: list[ServerEvent] = []
            if Primitive.TOOL in lists:
                events.append(ToolsListChanged())
            if lists & _PROMPTS:
                events.append(PromptsListChanged())
            if lists & _RESOURCES:
                events.append(ResourcesListChanged())
            for event in events:
                await self.bus.publish(event)
            # A copy: a stream may end while it is notified.
            for watches, listener in tuple(self._streams.values()):
                for shown in self._updated_uris(watches, updated):
                    listener(ResourceUpdated(uri=shown))
            for session_id, session in list(self._sessions.items()):
                shown_here = self._updated_uris(self._watches.get(session_id, {}).values(), updated)
                if not await _notify_session(session, events, shown_here):
                    self.forget(session_id)
            # After notifying, so that the first change is sent at once and only later ones are collected.
            await asyncio.sleep(_EVERY_S)

    def _updated_uris(self, watches: Iterable[Watch], updated: set[tuple[str, str]]) -> list[str]:
        """Return the URIs that a client is notified of."""
        return [watch.shown for watch in watches if self._may_know(watch) and _is_updated(watch, updated)]

    def _may_know(self, watch: Watch) -> bool:
        spec = self._engine.catalog.get(watch.tool)
        return spec is not None and self._engine.policy.could_allow(watch.principal, spec)


def _is_updated(watch: Watch, updated: set[tuple[str, str]]) -> bool:
    """A source may name a part of what was requested (2025-11-25, resources, subscriptions)."""
    if (watch.source, watch.uri) in updated:
        return True
    root = f"{watch.uri.rstrip('/')}/"
    return any(source == watch.source and uri.startswith(root) for source, uri in updated)


async def _notify_session(session: ServerSession, events: Sequence[ServerEvent], updated: Sequence[str]) -> bool:
    """Return whether it accepted: a session that has ended, or accepts nothing, is no longer notified."""
    try:
        async with asyncio.timeout(_SEND_S):
            for event in events:
                if isinstance(event, ToolsListChanged):
                    await session.send_tool_list_changed()
                elif isinstance(event, PromptsListChanged):
                    await session.send_prompt_list_changed()
                else:
                    await session.send_resource_list_changed()
            for uri in updated:
                await session.send_resource_updated(uri)
    except Exception:  # noqa: BLE001
        return False
    return True
