"""Records in the memory of one process: lost with it, and not seen by any other.

No method awaits between a read and a change, so each is one compare-and-set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.pin import Pin
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

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
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
