"""The port under stores of records: a key, a version, columns to find by, and the record itself as bytes.

A noun declares a `Table`; each backend implements `RecordStore` once, for all of them. What must be atomic over several
records is declared in the table (`unique`, `shared`, `total`), so that no backend knows the nouns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from toolhub_service.stores.codec import UnreadableRecord

R = TypeVar("R")


class BrokenRecord(Exception):
    """One of several cannot be read, and whoever asked may not do with the others."""

    def __init__(self, key: Key) -> None:
        super().__init__("a record cannot be read")
        self.key = key


Row: TypeAlias = Mapping[str, Any]
"""The columns of a record by name: texts and integers."""
Key: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[Any, ...]
"""Where a page ended: the values of the table's `order`."""


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """How the records of one noun are kept. What expires has a column `expires_at_unix_ms`."""

    name: str
    key: tuple[str, ...]
    """The columns that name a record."""
    row: Callable[[R], Row]
    """The key's columns first."""
    encode: Callable[[R], bytes]
    decode: Callable[[bytes], R]
    """Raises UnreadableRecord."""
    order: tuple[str, ...]
    """Columns by which pages are ordered, newest first; the key's are the last of them."""
    has_version: bool = True
    """Whether rows have `version`, by which `put` compares and sets."""
    ends: bool = False
    """Whether rows have `is_open`: only open ones expire, and only the others are forgotten."""
    unique: str = ""
    """A column of which only one open record may have the same value."""
    shared: str = ""
    """A column that says what several records share: see `RecordStore.remove`."""
    total: tuple[str, str] = ("", "")
    """Records are counted by the first column, and the second is summed."""

    def key_of(self, row: Row) -> Key:
        return tuple(row[column] for column in self.key)

    def read(self, kept: Kept) -> R:
        """Raises UnreadableRecord, also for a record of another key or version than the store says."""
        record = self.decode(kept.record)
        row = self.row(record)
        if (self.key_of(row), row.get("version", kept.version)) != (kept.key, kept.version):
            raise UnreadableRecord(f"a record of {self.name} that lies in the place of another")
        return record

    def read_all(self, found: Iterable[Kept]) -> list[R]:
        """Raises BrokenRecord."""
        records: list[R] = []
        for kept in found:
            try:
                records.append(self.read(kept))
            except UnreadableRecord:
                raise BrokenRecord(kept.key) from None
        return records


class Kept(NamedTuple):
    """A record as it lies in a store, and what the store knows of it by itself."""

    key: Key
    version: int
    """0 where the noun has no versions."""
    record: bytes


@dataclass(frozen=True, slots=True)
class Where:
    """What columns must be. Empty values match everything; all that is said is joined by AND."""

    equals: Mapping[str, str] = field(default_factory=dict)
    among: Mapping[str, Collection[str]] = field(default_factory=dict)
    like: Mapping[str, str] = field(default_factory=dict)
    """A name or a glob (fnmatch, case-sensitive)."""

    def matches(self, row: Row) -> bool:
        return (
            all(not wanted or row[column] == wanted for column, wanted in self.equals.items())
            and all(not wanted or row[column] in wanted for column, wanted in self.among.items())
            and all(not glob or fnmatchcase(row[column], glob) for column, glob in self.like.items())
        )


class RecordStore(Protocol[R]):
    """Records of one table, whoever else shares the store. What a method has returned from is durable.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def create(self, record: R) -> R | None:
        """Keep a new one. None when that was done, else the open one with the same `unique` value."""
        ...

    async def put(self, records: Sequence[R]) -> bool:
        """Replace those whose version is one less, all or none; version 1 takes a key that is free.

        False when another change came first to any of them.
        """
        ...

    async def get(self, key: Key) -> R | None: ...

    async def find(self, column: str, value: str) -> Sequence[R]:
        """All of one moment that have the value, or none of them: raises BrokenRecord when one cannot be read."""
        ...

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        """Newest first, strictly after the cursor, and how many match. What cannot be read is left out."""
        ...

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        """Open ones, or all where none ends, that have expired by now: oldest first."""
        ...

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Remove those that are not open and expired before then; how many were removed."""
        ...

    async def remove(self, key: Key, version: int = 0) -> bool:
        """Remove one, of that version only where one is given. True when it was there and no other has its `shared`
        value."""
        ...

    async def remove_all(self, column: str, value: str) -> int:
        """Remove those that have the value; how many there were."""
        ...

    async def totals(self, value: str) -> tuple[int, int]:
        """Count and sum (`Table.total`) of the records that have the value."""
        ...

    async def revision(self) -> int:
        """Rises with every `put`, `remove` and `remove_all` that changed something, by anyone."""
        ...

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        """Before `start`: call `on_event`, on the loop, with each record that anyone changes; None after a gap."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...
