"""Remembered items in the memory of this process: lost when it ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest
from itertools import count
from typing import Any, TypeVar

from toolhub_service.domain.memory import MemoryQuota
from toolhub_service.search.item_index import Posting, Term
from toolhub_service.stores.items import Ask, ItemRow, Items, Lookup, run_lookup

T = TypeVar("T")


class _Tables:
    """Implements `ItemTables`."""

    def __init__(self) -> None:
        self._next = count(1)
        self._rows: dict[int, ItemRow] = {}
        self._numbers: dict[str, int] = {}
        self._postings: dict[Term, dict[int, int]] = {}
        self._usage: dict[str, tuple[int, int]] = {}

    async def add(self, row: ItemRow, quota: MemoryQuota) -> tuple[int, int]:
        items, size_bytes = self._usage.get(row.owner, (0, 0))
        usage = items + 1, size_bytes + len(row.record)
        if usage[0] <= quota.max_items and usage[1] <= quota.max_bytes:
            number = next(self._next)
            self._rows[number], self._numbers[row.item_id], self._usage[row.owner] = row, number, usage
            for term, weight in row.terms.items():
                self._postings.setdefault(term, {})[number] = weight
        return usage

    async def run(self, lookup: Lookup[T]) -> T:
        return run_lookup(lookup, self._answer)

    def _answer(self, ask: Ask) -> Any:
        return getattr(self, f"_{ask.what}")(*ask.given)

    def _number(self, item_id: str) -> int:
        return self._numbers.get(item_id, 0)

    def _records(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        return {number: self._rows[number].record for number in numbers if number in self._rows}

    def _counts(self, terms: Collection[Term]) -> Mapping[Term, int]:
        return {term: len(self._postings[term]) for term in terms if term in self._postings}

    def _newest(self, wanted: Sequence[tuple[Term, int]], before: int) -> Sequence[Posting]:
        postings: list[Posting] = []
        for term, most in wanted:
            having = self._postings.get(term, {})
            numbers = nlargest(most, (number for number in having if not before or number < before))
            postings += [(term, number, having[number]) for number in numbers]
        return postings

    def _among(self, terms: Collection[Term], numbers: Collection[int]) -> Sequence[Posting]:
        having = {term: self._postings.get(term, {}) for term in terms}
        return [
            (term, number, items[number]) for term, items in having.items() for number in numbers if number in items
        ]

    async def usage(self, owner: str | None) -> Sequence[tuple[str, int]]:
        return [(one, size_bytes) for one, (_, size_bytes) in self._usage.items() if owner in (None, one)]

    async def remove(self, numbers: Collection[int]) -> int:
        rows = {number: self._rows.pop(number) for number in list(numbers) if number in self._rows}
        for number, row in rows.items():
            del self._numbers[row.item_id]
            items, size_bytes = self._usage[row.owner]
            self._usage[row.owner] = items - 1, size_bytes - len(row.record)
            if items == 1:
                del self._usage[row.owner]
            for term in row.terms:
                del self._postings[term][number]
                if not self._postings[term]:
                    del self._postings[term]
        return len(rows)

    async def find_expired(self, now_unix_ms: int, limit: int) -> Collection[int]:
        over = [number for number, row in self._rows.items() if 0 < row.expires_at_unix_ms <= now_unix_ms]
        return over[:limit]

    async def tidy(self) -> None:
        """Nothing to do: removals leave nothing behind."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class InProcessItems(Items):
    def __init__(self) -> None:
        super().__init__(_Tables())
