"""The suites on the hub's own file, with another process's beside; what outlives the process, and what blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.ports.approval_store_suite import ApprovalStoreSuite
from tests.ports.artifact_records_suite import ArtifactRecordsSuite
from tests.ports.pin_store_suite import Damage, PinStoreSuite, WrittenPinsSuite, a_pin, then
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.source import PinStore
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteApprovals, SqliteArtifacts, SqlitePins
from toolhub_service.stores.sqlite.writer import Change

__all__ = ["file", "other_file"]


class TestSqliteApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> ApprovalStore:
        return SqliteApprovals(file)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> ApprovalStore:
        return SqliteApprovals(other_file)


class TestSqliteArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> ArtifactRecords:
        return SqliteArtifacts(file)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> ArtifactRecords:
        return SqliteArtifacts(other_file)


async def overwrite(file: SqliteFile, pin: Pin, record: bytes) -> None:
    def apply(connection: sqlite3.Connection, records: Sequence[bytes]) -> list[int]:
        sql = "UPDATE pins SET record = ? WHERE source = ? AND tool = ? AND digest = ?"
        return [connection.execute(sql, (each, *pin.key)).rowcount for each in records]

    assert await file.change(Change(apply), record) == 1


class TestSqlitePins(PinStoreSuite, WrittenPinsSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> PinStore:
        return SqlitePins(file)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> PinStore:
        return SqlitePins(other_file)

    @pytest.fixture
    def damage(self, file: SqliteFile) -> Damage:
        return partial(overwrite, file)


@pytest.mark.promise("pins.survive-restart")
async def test_pins_and_their_revision_outlive_the_process(tmp_path: Path) -> None:
    for round_number in range(2):
        file = SqliteFile(tmp_path / "hub.db")
        await file.start()
        store = SqlitePins(file)
        if round_number == 0:
            assert await store.put([a_pin(), a_pin("notes/write")])
            assert await store.put([then(a_pin())])
            revision = await store.revision()
        assert {pin.key: pin for pin in await store.of_source("notes")} == {
            a_pin().key: then(a_pin()),
            a_pin("notes/write").key: a_pin("notes/write"),
        }
        assert await store.revision() == revision
        await file.close()


async def test_closed_file_is_unavailable_to_pins(file: SqliteFile) -> None:
    store = SqlitePins(file)
    await file.close()
    asked = (
        store.of_source("notes"),
        store.put([a_pin()]),
        store.page(PinFilter(), after=None, limit=1),
        store.revision(),
        store.forget_source("notes"),
    )
    for refused in asked:
        with pytest.raises(ToolFailure) as failure:
            await refused
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
