"""Remembered items in PostgreSQL, shared by all hubs of one schema.

Removed items are in no table and no index any more; when their bytes leave the server's files depends on its vacuum and
its archived WAL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from toolhub_service.domain.memory import MemoryQuota
from toolhub_service.search.item_index import Posting, Term
from toolhub_service.stores.items import ItemRow, Items, Lookup
from toolhub_service.stores.postgres.column_text import escape_text
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import SERVER_UNIX_MS
from toolhub_service.stores.postgres.writer import TableWriter

T = TypeVar("T")

_ADD: Final = """
WITH usage AS MATERIALIZED (
    SELECT coalesce(max(items), 0)::bigint + 1 AS items,
        coalesce(max(size_bytes), 0)::bigint + octet_length(%(record)s::bytea) AS size_bytes
    FROM memory_usage WHERE owner = %(owner)s),
item AS (
    INSERT INTO memory_items (item_id, owner, expires_at_unix_ms, terms, record)
    SELECT %(item_id)s, %(owner)s, %(expires)s, %(terms)s::bigint[], %(record)s FROM usage
    WHERE items <= %(max_items)s AND size_bytes <= %(max_bytes)s RETURNING number),
postings AS (
    INSERT INTO memory_postings SELECT term, number, weight
    FROM item, unnest(%(terms)s::bigint[], %(weights)s::integer[]) AS given (term, weight)),
counted AS (
    INSERT INTO memory_terms AS kept SELECT term, 1 FROM item, unnest(%(terms)s::bigint[]) AS given (term)
    ON CONFLICT (term) DO UPDATE SET items = kept.items + 1),
used AS (
    INSERT INTO memory_usage SELECT %(owner)s, items, size_bytes FROM usage WHERE EXISTS (SELECT FROM item)
    ON CONFLICT (owner) DO UPDATE SET items = excluded.items, size_bytes = excluded.size_bytes)
SELECT items, size_bytes FROM usage"""
_REMOVE: Final = """
WITH item AS (
    DELETE FROM memory_items WHERE number = ANY (%s)
    RETURNING number, owner, terms, octet_length(record) AS size_bytes),
gone AS MATERIALIZED (SELECT term, number FROM item, unnest(terms) AS term),
postings AS (
    DELETE FROM memory_postings AS kept USING gone WHERE kept.term = gone.term AND kept.number = gone.number),
fewer AS MATERIALIZED (SELECT term, count(*) AS items FROM gone GROUP BY term),
lessened AS (
    UPDATE memory_terms AS kept SET items = kept.items - fewer.items FROM fewer
    WHERE kept.term = fewer.term AND kept.items > fewer.items),
emptied AS (
    DELETE FROM memory_terms AS kept USING fewer WHERE kept.term = fewer.term AND kept.items <= fewer.items),
freed AS MATERIALIZED (
    SELECT owner, count(*) AS items, sum(size_bytes)::bigint AS size_bytes FROM item GROUP BY owner),
used AS (
    UPDATE memory_usage AS kept SET items = kept.items - freed.items, size_bytes = kept.size_bytes - freed.size_bytes
    FROM freed WHERE kept.owner = freed.owner AND kept.items > freed.items),
unused AS (
    DELETE FROM memory_usage AS kept USING freed WHERE kept.owner = freed.owner AND kept.items <= freed.items)
SELECT count(*) FROM item"""
_NEWEST: Final = """
SELECT posting.* FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (term, most)
CROSS JOIN LATERAL (
    SELECT term, number, weight FROM memory_postings AS kept WHERE kept.term = wanted.term AND number < %s
    ORDER BY number DESC LIMIT wanted.most) AS posting"""
_AMONG: Final = """
SELECT kept.term, kept.number, kept.weight
FROM unnest(%s::bigint[]) AS t (term) CROSS JOIN unnest(%s::bigint[]) AS n (number)
JOIN memory_postings AS kept ON kept.term = t.term AND kept.number = n.number"""


class _Tables:
    """Implements `ItemTables`. The link is closed by its owner, after the store."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._writer = TableWriter(link, "memory_items")

    async def add(self, row: ItemRow, quota: MemoryQuota) -> tuple[int, int]:
        given = {
            "item_id": escape_text(row.item_id),
            "owner": escape_text(row.owner),
            "expires": row.expires_at_unix_ms,
            "record": row.record,
            "terms": [*row.terms],
            "weights": [*row.terms.values()],
            "max_items": quota.max_items,
            "max_bytes": quota.max_bytes,
        }
        ((items, size_bytes),) = await self._writer.run(_ADD, given)
        return items, size_bytes

    async def run(self, lookup: Lookup[T]) -> T:
        answered: Any = None
        while True:
            try:
                ask = lookup.send(answered)
            except StopIteration as found:
                return cast(T, found.value)
            answered = await getattr(self, f"_{ask.what}")(*ask.given)

    async def _number(self, item_id: str) -> int:
        rows = await self._link.rows("SELECT number FROM memory_items WHERE item_id = %s", escape_text(item_id))
        return rows[0][0] if rows else 0

    async def _records(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        sql = "SELECT number, record FROM memory_items WHERE number = ANY (%s)"
        return dict(await self._link.rows(sql, [*numbers]))

    async def _counts(self, terms: Collection[Term]) -> Mapping[Term, int]:
        return dict(await self._link.rows("SELECT term, items FROM memory_terms WHERE term = ANY (%s)", [*terms]))

    async def _newest(self, wanted: Sequence[tuple[Term, int]], before: int) -> Sequence[Posting]:
        terms, most = [term for term, _ in wanted], [most for _, most in wanted]
        return await self._link.rows(_NEWEST, terms, most, before or 2**62)

    async def _among(self, terms: Collection[Term], numbers: Collection[int]) -> Sequence[Posting]:
        return await self._link.rows(_AMONG, [*terms], [*numbers])

    async def usage(self, owner: str | None) -> Sequence[tuple[str, int]]:
        sql = "SELECT owner, size_bytes FROM memory_usage"
        if owner is None:
            return await self._link.rows(sql)
        return await self._link.rows(f"{sql} WHERE owner = %s", escape_text(owner))

    async def remove(self, numbers: Collection[int]) -> int:
        ((removed,),) = await self._writer.run(_REMOVE, ([*numbers],))
        return int(removed)

    async def find_expired(self, now_unix_ms: int, limit: int) -> Collection[int]:
        # Expiry needs both clocks: a hub whose clock is ahead removes nothing from the others.
        sql = f"""SELECT number FROM memory_items
            WHERE expires_at_unix_ms > 0 AND expires_at_unix_ms <= least(%s, {SERVER_UNIX_MS}) LIMIT %s"""  # noqa: S608 — fixed
        return [number for (number,) in await self._link.rows(sql, now_unix_ms, limit)]

    async def tidy(self) -> None:
        """Nothing to do: the server does it."""

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        await self._writer.close()


class PostgresItems(Items):
    def __init__(self, link: PostgresLink) -> None:
        super().__init__(_Tables(link))
