"""Remembered items over whatever keeps them: `MemoryStore` for any `ItemTables`.

A backend keeps items by number, postings (`item_index.py`) by term, newest number first, and how many items have each
term; what is searched, listed and forgotten, and who sees it, is decided here for all of them. A search is a few looks
into the tables, of which each follows from the one before: a generator of them, which a backend runs where it looks
best, SQLite's in one turn of a reader's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.memory import FoundItem, ItemPage, MemoryItem, MemoryQuota, Scope
from toolhub_service.stores.codec import UnreadableRecord, decode_item, encode_item
from toolhub_service.stores.item_index import Question, Ranking, Term, index_terms

T = TypeVar("T")

AT_ONCE: Final = 200
"""Items a look, and a removal, so that nobody's write waits long behind it."""
_SPARE: Final = 20
# Of a longer text the words are found in a thread.
_SHORT_CHARS: Final = 500


class ItemRow(NamedTuple):
    """An item ready to be kept."""

    item_id: str
    owner: str
    expires_at_unix_ms: int
    """0: never."""
    record: bytes
    terms: Mapping[Term, int]
    """Its postings: term and weight."""


class Ask(NamedTuple):
    """One read of the tables, and what it is given; the answer of each:

    number(item_id): of the item, 0 for none. records(numbers): those that there are, by number. counts(terms): how many
    items have each, terms that none has left out. newest([(term, n)], before): of each term n postings of the highest
    numbers, below `before` unless it is 0. among(terms, numbers): the postings of these terms in these items.
    """

    what: Literal["number", "records", "counts", "newest", "among"]
    given: tuple[Any, ...]


Lookup: TypeAlias = Generator[Ask, Any, T]
"""Reads of the tables, each asked for once the one before is answered; it returns what was found."""


def run_lookup(lookup: Lookup[T], answer: Callable[[Ask], Any]) -> T:
    """What it finds, each of its reads answered by `answer`."""
    answered: Any = None
    while True:
        try:
            ask = lookup.send(answered)
        except StopIteration as found:
            return cast(T, found.value)
        answered = answer(ask)


class ItemTables(Protocol):
    """What a backend does; what a method has returned from is durable. Numbers rise and are never used twice.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be used.
    """

    async def run(self, lookup: Lookup[T]) -> T:
        """What the lookup finds; it may run in a thread."""
        ...

    async def add(self, row: ItemRow, quota: MemoryQuota) -> tuple[int, int]:
        """Keep it and all its postings, unless the owner would keep more than the quota. What the owner keeps with it,
        or would: items and bytes."""
        ...

    async def remove(self, numbers: Collection[int]) -> int:
        """With all their postings, so that nothing of them is left; how many there were."""
        ...

    async def expired(self, now_unix_ms: int, limit: int) -> Collection[int]: ...

    async def tidy(self) -> None:
        """Remove what removing has left behind. May take a while."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Items:
    """Implements `MemoryStore`."""

    def __init__(self, tables: ItemTables) -> None:
        self._tables = tables

    async def write(self, item: MemoryItem, quota: MemoryQuota) -> None:
        row = _row(item) if len(item.text) <= _SHORT_CHARS else await asyncio.to_thread(_row, item)
        items, size_bytes = await self._tables.add(row, quota)
        if items > quota.max_items or size_bytes > quota.max_bytes:
            raise _full(quota, size_bytes - len(row.record))

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
        while numbers := await self._tables.expired(now_unix_ms, AT_ONCE):
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
    # Some may have expired and not been removed yet.
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
    """Items that have the tags, expired ones too, and where to go on; 0: nowhere."""
    numbers, further = yield from _numbers(Question(caller, "", tags), before)
    return (yield from _items(caller, numbers, 0)), further


def _numbers(question: Question, before: int) -> Lookup[tuple[list[int], int]]:
    """Some of the items that the caller sees and that have the tags, newest first; where to go on, 0: nowhere."""
    tag_terms = [term for tag in question.tags for term in tag.terms]
    counts = yield Ask("counts", ([*question.everything.terms, *tag_terms],))
    first, *others = sorted(question.tags, key=lambda tag: tag.count(counts)) or [question.everything]
    # The newest of each scope's, and of those together the newest.
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
    """Those that the caller sees and that have not expired, by number; what cannot be read is left out."""
    items: dict[int, MemoryItem] = {}
    records = (yield Ask("records", (numbers,))) if numbers else {}
    for number, record in records.items():
        try:
            item = decode_item(record)
        except UnreadableRecord:
            continue  # a newer hub's: one such record must not make all others unfindable
        # Postings are of this caller's scopes already; but two digests may meet, and two owners cannot.
        if caller.sees(item) and not 0 < item.expires_at_unix_ms <= now_unix_ms:
            items[number] = item
    return items


def _full(quota: MemoryQuota, used_bytes: int) -> ToolFailure:
    message = (
        f"Your memory is full: at most {quota.max_items:,} items and {quota.max_bytes:,} bytes. Forget what is no "
        "longer needed with core/memory.forget, or ask the operator for more (memory.max_items, memory.max_bytes)."
    )
    details: dict[str, Any] = {"quota_bytes": quota.max_bytes, "used_bytes": used_bytes}
    return refuse(ErrorKind.BUDGET_EXCEEDED, message, **details)
