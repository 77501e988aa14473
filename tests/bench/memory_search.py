"""How long a search of what is remembered takes, and a write, over many items of one principal.

    python -m tests.bench.memory_search [--items 100000]

Texts of 8 to 40 words, half English, half Chinese, whose words follow Zipf's law as those of a language do: each query
has rare words and such that are in a tenth of all items. Times are of SQLite's store by itself, one call after the
other: by the clock, and of the processor (all threads), which a busy machine blurs less. Most items are laid into the
file at once, as writing them one by one would.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.bench.page import at_share
from tests.ports.memory_store_suite import ALICE, AMPLE, T0, an_item
from toolhub_service.domain.memory import MemoryStore, Scope
from toolhub_service.search.item_index import index_terms
from toolhub_service.stores.codec import encode_item
from toolhub_service.stores.sqlite.items import SqliteItems, connect_items

_SEARCHES = 2_000
_WRITES = 200
_WORDS = 20_000
_QUOTA = AMPLE._replace(max_items=10**9, max_bytes=10**12)


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


def lay(path: Path, texts: Texts, count: int) -> None:
    """So many items into a new file."""
    postings, counts = [], Counter[int]()
    with closing(connect_items(path, busy_timeout_s=5.0)) as file:
        file.execute("BEGIN")
        for number in range(1, count + 1):
            item = an_item(texts.item(), tags=("all", "chat"))
            terms = index_terms(item)
            row = (number, item.item_id, item.owner, 0, struct.pack(f"<{len(terms)}q", *terms), encode_item(item))
            file.execute("INSERT INTO memory_items VALUES (?, ?, ?, ?, ?, ?)", row)
            postings += [(term, number, weight) for term, weight in terms.items()]
            counts.update(terms.keys())
        file.executemany("INSERT INTO memory_postings VALUES (?, ?, ?)", sorted(postings))
        file.executemany("INSERT INTO memory_terms VALUES (?, ?)", sorted(counts.items()))
        file.execute("INSERT INTO memory_usage VALUES (?, ?, ?)", (ALICE.owner, count, 0))
        file.execute("COMMIT")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    print(f"{count:,} items, {len(postings):,} postings, {path.stat().st_size / 1e6:,.0f} MB")


async def _timed(name: str, times: int, work: Callable[[], Awaitable[object]]) -> None:
    """Milliseconds, by the clock and of the processor."""
    took_ms, cpu_ms = [], []
    for _ in range(times):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        await work()
        took_ms.append((time.perf_counter() - began_s) * 1_000)
        cpu_ms.append((time.process_time() - began_cpu_s) * 1_000)
    shown = [
        f"{what} p50 {at_share(sorted(each), 0.5):.2f} ms, p99 {at_share(sorted(each), 0.99):.2f} ms"
        for what, each in (("clock", took_ms), ("processor", cpu_ms))
    ]
    print(f"{name}: {'; '.join(shown)}")


async def _measure(store: MemoryStore, texts: Texts) -> None:
    for name, caller, tags in (
        ("search by words", ALICE, ()),
        ("search by words of an agent and a user", Scope(ALICE.owner, "coder", "zoe"), ()),
        ("search by words and a tag that all have", ALICE, ("all",)),
    ):

        async def search(caller: Scope = caller, tags: tuple[str, ...] = tags) -> None:
            await store.search(caller, texts.query(), tags=tags, limit=10, now_unix_ms=T0)

        await _timed(name, _SEARCHES, search)
    await _timed("list of 20", _WRITES, partial(store.page, ALICE, tags=(), place=0, limit=20, now_unix_ms=T0))
    items = [an_item(texts.item()) for _ in range(_WRITES)]
    waiting = iter(items)
    await _timed("write", _WRITES, lambda: store.write(next(waiting), _QUOTA))
    going = iter(items)
    await _timed("forget", _WRITES, lambda: store.forget(ALICE, next(going).item_id))
    await _timed("sweep that writes the file anew", 1, partial(store.sweep, T0))
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    asked, _ = parser.parse_known_args()
    texts = Texts()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        lay(path, texts, asked.items)
        asyncio.run(_measure(SqliteItems(path), texts))


if __name__ == "__main__":
    main()
