"""How long a search of what is remembered takes, and a write, over many items of one principal.

    python -m tests.bench.memory_search [--items 100000] [--postgres URL]

Texts of 8 to 40 words, half English, half Chinese, whose words follow Zipf's law as those of a language do: each query
has rare words and such that are in a tenth of all items. Times are of the store by itself, one search after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.page import at_share
from tests.ports.memory_store_suite import ALICE, T0, an_item
from toolhub_service.domain.memory import MemoryQuota, MemoryStore, Scope
from toolhub_service.stores.sqlite_items import SqliteItems

_QUOTA = MemoryQuota(10**7, 10**12)
_AT_ONCE = 500
_SEARCHES = 2_000
_WORDS = 20_000


class Texts:
    """Synthetic ones, always the same."""

    def __init__(self) -> None:
        self._random = random.Random(13)
        self._english = [f"w{self._random.getrandbits(32):x}" for _ in range(_WORDS)]
        self._chinese = ["".join(chr(0x4E00 + self._random.randrange(3_000)) for _ in range(2)) for _ in range(_WORDS)]
        self._weights = [1 / (rank + 10) for rank in range(_WORDS)]

    def words(self, count: int) -> str:
        is_english = self._random.random() < 0.5
        words = self._random.choices(self._english if is_english else self._chinese, self._weights, k=count)
        return (" " if is_english else "").join(words)

    def item(self) -> str:
        return self.words(self._random.randint(8, 40))

    def query(self) -> str:
        return self.words(self._random.randint(1, 8))


async def _fill(store: MemoryStore, texts: Texts, items: int) -> float:
    """Items a second."""
    began_s = time.perf_counter()
    for _ in range(items // _AT_ONCE):
        batch = [an_item(texts.item(), tags=("all", "chat")) for _ in range(_AT_ONCE)]
        await asyncio.gather(*(store.write(item, _QUOTA) for item in batch))
    return items / (time.perf_counter() - began_s)


async def _timed(store: MemoryStore, texts: Texts, caller: Scope, tags: Sequence[str]) -> list[float]:
    """Milliseconds, ascending."""
    took_ms = []
    for _ in range(_SEARCHES):
        query, began_s = texts.query(), time.perf_counter()
        await store.search(caller, query, tags=tags, limit=10, now_unix_ms=T0)
        took_ms.append((time.perf_counter() - began_s) * 1_000)
    return sorted(took_ms)


async def _measure(store: MemoryStore, items: int) -> None:
    texts = Texts()
    await store.start()
    rate = await _fill(store, texts, items)
    print(f"{items:,} items written, {rate:,.0f} a second, {_AT_ONCE} at once")
    for name, caller, tags in (
        ("words", ALICE, ()),
        ("words of an agent and a user", Scope(ALICE.owner, "coder", "zoe"), ()),
        ("words and a tag that all have", ALICE, ("all",)),
    ):
        took_ms = await _timed(store, texts, caller, tags)
        p50, p99 = at_share(took_ms, 0.5), at_share(took_ms, 0.99)
        print(f"search by {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {took_ms[-1]:.2f} ms")
    began_s = time.perf_counter()
    page = await store.page(ALICE, tags=(), place=0, limit=20, now_unix_ms=T0)
    print(f"list of 20: {(time.perf_counter() - began_s) * 1_000:.2f} ms")
    began_s = time.perf_counter()
    for item in page.items:
        await store.forget(ALICE, item.item_id)
    print(f"forget: {(time.perf_counter() - began_s) * 1_000 / len(page.items):.2f} ms each")
    began_s = time.perf_counter()
    await store.sweep(T0)
    print(f"sweep that writes the file anew: {time.perf_counter() - began_s:.2f} s")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--postgres", default="", help="URL of an empty database")
    asked, _ = parser.parse_known_args()
    if asked.postgres:
        asyncio.run(_measure_postgres(asked.postgres, asked.items))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(SqliteItems(Path(folder) / "memory.db"), asked.items))
        print(f"file: {(Path(folder) / 'memory.db').stat().st_size / 1e6:.0f} MB")


async def _measure_postgres(url: str, items: int) -> None:
    from toolhub_service.stores.postgres_items import PostgresItems
    from toolhub_service.stores.postgres_link import PostgresLink

    link = PostgresLink(url)
    await _measure(PostgresItems(link), items)
    await link.close()


if __name__ == "__main__":
    main()
