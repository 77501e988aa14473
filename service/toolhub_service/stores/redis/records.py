"""Records in Redis, shared by all hubs with one prefix.

`RecordStore` for any `Table` that has a `Layout`, or is declared by its columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.pin import Pin
from toolhub_service.stores.codec import UnreadableRecord, readable
from toolhub_service.stores.record_store import (
    APPROVALS,
    ARTIFACTS,
    PINS,
    Approvals,
    Artifacts,
    Kept,
    Key,
    Pins,
    Place,
    Table,
    Where,
)
from toolhub_service.stores.redis.derived_layout import derive_layout
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.pages import MemberPages, RedisPages
from toolhub_service.stores.redis.record_layouts import APPROVAL_LAYOUT, ARTIFACT_LAYOUT, PIN_LAYOUT
from toolhub_service.stores.redis.record_scripts import Layout, RecordScripts, StoredRecord

R = TypeVar("R")


class RedisRecords(Generic[R]):
    """The link is closed by its owner."""

    def __init__(self, link: RedisLink, table: Table[R], layout: Layout | None = None) -> None:
        layout = layout or derive_layout(table)
        self._link = link
        self._table = table
        self._layout = layout
        self._scripts = RecordScripts(layout)
        pages = MemberPages if layout.by_member else RedisPages
        self._pages = pages(link, f"{layout.kind}:", layout.stored, layout.lists, layout.found)
        self._listening = ExitStack()

    async def create(self, record: R) -> R | None:
        existing = await self._scripts.create(self._link, token=self._link.token(), record=self._to_stored(record))
        return self._table.read(_to_kept(existing)) if existing else None

    async def put(self, records: Sequence[R]) -> bool:
        if len(records) == 1:
            stored = [self._to_stored(records[0])]
        else:  # many may be large, and would block the event loop
            stored = await asyncio.to_thread(lambda: list(map(self._to_stored, records)))
        return bool(await self._scripts.put(self._link, token=self._link.token(), records=stored))

    async def get(self, key: Key) -> R | None:
        ((name, version, record),) = await self._scripts.read(self._link, names=[" ".join(key)])
        return self._table.read(_to_kept((name, version, record))) if record else None

    async def find(self, column: str, value: str) -> Sequence[R]:
        found = await self._scripts.read_list(self._link, list=self._layout.lists[column] + value)
        return await asyncio.to_thread(lambda: self._table.read_all(map(_to_kept, found)))

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        cursor = None if after is None else (int(after[0]), " ".join(after[1:]))
        names, count = await self._pages.page(where, cursor, limit)
        return await self._decode_found(await self._scripts.read(self._link, names=names) if names else ()), count

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        name = "open" if self._table.ends else "expiry"
        found = await self._scripts.read_expired(
            self._link, list=f"{self._layout.kind}s:{name}", now_unix_ms=now_unix_ms, limit=limit
        )
        return await self._decode_found(found)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        ended = f"{self._layout.kind}s:ended"
        return await self._scripts.forget(self._link, list=ended, before_unix_ms=before_unix_ms, limit=limit)

    async def remove(self, key: Key, version: int = 0) -> bool:
        return bool(await self._scripts.remove(self._link, name=" ".join(key), version=version))

    async def remove_all(self, column: str, value: str) -> int:
        lists = self._layout.lists
        return await self._scripts.remove_all(self._link, list=lists[column] + value, list_of_all=lists[""])

    async def totals(self, value: str) -> tuple[int, int]:
        count, total = [
            int(await self._link.run("HGET", self._link.key(f"{self._layout.kind}s:{sum_}"), value) or 0)
            for sum_ in ("count", "bytes")
        ]
        return count, total

    async def all_totals(self) -> Sequence[tuple[str, int, int]]:
        counts, sums = [
            await self._link.run("HGETALL", self._link.key(f"{self._layout.kind}s:{sum_}"))
            for sum_ in ("count", "bytes")
        ]
        sum_of = dict(zip(sums[::2], sums[1::2], strict=True))  # values and fields alternate
        pairs = zip(counts[::2], counts[1::2], strict=True)
        return [(value.decode(), int(count), int(sum_of.get(value, 0))) for value, count in pairs]

    async def revision(self) -> int:
        return int(await self._link.run("GET", self._link.key(f"{self._layout.kind}s:revision")) or 0)

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        kind = self._layout.kind.encode()
        self._listening.callback(self._link.listen(kind, lambda values: on_event(self._change_of(values))))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        self._listening.close()

    def _to_stored(self, record: R) -> StoredRecord:
        row = self._table.row(record)
        name = " ".join(self._table.key_of(row))
        return StoredRecord(name, row.get("version", 0), self._table.encode(record), self._layout.fields(row))

    async def _decode_found(self, found: Iterable[Sequence[bytes | None]]) -> list[R]:
        """Return the records, without those that are gone."""
        kept = [_to_kept(parts) for parts in found if parts[2] is not None]
        return await asyncio.to_thread(readable, kept, self._table.read) if kept else []

    def _change_of(self, values: tuple[bytes, ...] | None) -> R | None:
        """Return the record; None when something was missed or cannot be read, upon which listeners read the store."""
        try:
            return self._table.decode(values[0]) if values else None
        except UnreadableRecord:
            return None


def _to_kept(parts: Sequence[bytes | None]) -> Kept:
    """Return the stored record; one of which the server has lost a part is unreadable."""
    name, version, record = (part or b"" for part in parts)
    return Kept(tuple(name.decode().split(" ")), int(version or 0), record)


class RedisApprovals(Approvals):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(RedisRecords[Approval](link, APPROVALS, APPROVAL_LAYOUT))


class RedisArtifacts(Artifacts):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(RedisRecords[Artifact](link, ARTIFACTS, ARTIFACT_LAYOUT))


class RedisPins(Pins):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(RedisRecords[Pin](link, PINS, PIN_LAYOUT))
