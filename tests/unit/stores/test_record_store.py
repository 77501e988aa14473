"""The suite of the port on each backend."""

from __future__ import annotations

import pytest

from tests.ports.record_store_suite import ListenerSuite, RecordStoreSuite
from tests.unit.stores.redis.redis_links import link, other_link
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.pin import Pin
from toolhub_service.stores.memory.records import MemoryRecords
from toolhub_service.stores.record_store import APPROVALS, ARTIFACTS, PINS, RecordStore
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.record_layouts import APPROVAL_LAYOUT, ARTIFACT_LAYOUT, PIN_LAYOUT
from toolhub_service.stores.redis.records import RedisRecords
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteRecords

__all__ = ["file", "link", "other_file", "other_link"]


class TestMemoryRecords(RecordStoreSuite, ListenerSuite):
    @pytest.fixture
    def approvals(self) -> RecordStore[Approval]:
        return MemoryRecords(APPROVALS)

    @pytest.fixture
    def store(self) -> RecordStore[Approval]:
        return MemoryRecords(APPROVALS)

    @pytest.fixture
    def artifacts(self) -> RecordStore[Artifact]:
        return MemoryRecords(ARTIFACTS)

    @pytest.fixture
    def pins(self) -> RecordStore[Pin]:
        return MemoryRecords(PINS)

    @pytest.fixture
    def other_pins(self, pins: RecordStore[Pin]) -> RecordStore[Pin]:
        return pins


class TestSqliteRecords(RecordStoreSuite, ListenerSuite):
    @pytest.fixture
    def approvals(self, file: SqliteFile) -> RecordStore[Approval]:
        return SqliteRecords(file, APPROVALS, changes="approval_changes")

    @pytest.fixture
    def store(self, file: SqliteFile) -> RecordStore[Approval]:
        return SqliteRecords(file, APPROVALS, changes="approval_changes")

    @pytest.fixture
    def artifacts(self, file: SqliteFile) -> RecordStore[Artifact]:
        return SqliteRecords(file, ARTIFACTS)

    @pytest.fixture
    def pins(self, file: SqliteFile) -> RecordStore[Pin]:
        return SqliteRecords(file, PINS, revision="pin_revision")

    @pytest.fixture
    def other_pins(self, other_file: SqliteFile) -> RecordStore[Pin]:
        return SqliteRecords(other_file, PINS, revision="pin_revision")


class TestRedisRecords(RecordStoreSuite, ListenerSuite):
    @pytest.fixture
    def approvals(self, link: RedisLink) -> RecordStore[Approval]:
        return RedisRecords(link, APPROVALS, APPROVAL_LAYOUT)

    @pytest.fixture
    def store(self, link: RedisLink) -> RecordStore[Approval]:
        return RedisRecords(link, APPROVALS, APPROVAL_LAYOUT)

    @pytest.fixture
    def artifacts(self, link: RedisLink) -> RecordStore[Artifact]:
        return RedisRecords(link, ARTIFACTS, ARTIFACT_LAYOUT)

    @pytest.fixture
    def pins(self, link: RedisLink) -> RecordStore[Pin]:
        return RedisRecords(link, PINS, PIN_LAYOUT)

    @pytest.fixture
    def other_pins(self, other_link: RedisLink) -> RecordStore[Pin]:
        return RedisRecords(other_link, PINS, PIN_LAYOUT)
