"""Remembered items over whatever keeps them: `MemoryStore` for any `ItemTables`.

A backend keeps items by number, postings (`item_index.py`) by term, newest number first, and how many items have each
term; what is searched, listed and forgotten, and who sees it, is decided here for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.memory import FoundItem, ItemPage, MemoryItem, MemoryQuota, Scope
from toolhub_service.stores.codec import UnreadableRecord, decode_item, encode_item
from toolhub_service.stores.item_index import Posting, Question, Ranking, Term, index_terms

FORGET_AT_ONCE: Final = 200
"""Items a change, so that nobody's write waits long behind it."""
_SPARE: Final = 20
_PAGE: Final = 200


class ItemRow(NamedTuple):
    """An item ready to be kept."""

    item_id: str
    owner: str
    expires_at_unix_ms: int
    """0: never."""
    record: bytes
    terms: Mapping[Term, int]
    """Its postings: term and weight."""


class ItemTables(Protocol):
    """What a backend does; what a method has returned from is durable. Numbers rise and are never used twice.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be used.
    """

    async def add(self, row: ItemRow, quota: MemoryQuota) -> tuple[int, int]:
        """Keep it and all its postings, unless the owner would keep more than the quota. What the owner keeps with it,
        or would: items and bytes."""
        ...

    async def number(self, item_id: str) -> int:
        """0: there is no such item."""
        ...

    async def records(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        """Of those that there are."""
        ...

    async def counts(self, terms: Collection[Term]) -> Mapping[Term, int]:
        """How many items have each; terms that none has are left out."""
        ...

    async def newest(self, wanted: Sequence[tuple[Term, int]], before: int = 0) -> Sequence[Posting]:
        """Of each term so many postings, of the highest numbers, below `before` unless it is 0."""
        ...

    async def among(self, terms: Collection[Term], numbers: Collection[int]) -> Sequence[Posting]:
        """The postings of these terms in these items."""
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
        record = encode_item(item)
        row = ItemRow(item.item_id, item.owner, item.expires_at_unix_ms, record, index_terms(item))
        items, size_bytes = await self._tables.add(row, quota)
        if items > quota.max_items or size_bytes > quota.max_bytes:
            raise _full(quota, size_bytes - len(record))

    async def search(
        self, caller: Scope, query: str, *, tags: Sequence[str], limit: int, now_unix_ms: int
    ) -> Sequence[FoundItem]:
        question = Question(caller, query, tags)
        if not question.words:
            return ()
        ranking = Ranking(question, await self._tables.counts(question.all_terms()))
        if ranking.is_empty:
            return ()
        terms, numbers = ranking.take(await self._tables.newest(ranking.driving))
        looked_up = await self._tables.among(terms, numbers) if terms else ()
        # Some may have expired and not been removed yet.
        ranked = ranking.best(looked_up, 2 * limit + _SPARE)
        items = await self._items(caller, [number for number, _ in ranked], now_unix_ms)
        found = [FoundItem(items[number], score) for number, score in ranked if number in items]
        return found[:limit]

    async def read(self, caller: Scope, item_id: str, *, now_unix_ms: int) -> MemoryItem | None:
        number = await self._tables.number(item_id)
        return (await self._items(caller, [number], now_unix_ms)).get(number) if number else None

    async def page(
        self, caller: Scope, *, tags: Sequence[str], place: int, limit: int, now_unix_ms: int
    ) -> ItemPage:
        question, found = Question(caller, "", tags), list[tuple[int, MemoryItem]]()
        before = place
        while len(found) <= limit:
            numbers, before = await self._numbers(question, before)
            items = await self._items(caller, numbers, now_unix_ms)
            found += [(number, items[number]) for number in numbers if number in items]
            if not before:
                break
        page = found[:limit]
        return ItemPage([item for _, item in page], page[-1][0] if len(found) > limit else 0)

    async def forget(self, caller: Scope, item_id: str) -> int:
        number = await self._tables.number(item_id)
        seen = await self._items(caller, [number], 0) if number else {}
        return await self._tables.remove(seen) if seen else 0

    async def forget_tagged(self, caller: Scope, tags: Sequence[str]) -> int:
        question, forgotten, before = Question(caller, "", tags), 0, 0
        while question.tags:
            numbers, before = await self._numbers(question, before)
            seen = await self._items(caller, numbers, 0)
            if seen:
                forgotten += await self._tables.remove(seen)
            if not before:
                break
        return forgotten

    async def sweep(self, now_unix_ms: int) -> int:
        removed = 0
        while numbers := await self._tables.expired(now_unix_ms, FORGET_AT_ONCE):
            removed += await self._tables.remove(numbers)
        await self._tables.tidy()
        return removed

    async def start(self) -> None:
        await self._tables.start()

    async def close(self) -> None:
        await self._tables.close()

    async def _numbers(self, question: Question, before: int) -> tuple[list[int], int]:
        """Some of the items that the caller sees and that have the tags, newest first; where to go on, 0: nowhere."""
        counts = await self._tables.counts([*question.everything.terms, *(t for tag in question.tags for t in tag.terms)])
        first, *others = sorted(question.tags, key=lambda tag: tag.count(counts)) or [question.everything]
        # The newest of each scope's, and of those together the newest.
        postings = await self._tables.newest([(term, _PAGE) for term in first.terms if term in counts], before)
        numbers = sorted({number for _, number, _ in postings}, reverse=True)[:_PAGE]
        further = numbers[-1] if len(numbers) == _PAGE else 0
        if others and numbers:
            looked_up = await self._tables.among([term for tag in others for term in tag.terms], numbers)
            for tag in others:
                having = {number for term, number, _ in looked_up if term in tag.terms}
                numbers = [number for number in numbers if number in having]
        return numbers, further

    async def _items(self, caller: Scope, numbers: Sequence[int], now_unix_ms: int) -> dict[int, MemoryItem]:
        """Those that the caller sees and that have not expired; what cannot be read is left out."""
        items: dict[int, MemoryItem] = {}
        for number, record in (await self._tables.records(numbers)).items() if numbers else ():
            try:
                item = decode_item(record)
            except UnreadableRecord:
                continue
            # Postings are of this caller's scopes already. That digests do not meet is likely; that owners differ, certain.
            if caller.sees(item) and not 0 < item.expires_at_unix_ms <= now_unix_ms:
                items[number] = item
        return items


def _full(quota: MemoryQuota, used_bytes: int) -> ToolFailure:
    message = (
        f"Your memory is full: at most {quota.max_items:,} items and {quota.max_bytes:,} bytes. Forget what is no longer "
        "needed with core/memory.forget, or ask the operator for more (memory.max_items, memory.max_bytes)."
    )
    details: dict[str, Any] = {"quota_bytes": quota.max_bytes, "used_bytes": used_bytes}
    return refuse(ErrorKind.BUDGET_EXCEEDED, message, **details)
