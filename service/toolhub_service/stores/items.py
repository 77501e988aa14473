"""Remembered items over any backend: `MemoryStore` for any `ItemTables`.

A backend keeps items by number, postings (`search/item_index.py`) by term, newest number first, and how many items have
each term; searching, listing, forgetting and visibility are decided here for all of them. A search is a few reads of
the tables, each depending on the one before: it is a generator of reads, which a backend runs where that is cheapest,
SQLite's in one job of a reader's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from toolhub_service.domain.call import Owners
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.memory import FoundItem, ItemPage, MemoryItem, MemoryQuota, Scope
from toolhub_service.search.item_index import Question, Ranking, Term, index_terms
from toolhub_service.stores.codec import UnreadableRecord, decode_item, encode_item

T = TypeVar("T")

AT_ONCE: Final = 200
"""Items of one read, or of one removal, so that no write waits long behind it."""
_SPARE: Final = 20
# The words of longer texts are found in a thread.
_SHORT_CHARS: Final = 500


class ItemRow(NamedTuple):
    """An item with its postings, ready to be stored."""

    item_id: str
    owner: str
    expires_at_unix_ms: int
    """0: never."""
    record: bytes
    terms: Mapping[Term, int]
    """Its postings: term and weight."""


class Ask(NamedTuple):
    """One read of the tables, with its arguments and what it returns:

    number(item_id): the item's number, 0 if there is none. records(numbers): the existing records by number.
    counts(terms): how many items have each, without the terms that none has. newest([(term, n)], before): for each term
    the n postings with the highest numbers, below `before` unless it is 0. among(terms, numbers): the postings of these
    terms in these items.
    """

    what: Literal["number", "records", "counts", "newest", "among"]
    given: tuple[Any, ...]


Lookup: TypeAlias = Generator[Ask, Any, T]
"""A generator of reads, each requested once the one before is answered; it returns the result."""


def run_lookup(lookup: Lookup[T], answer: Callable[[Ask], Any]) -> T:
    """Run the lookup, answering its reads by `answer`; return its result."""
    answered: Any = None
    while True:
        try:
            ask = lookup.send(answered)
        except StopIteration as found:
            return cast(T, found.value)
        answered = answer(ask)


class ItemTables(Protocol):
    """What a backend implements. Changes are durable when a method returns. Numbers rise and are never reused.

    Each method raises ToolFailure TOOL_UNAVAILABLE when the store cannot be used.
    """

    async def run(self, lookup: Lookup[T]) -> T:
        """Return the lookup's result; it may run in a thread."""
        ...

    async def add(self, row: ItemRow, quota: MemoryQuota) -> tuple[int, int]:
        """Store the item and its postings, unless the owner would exceed the quota.

        Return the items and bytes that the owner has with it, or would have.
        """
        ...

    async def usage(self, owner: str | None) -> Sequence[tuple[str, int]]:
        """Return (owner, bytes) of those who have items; of one of them, or with None of all."""
        ...

    async def remove(self, numbers: Collection[int]) -> int:
        """Remove the items with all their postings; return how many there were."""
        ...

    async def find_expired(self, now_unix_ms: int, limit: int) -> Collection[int]: ...

    async def tidy(self) -> None:
        """Remove what removals have left behind. May take a while."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Items:
    """Implements `MemoryStore`."""

    def __init__(self, tables: ItemTables) -> None:
        self._tables = tables

    async def write(self, item: MemoryItem, quota: MemoryQuota) -> int:
        row = _row(item) if len(item.text) <= _SHORT_CHARS else await asyncio.to_thread(_row, item)
        items, size_bytes = await self._tables.add(row, quota)
        if items > quota.max_items or size_bytes > quota.max_bytes:
            raise _full(quota, size_bytes - len(row.record))
        return size_bytes

    async def usage(self, owner: str) -> int:
        return sum(size_bytes for _, size_bytes in await self._tables.usage(owner))

    async def usage_of(self, owners: Owners) -> int:
        return sum(size_bytes for owner, size_bytes in await self._tables.usage(None) if owners(owner))

    async def search(
        self, caller: Scope, query: str, *, tags: Sequence[str], limit: int, now_unix_ms: int
    ) -> Sequence[FoundItem]:
        return await self._tables.run(_search(caller, query, tags, limit, now_unix_ms))

    async def read(self, caller: Scope, item_id: str, *, now_unix_ms: int) -> MemoryItem | None:
        found = await self._tables.run(_one(caller, item_id, now_unix_ms))
        return next(iter(found.values()), None)

    async def page(self, caller: Scope, *, tags: Sequence[str], place: int, limit: int, now_unix_ms: int) -> ItemPage:
        return await self._tables.run(_page(caller, tags, place, limit, now_unix_ms))

    async def forget(self, caller: Scope, item_id: str) -> int:
        seen = await self._tables.run(_one(caller, item_id, 0))
        return await self._tables.remove(seen) if seen else 0

    async def forget_tagged(self, caller: Scope, tags: Sequence[str]) -> int:
        forgotten, before = 0, 0
        while tags:
            seen, before = await self._tables.run(_some(caller, tags, before))
            if seen:
                forgotten += await self._tables.remove(seen)
            if not before:
                break
        return forgotten

    async def sweep(self, now_unix_ms: int) -> int:
        removed = 0
        while numbers := await self._tables.find_expired(now_unix_ms, AT_ONCE):
            removed += await self._tables.remove(numbers)
        await self._tables.tidy()
        return removed

    async def start(self) -> None:
        await self._tables.start()

    async def close(self) -> None:
        await self._tables.close()


def _row(item: MemoryItem) -> ItemRow:
    return ItemRow(item.item_id, item.owner, item.expires_at_unix_ms, encode_item(item), index_terms(item))


def _search(
    caller: Scope, query: str, tags: Sequence[str], limit: int, now_unix_ms: int
) -> Lookup[Sequence[FoundItem]]:
    question = Question(caller, query, tags)
    if not question.words:
        return ()
    ranking = Ranking(question, (yield Ask("counts", (question.all_terms(),))))
    if ranking.is_empty:
        return ()
    terms, numbers = ranking.take((yield Ask("newest", (ranking.driving, 0))))
    looked_up = (yield Ask("among", (terms, numbers))) if terms else ()
    # Expired items may not be removed yet.
    ranked = ranking.best(looked_up, 2 * limit + _SPARE)
    items = yield from _items(caller, [number for number, _ in ranked], now_unix_ms)
    return [FoundItem(items[number], score) for number, score in ranked if number in items][:limit]


def _one(caller: Scope, item_id: str, now_unix_ms: int) -> Lookup[dict[int, MemoryItem]]:
    number = yield Ask("number", (item_id,))
    return (yield from _items(caller, [number], now_unix_ms)) if number else {}


def _page(caller: Scope, tags: Sequence[str], place: int, limit: int, now_unix_ms: int) -> Lookup[ItemPage]:
    question, found, before = Question(caller, "", tags), list[tuple[int, MemoryItem]](), place
    while len(found) <= limit:
        numbers, before = yield from _numbers(question, before)
        items = yield from _items(caller, numbers, now_unix_ms)
        found += [(number, items[number]) for number in numbers if number in items]
        if not before:
            break
    page = found[:limit]
    return ItemPage([item for _, item in page], page[-1][0] if len(found) > limit else 0)


def _some(caller: Scope, tags: Sequence[str], before: int) -> Lookup[tuple[dict[int, MemoryItem], int]]:
    """Return items that have the tags, expired ones too, and the number to continue at; 0: there are no more."""
    numbers, further = yield from _numbers(Question(caller, "", tags), before)
    return (yield from _items(caller, numbers, 0)), further


def _numbers(question: Question, before: int) -> Lookup[tuple[list[int], int]]:
    """Return numbers of items that the caller sees and that have the tags, newest first; and where to continue, 0: at
    the end."""
    tag_terms = [term for tag in question.tags for term in tag.terms]
    counts = yield Ask("counts", ([*question.everything.terms, *tag_terms],))
    first, *others = sorted(question.tags, key=lambda tag: tag.count(counts)) or [question.everything]
    # The newest of each scope, and of all those together the newest.
    postings = yield Ask("newest", ([(term, AT_ONCE) for term in first.terms if term in counts], before))
    numbers = sorted({number for _, number, _ in postings}, reverse=True)[:AT_ONCE]
    further = numbers[-1] if len(numbers) == AT_ONCE else 0
    if others and numbers:
        looked_up = yield Ask("among", ([term for tag in others for term in tag.terms], numbers))
        for tag in others:
            having = {number for term, number, _ in looked_up if term in tag.terms}
            numbers = [number for number in numbers if number in having]
    return numbers, further


def _items(caller: Scope, numbers: Sequence[int], now_unix_ms: int) -> Lookup[dict[int, MemoryItem]]:
    """Return the items that the caller sees and that have not expired, by number, without unreadable ones."""
    items: dict[int, MemoryItem] = {}
    records = (yield Ask("records", (numbers,))) if numbers else {}
    for number, record in records.items():
        try:
            item = decode_item(record)
        except UnreadableRecord:
            continue  # written by a newer hub: one such record must not hide all others
        # Postings are of this caller's scopes already; but two digests may collide, and two owners cannot.
        if caller.sees(item) and not 0 < item.expires_at_unix_ms <= now_unix_ms:
            items[number] = item
    return items


def _full(quota: MemoryQuota, used_bytes: int) -> ToolFailure:
    message = (
        f"Your memory is full: at most {quota.max_items:,} items and {quota.max_bytes:,} bytes. Forget what is no "
        f"longer needed with core/memory.forget, or ask the operator for more (memory.max_items, {quota.limit})."
    )
    details: dict[str, Any] = {"limit": quota.limit, "quota_bytes": quota.max_bytes, "used_bytes": used_bytes}
    return refuse(ErrorKind.BUDGET_EXCEEDED, message, **details)
