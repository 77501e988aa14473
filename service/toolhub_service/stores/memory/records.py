"""Records, uses of tools and idempotency keys in the memory of one process: lost with it, and not seen by any other.

No method awaits between a read and a change, so each is one compare-and-set.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.key import EffectKey, KeyRecord, full, share_is_taken
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.source import Pin
from toolhub_service.domain.tool import ToolUse
from toolhub_service.domain.verdict import may_take
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.record_store import (
    APPROVALS,
    ARTIFACTS,
    PINS,
    Approvals,
    Artifacts,
    Key,
    Pins,
    Place,
    Row,
    Table,
    Where,
)

R = TypeVar("R")


class MemoryRecords(Generic[R]):
    """Implements `RecordStore` for any `Table`; shared with no other process."""

    def __init__(self, table: Table[R]) -> None:
        self._table = table
        self._records: dict[Key, R] = {}
        self._rows: dict[Key, Row] = {}
        # By the unique value: the open record that has it.
        self._open: dict[str, Key] = {}
        # How many records have each shared value.
        self._sharing: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._revision = 0
        self._on_event: Callable[[R | None], None] | None = None

    async def create(self, record: R) -> R | None:
        row = self._table.row(record)
        if self._table.unique and (existing := self._open.get(row[self._table.unique])) is not None:
            return self._records[existing]
        self._keep(record, row)
        return None

    async def put(self, records: Sequence[R]) -> bool:
        rows = [self._table.row(record) for record in records]
        if any(self._version(row) != row["version"] - 1 for row in rows):
            return False
        for record, row in zip(records, rows, strict=True):
            self._keep(record, row)
        self._revision += 1
        return True

    async def get(self, key: Key) -> R | None:
        return self._records.get(key)

    async def find(self, column: str, value: str) -> Sequence[R]:
        return [self._records[key] for key, row in self._rows.items() if row[column] == value]

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        found = [(self._place(row), key) for key, row in self._rows.items() if where.matches(row)]
        found.sort(reverse=True)
        behind = [key for place, key in found if after is None or place < after]
        return [self._records[key] for key in behind[:limit]], len(found)

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        found = (each for each in self._by_expiry(is_open=True) if each[0] <= now_unix_ms)
        return [self._records[key] for _, key in sorted(found)[:limit]]

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        expired = sorted(each for each in self._by_expiry(is_open=False) if each[0] < before_unix_ms)[:limit]
        for _, key in expired:
            self._drop(key)
        return len(expired)

    async def remove(self, key: Key, version: int = 0) -> bool:
        if key not in self._rows or (version and self._rows[key]["version"] != version):
            return False
        self._revision += 1
        row = self._drop(key)
        return not self._table.shared or row[self._table.shared] not in self._sharing

    async def remove_all(self, column: str, value: str) -> int:
        removed = [key for key, row in self._rows.items() if row[column] == value]
        for key in removed:
            self._drop(key)
        self._revision += bool(removed)
        return len(removed)

    async def totals(self, value: str) -> tuple[int, int]:
        return self._counts[value], self._sums[value]

    async def all_totals(self) -> Sequence[tuple[str, int, int]]:
        return [(value, count, self._sums[value]) for value, count in self._counts.items()]

    async def revision(self) -> int:
        return self._revision

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        self._on_event = on_event

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def _keep(self, record: R, row: Row) -> None:
        key = self._table.key_of(row)
        if key in self._rows:
            self._drop(key)
        self._records[key], self._rows[key] = record, row
        self._count(row, 1)
        if self._table.unique and row["is_open"]:
            self._open[row[self._table.unique]] = key
        if self._on_event is not None:
            self._on_event(record)

    def _drop(self, key: Key) -> Row:
        row = self._rows.pop(key)
        del self._records[key]
        self._count(row, -1)
        if self._table.unique and self._open.get(row[self._table.unique]) == key:
            del self._open[row[self._table.unique]]
        return row

    def _count(self, row: Row, change: int) -> None:
        by, summed = self._table.total
        if by:
            self._counts[row[by]] += change
            self._sums[row[by]] += change * row[summed]
            if not self._counts[row[by]]:
                del self._counts[row[by]], self._sums[row[by]]
        if shared := self._table.shared:
            self._sharing[row[shared]] += change
            if not self._sharing[row[shared]]:
                del self._sharing[row[shared]]

    def _by_expiry(self, *, is_open: bool) -> Iterator[tuple[int, Key]]:
        for key, row in self._rows.items():
            if not self._table.ends or row["is_open"] is is_open:
                yield row["expires_at_unix_ms"], key

    def _place(self, row: Row) -> Place:
        return tuple(row[column] for column in self._table.order)

    def _version(self, row: Row) -> int:
        """Return the version stored under the row's key; 0 when the key is free."""
        existing: Any = self._rows.get(self._table.key_of(row), {"version": 0})
        return int(existing["version"])


class MemoryApprovals(Approvals):
    def __init__(self) -> None:
        super().__init__(MemoryRecords[Approval](APPROVALS))


class MemoryArtifacts(Artifacts):
    def __init__(self) -> None:
        super().__init__(MemoryRecords[Artifact](ARTIFACTS))


class MemoryPins(Pins):
    def __init__(self) -> None:
        super().__init__(MemoryRecords[Pin](PINS))


