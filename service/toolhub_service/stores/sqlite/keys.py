"""Idempotency keys in the hub's own file, shared by its processes: a claim is on disk before its call may run.

Triggers count keys and bytes, which are bounded, with a share for each principal (`may_take`): when full, the store
refuses new keys and never drops one before it expires. A waiter is woken at once by its own process, and by a read of
the file after another one has committed; one read serves all waiters, and only while there are any.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.key import EffectKey, KeyRecord, full, refuse_key_share
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.shares import may_take
from toolhub_service.stores.codec import decode_key_record, encode_key_record
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.writer import Change, one_by_one

# The waiters of this process by the claim they wait for, and the one read of the file that serves all of them.

_HELD = (
    "SELECT record FROM keys WHERE principal = ? AND tool = ? AND key = ? AND owner = ? AND settled = 0 "
    "AND expires_at_unix_ms > ?"
)


class Waiting:
    """Implements `Watch`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        # By key: the events to set, each with the owner of the claim that it waits for.
        self._events: dict[EffectKey, dict[asyncio.Event, str]] = {}

    @contextmanager
    def on(self, key: EffectKey, owner: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the claim may have ended; check it then."""
        event = asyncio.Event()
        if not self._events:
            self._file.watch(self)
        self._events.setdefault(key, {})[event] = owner
        try:
            yield event
        finally:
            self._leave(key, event)

    def note_change(self, key: EffectKey) -> None:
        """Note that this process has ended or replaced the claim on the key."""
        for event in self._events.get(key, ()):
            event.set()

    def after_commits(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        if not foreign:
            return None
        waiting = {(key, owner) for key, events in list(self._events.items()) for owner in list(events.values())}
        over = {key for key, owner in waiting if held_record(connection, key, owner, 0) is None}
        return partial(self._wake, over) if over else None

    def _wake(self, keys: Iterable[EffectKey]) -> None:
        for key in keys:
            self.note_change(key)

    def _leave(self, key: EffectKey, event: asyncio.Event) -> None:
        events = self._events[key]
        del events[event]
        if not events:
            del self._events[key]
        if not self._events:
            self._file.unwatch(self)


def held_record(connection: sqlite3.Connection, key: EffectKey, owner: str, now_unix_ms: int) -> bytes | None:
    """Return the record of the owner's claim if that has no result yet and has not expired."""
    row = connection.execute(_HELD, (*key, owner, now_unix_ms)).fetchone()
    return None if row is None else row[0]


# About the size of a record without its result.
_RECORD_BYTES: Final = 2_048
# Most expired records that a group of claims removes: more than it adds, in the long run.
_EXPIRED_AT_ONCE: Final = 100
_SCOPE: Final = "principal = ? AND tool = ? AND key = ?"
_PUT: Final = """
    INSERT INTO keys VALUES (?, ?, ?, ?, 0, ?, ?, ?) ON CONFLICT (principal, tool, key) DO UPDATE SET
    owner = excluded.owner, settled = 0, expires_at_unix_ms = excluded.expires_at_unix_ms,
    size_bytes = excluded.size_bytes, record = excluded.record"""
_OWN: Final = "SELECT keys, size_bytes FROM key_usage_of WHERE principal = ?"
_SETTLE: Final = f"UPDATE keys SET settled = 1, expires_at_unix_ms = ?, size_bytes = ?, record = ? WHERE {_SCOPE}"  # noqa: S608 — fixed text


class _Claim(NamedTuple):
    key: EffectKey
    record: KeyRecord
    replacing: str
    now_unix_ms: int


class _End(NamedTuple):
    """The end of a claim: settled with a result, or released without one."""

    key: EffectKey
    owner: str
    now_unix_ms: int
    result: ToolResult | None = None
    expires_at_unix_ms: int = 0


class SqliteKeys:
    """Implements `KeyStore`. The file is started before and closed after it."""

    def __init__(
        self, file: SqliteFile, clock: Clock, *, max_keys: int = 100_000, max_bytes: int = 256 * 1024 * 1024
    ) -> None:
        """`max_bytes` bounds the size of stored results, as they are written."""
        self._file = file
        self._clock = clock
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._waiting = Waiting(file)
        self._claiming: Change[_Claim, KeyRecord | None] = Change(self._claim_all)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        existing = await self._file.change(self._claiming, _Claim(key, record, replacing, self._clock.unix_ms()))
        if existing is None and replacing:
            self._waiting.note_change(key)
        return existing

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        return await self._end(_End(key, owner, self._clock.unix_ms(), result, expires_at_unix_ms))

    async def release(self, key: EffectKey, owner: str) -> bool:
        return await self._end(_End(key, owner, self._clock.unix_ms()))

    async def wait_for_end(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        with self._waiting.on(key, owner) as changed:
            try:
                async with asyncio.timeout(timeout_s):
                    while await self._runs(key, owner):
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                return not await self._runs(key, owner)
        return True

    async def _end(self, end: _End) -> bool:
        done = await self._file.change(_ENDING, end)
        if done:
            self._waiting.note_change(end.key)
        return done

    async def _runs(self, key: EffectKey, owner: str) -> bool:
        """Return whether the owner's claim still holds."""
        find = partial(held_record, key=key, owner=owner, now_unix_ms=self._clock.unix_ms())
        return await self._file.read(find) is not None

    def _claim_all(self, connection: sqlite3.Connection, claims: Sequence[_Claim]) -> list[Any]:
        now_unix_ms = max(claim.now_unix_ms for claim in claims)
        connection.execute(
            "DELETE FROM keys WHERE rowid IN (SELECT rowid FROM keys WHERE expires_at_unix_ms <= ? LIMIT ?)",
            (now_unix_ms, _EXPIRED_AT_ONCE + len(claims)),
        )
        return [self._claim(connection, claim) for claim in claims]

    def _claim(self, connection: sqlite3.Connection, claim: _Claim) -> KeyRecord | None | ToolFailure:
        row = connection.execute(
            f"SELECT owner, settled, expires_at_unix_ms, record FROM keys WHERE {_SCOPE}",  # noqa: S608 — fixed text
            claim.key,
        ).fetchone()
        if row is not None:
            owner, settled, expires_at_unix_ms, record = row
            if expires_at_unix_ms > claim.now_unix_ms and (settled or owner != claim.replacing):
                return decode_key_record(record)
        elif (refused := self._check_room(connection, claim)) is not None:
            return refused
        record = encode_key_record(claim.record)
        connection.execute(
            _PUT,
            (*claim.key, claim.record.owner, claim.record.expires_at_unix_ms, _RECORD_BYTES, record),
        )
        return None

    def _check_room(self, connection: sqlite3.Connection, claim: _Claim) -> ToolFailure | None:
        """Return why there is no room for one more key; None if there is."""
        keys, size_bytes = connection.execute("SELECT keys, size_bytes FROM key_usage").fetchone()
        is_full = keys >= self._max_keys or size_bytes >= self._max_bytes
        own_keys, own_bytes = connection.execute(_OWN, (claim.key.principal,)).fetchone() or (0, 0)
        has_share = may_take(own_keys, keys, self._max_keys) and may_take(own_bytes, size_bytes, self._max_bytes)
        if has_share and not is_full:
            return None
        (first,) = connection.execute("SELECT min(expires_at_unix_ms) FROM keys").fetchone()
        room_in_ms = (first or claim.now_unix_ms) - claim.now_unix_ms
        return full(room_in_ms) if is_full else refuse_key_share(room_in_ms)


def _end(connection: sqlite3.Connection, end: _End) -> bool:
    held = held_record(connection, end.key, end.owner, end.now_unix_ms)
    if held is None:
        return False
    if end.result is None:
        connection.execute(f"DELETE FROM keys WHERE {_SCOPE}", end.key)  # noqa: S608 — fixed text
        return True
    settled = replace(decode_key_record(held), result=end.result, expires_at_unix_ms=end.expires_at_unix_ms)
    record = encode_key_record(settled)
    connection.execute(_SETTLE, (end.expires_at_unix_ms, _RECORD_BYTES + len(record), record, *end.key))
    return True


_ENDING: Final[Change[_End, bool]] = Change(one_by_one(_end))
