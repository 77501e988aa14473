"""The suite of the memory's port on each backend, and what is left in SQLite's file of what was forgotten."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.ports.memory_store_suite import ALICE, T0, Kept, MemoryStoreSuite, an_item, listed, write
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.memory import MemoryStore
from toolhub_service.stores.memory.items import InProcessItems
from toolhub_service.stores.postgres.items import PostgresItems
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.sqlite.items import SqliteItems

__all__ = ["link", "other_link"]
TABLES = ("memory_items", "memory_postings", "memory_terms", "memory_usage")


class TestInProcessItems(MemoryStoreSuite):
    @pytest.fixture
    def store(self) -> InProcessItems:
        return InProcessItems()

    @pytest.fixture
    def other(self) -> None:
        return None

    @pytest.fixture
    def kept(self, store: InProcessItems) -> Kept:
        async def tables() -> str:
            return str({**vars(store._tables), "_next": None})

        return tables


class TestSqliteItems(MemoryStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> MemoryStore:
        return SqliteItems(tmp_path / "memory.db")

    @pytest.fixture
    def other(self, tmp_path: Path) -> MemoryStore:
        return SqliteItems(tmp_path / "memory.db")

    @pytest.fixture
    def kept(self, tmp_path: Path) -> Kept:
        async def rows() -> str:
            path = tmp_path / "memory.db"
            if not path.exists():
                return "[[], [], [], []]"
            with closing(sqlite3.connect(path)) as file:
                return str([file.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES])

        return rows


class TestPostgresItems(MemoryStoreSuite):
    @pytest.fixture
    def store(self, link: PostgresLink) -> MemoryStore:
        return PostgresItems(link)

    @pytest.fixture
    def other(self, other_link: PostgresLink) -> MemoryStore:
        return PostgresItems(other_link)

    @pytest.fixture
    def kept(self, link: PostgresLink) -> Kept:
        async def rows() -> str:
            found = [await link.rows(f"SELECT row_to_json(kept)::text FROM {table} AS kept") for table in TABLES]
            # Records are bytes, which PostgreSQL shows in hex.
            records = await link.rows("SELECT record FROM memory_items")
            return str(found) + b"".join(record for (record,) in records).decode(errors="replace")

        return rows


def _bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


@pytest.mark.promise("memory.forgets")
async def test_forgotten_text_is_in_no_byte_of_the_files(tmp_path: Path) -> None:
    store = SqliteItems(tmp_path / "memory.db")
    rng = random.Random(7)
    # Short ones, and ones of several pages, whose rows SQLite moves about.
    texts = [f"mark{n:04} {rng.randbytes(8).hex()} " + "filler " * rng.choice((1, 9, 600)) for n in range(150)]
    items = [an_item(text, tags=("第三会议室", f"t{n % 5}")) for n, text in enumerate(texts)]
    await asyncio.gather(*(write(store, item) for item in items))
    rng.shuffle(shuffled := list(items))
    marks = {item.item_id: item.text.split()[1].encode() for item in items}
    assert all(mark in _bytes_in(tmp_path) for mark in marks.values())
    gone = shuffled[:40]
    assert [await store.forget(ALICE, item.item_id) for item in gone] == [1] * 40
    await store.sweep(T0)
    left = _bytes_in(tmp_path)
    assert [marks[item.item_id] for item in gone if marks[item.item_id] in left] == []
    assert len(await listed(store, limit=50)) == 110
    assert await store.forget_tagged(ALICE, ["第三会议室"]) == 110
    await store.sweep(T0)
    await store.close()
    left = _bytes_in(tmp_path)
    assert not any(mark in left for mark in marks.values())
    assert "会议".encode() not in left


async def test_file_is_made_by_the_first_item_and_for_its_owner_only(tmp_path: Path) -> None:
    store = SqliteItems(tmp_path / "memory.db")
    await store.start()
    assert await listed(store) == []
    assert await store.sweep(T0) == 0
    assert _bytes_in(tmp_path) == b""
    await write(store, an_item())
    assert (tmp_path / "memory.db").stat().st_mode & 0o777 == 0o600
    await store.close()
    await store.close()
    again = SqliteItems(tmp_path / "memory.db")
    assert len(await listed(again)) == 1
    await again.close()


async def test_file_that_is_none_refuses_without_its_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "memory.db").write_bytes(b"no database " * 1_000)
    store = SqliteItems(tmp_path / "memory.db")
    with pytest.raises(ToolFailure) as refused:
        await listed(store)
    assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert "memory.db" not in refused.value.error.message
    assert "memory.db" in caplog.text
