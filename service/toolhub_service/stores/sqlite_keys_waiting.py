"""Who waits for the end of which claim, in this process, and the one look at the file that is taken for all of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from toolhub_service.domain.key import EffectKey
from toolhub_service.stores.sqlite_file import SqliteFile

_HELD = (
    "SELECT record FROM keys WHERE principal = ? AND tool = ? AND key = ? AND owner = ? AND settled = 0 "
    "AND expires_at_unix_ms > ?"
)


class Waiting:
    """Implements `Watch`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._events: dict[EffectKey, dict[asyncio.Event, str]] = {}
        """Of each key: who is to be woken, and whose claim they wait for."""

    @contextmanager
    def on(self, key: EffectKey, owner: str) -> Iterator[asyncio.Event]:
        """Set whenever the claim may have ended; look then."""
        event = asyncio.Event()
        if not self._events:
            self._file.watch(self)
        self._events.setdefault(key, {})[event] = owner
        try:
            yield event
        finally:
            self._leave(key, event)

    def changed(self, key: EffectKey) -> None:
        """This process has ended or replaced the claim on the key."""
        for event in self._events.get(key, ()):
            event.set()

    def look(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        if not foreign:
            return None
        waiting = {(key, owner) for key, events in list(self._events.items()) for owner in list(events.values())}
        over = {key for key, owner in waiting if held_record(connection, key, owner, 0) is None}
        return partial(self._wake, over) if over else None

    def _wake(self, keys: Iterable[EffectKey]) -> None:
        for key in keys:
            self.changed(key)

    def _leave(self, key: EffectKey, event: asyncio.Event) -> None:
        events = self._events[key]
        del events[event]
        if not events:
            del self._events[key]
        if not self._events:
            self._file.unwatch(self)


def held_record(connection: sqlite3.Connection, key: EffectKey, owner: str, now_unix_ms: int) -> bytes | None:
    """The record of the owner's claim that has no result yet and has not expired."""
    row = connection.execute(_HELD, (*key, owner, now_unix_ms)).fetchone()
    return None if row is None else row[0]