class MemoryUsage:
    """Implements `UsageStore`."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._count = 0
        # Numbers of the stored uses, ascending.
        self._numbers: list[int] = []
        self._uses: dict[int, ToolUse] = {}
        # The numbers by tenant and tool.
        self._of: dict[tuple[str, str], deque[int]] = {}

    async def add(self, uses: Sequence[ToolUse]) -> None:
        for use in uses:
            self._count += 1
            self._numbers.append(self._count)
            self._uses[self._count] = use
            numbers = self._of.setdefault((use.tenant, use.tool), deque())
            numbers.append(self._count)
            if len(numbers) > self._keep:
                self._drop(numbers[0])

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        first = bisect_right(self._numbers, cursor)
        numbers = self._numbers[first : first + limit]
        return [self._uses[number] for number in numbers], numbers[-1] if numbers else cursor

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        aged = [(use.at_unix_ms, number) for number, use in self._uses.items() if use.at_unix_ms < before_unix_ms]
        oldest = sorted(aged)[:limit]
        for _, number in oldest:
            self._drop(number)
        return len(oldest)

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def _drop(self, number: int) -> None:
        use = self._uses.pop(number)
        del self._numbers[bisect_left(self._numbers, number)]
        numbers = self._of[use.tenant, use.tool]
        numbers.remove(number)
        if not numbers:
            del self._of[use.tenant, use.tool]


# Idempotency keys: a dictionary in the order of the last change, which is the order of expiry except for the length of
# a call. So expired keys are at its beginning, and are dropped before a new key is added.

# About the size of a record without the value of its result.
_RECORD_BYTES = 2_048


class _Slot:
    __slots__ = ("ended", "record", "size_bytes")

    def __init__(self, record: KeyRecord) -> None:
        self.record = record
        self.size_bytes = _RECORD_BYTES
        self.ended: asyncio.Event | None = None
        """Made by the first waiter; set when the record's owner no longer runs."""


class MemoryKeys:
    """Implements `KeyStore`. Bounded in keys and in bytes, of which each principal has a share (`may_take`): when
    full, it refuses new keys and forgets none."""

    def __init__(self, clock: Clock, *, max_keys: int = 100_000, max_bytes: int = 256 * 1024 * 1024) -> None:
        """`max_bytes` bounds the size of stored results, measured as canonical JSON."""
        self._clock = clock
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._slots: dict[EffectKey, _Slot] = {}
        self._size_bytes = 0
        self._keys_of: Counter[str] = Counter()
        self._size_bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._slots)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        existing = self._live(key)
        if existing is not None:
            if existing.record.owner != replacing or existing.record.result is not None:
                return existing.record
            self._forget(key, existing)
        self._make_room(key.principal)
        self._put(key, _Slot(record))
        return None

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        slot = self._held(key, owner)
        if slot is None:
            return False
        self._forget(key, slot)
        slot.record = replace(slot.record, result=result, expires_at_unix_ms=expires_at_unix_ms)
        slot.size_bytes += _size_bytes(result)
        self._put(key, slot)
        return True

    async def release(self, key: EffectKey, owner: str) -> bool:
        slot = self._held(key, owner)
        if slot is None:
            return False
        self._forget(key, slot)
        return True

    async def ended(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        slot = self._held(key, owner)
        if slot is None:
            return True
        slot.ended = ended = slot.ended or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return self._held(key, owner) is None
        return True

    def _live(self, key: EffectKey) -> _Slot | None:
        slot = self._slots.get(key)
        if slot is not None and slot.record.expires_at_unix_ms <= self._clock.unix_ms():
            self._forget(key, slot)
            return None
        return slot

    def _held(self, key: EffectKey, owner: str) -> _Slot | None:
        """Return the slot in which this owner's call still runs."""
        slot = self._live(key)
        return slot if slot is not None and slot.record.owner == owner and slot.record.result is None else None

    def _put(self, key: EffectKey, slot: _Slot) -> None:
        self._slots[key] = slot
        self._count(key, 1, slot.size_bytes)

    def _forget(self, key: EffectKey, slot: _Slot) -> None:
        del self._slots[key]
        self._count(key, -1, -slot.size_bytes)
        if slot.ended is not None:
            slot.ended.set()
            slot.ended = None

    def _count(self, key: EffectKey, keys: int, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._keys_of[key.principal] += keys
        self._size_bytes_of[key.principal] += size_bytes
        if not self._keys_of[key.principal]:
            del self._keys_of[key.principal], self._size_bytes_of[key.principal]

    def _make_room(self, principal: str) -> None:
        now_unix_ms = self._clock.unix_ms()
        while self._slots:
            key, slot = next(iter(self._slots.items()))
            if slot.record.expires_at_unix_ms > now_unix_ms:
                break
            self._forget(key, slot)
        oldest = next(iter(self._slots.values()), None)
        room_in_ms = oldest.record.expires_at_unix_ms - now_unix_ms if oldest else 0
        if len(self._slots) >= self._max_keys or self._size_bytes >= self._max_bytes:
            raise full(room_in_ms)
        has_keys = may_take(self._keys_of[principal], len(self._slots), self._max_keys)
        if not has_keys or not may_take(self._size_bytes_of[principal], self._size_bytes, self._max_bytes):
            raise share_is_taken(room_in_ms)


def _size_bytes(result: ToolResult) -> int:
    return len(dumps(result.value)) if result.ok else len(repr(result.error))
