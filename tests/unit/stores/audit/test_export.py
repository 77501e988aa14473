"""Carrying the log elsewhere and letting old events go, over SQLite and over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import obstore
import obstore.exceptions
import pytest

from tests.fakes.s3_server import BUCKET, fake_s3
from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import files_in, started_log, unstarted_log, verified
from tests.unit.stores.audit.postgres_logs import postgres_log, postgres_verified, started_postgres_log
from toolhub_service.domain.event import Verification
from toolhub_service.stores.audit.export import BATCH_BYTES, Batch, BucketSink, Export, FileSink
from toolhub_service.stores.audit.log import ChainedAuditLog
from toolhub_service.stores.audit.retention import AuditRetention, EventArchive
from toolhub_service.stores.blobs.bucket import bucket_of

pytestmark = pytest.mark.promise("audit.export-at-least-once")


class RecordingExportObserver:
    """What an exporter says."""

    def __init__(self) -> None:
        self.behind = -1
        self.anew = 0
        self.refused = 0

    def on_export(self, sink: str, events: int, refused: int) -> None:
        self.refused += refused

    def backlog(self, sink: str, events: int) -> None:
        self.behind = events

    def begins_anew(self, sink: str) -> None:
        self.anew += 1


class LimitedTarget:
    """A place that takes `left` batches, and is away then."""

    name = "away"

    def __init__(self, left: int) -> None:
        self.left = left
        self.places: list[tuple[str, int]] = []
        self.bytes: list[int] = []

    def send(self, batch: Batch) -> int:
        if not self.left:
            raise ConnectionError("away")
        self.left -= 1
        self.places += [(row[1], row[2]) for row in batch.rows]
        self.bytes.append(sum(map(len, batch.lines)))
        return 0

    def close(self) -> None: ...


class BoastfulTarget(LimitedTarget):
    """A place that says how many it has refused, whatever it was sent."""

    def __init__(self, refused: int) -> None:
        super().__init__(1)
        self.says = refused

    def send(self, batch: Batch) -> int:
        super().send(batch)
        return self.says


@pytest.mark.parametrize(("says", "counted"), [(-5, 0), (-(2**63), 0), (3, 3), (10**9, 10), (2**63 - 1, 10)])
async def test_a_place_cannot_have_refused_fewer_than_none_or_more_than_it_was_sent(
    tmp_path: Path, says: int, counted: int
) -> None:
    log = await started_log(tmp_path)
    await filled(log, 1, 10)
    reports = RecordingExportObserver()
    export = Export(log.events, BoastfulTarget(says), reports)
    await drained(export)
    assert (reports.refused, reports.behind) == (counted, 0)
    await log.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChainedAuditLog]:
    if request.param == "sqlite":
        log: ChainedAuditLog = await started_log(tmp_path)
    else:
        log = await started_postgres_log(request.getfixturevalue("postgres_url"), tmp_path)
    yield log
    await log.close()


async def filled(log: ChainedAuditLog, first: int, last: int, **fields: Any) -> None:
    for number in range(first, last + 1):
        log.append(called(number, **fields))
    await log.flush()


async def verified_once_closed(log: ChainedAuditLog, request: Any, folder: Path) -> Verification:
    await log.close()
    is_postgres = "postgres" in request.node.callspec.id
    return postgres_verified(request.getfixturevalue("postgres_url"), folder) if is_postgres else verified(folder)


async def drained(export: Export) -> None:
    while await asyncio.to_thread(export.step):
        pass


async def test_a_place_that_was_away_gets_everything_in_order_and_a_batch_again_that_it_had(
    log: ChainedAuditLog,
) -> None:
    await filled(log, 1, 1_500)
    reports, sink = RecordingExportObserver(), LimitedTarget(1)
    export = Export(log.events, sink, reports)
    assert await asyncio.to_thread(export.step)
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(export.step)
    assert (len(sink.places), reports.behind, export.last_sent_row()) == (
        1_000,
        500,
        Export(log.events, sink, reports).last_sent_row(),
    )
    sink.left = 9
    await filled(log, 1_501, 1_600)
    await drained(Export(log.events, sink, reports))  # another process
    assert sink.places == [(log.writer, number) for number in range(1, 1_601)]
    assert (reports.behind, reports.anew) == (0, 0)
    await drained(Export(log.events, sink, reports))
    assert len(sink.places) == 1_600


async def test_tag_of_an_event_is_found_by_its_row(log: ChainedAuditLog) -> None:
    await filled(log, 1, 3)
    with closing(log.events.open(create=False)) as table:
        rows = table.news(0, 10)
        assert [table.tag_at(row[0]) for row in rows] == [row[11] for row in rows]
        assert table.tag_at(rows[-1][0] + 1) is None


async def test_batches_are_bounded_in_bytes(log: ChainedAuditLog) -> None:
    await filled(log, 1, 300, purpose="p" * 10_000)
    sink = LimitedTarget(99)
    await drained(Export(log.events, sink, RecordingExportObserver()))
    assert len(sink.places) == 300
    assert max(sink.bytes) <= BATCH_BYTES
    assert len(sink.bytes) == 4


async def test_one_process_of_all_has_the_turn_until_it_ends(
    log: ChainedAuditLog, request: Any, tmp_path: Path
) -> None:
    is_postgres = "postgres" in request.node.callspec.id
    other = postgres_log(request.getfixturevalue("postgres_url"), tmp_path) if is_postgres else unstarted_log(tmp_path)
    first = await asyncio.to_thread(log.events.take_upkeep_lock)
    assert first is not None
    assert await asyncio.to_thread(first.is_held)
    assert await asyncio.to_thread(other.events.take_upkeep_lock) is None
    first.close()
    async with asyncio.timeout(60):
        while (second := await asyncio.to_thread(other.events.take_upkeep_lock)) is None:
            pass  # PostgreSQL ends a session a moment after its connection
    second.close()


@pytest.mark.promise("audit.keep")
async def test_events_that_the_target_lacks_stay_at_any_age_and_the_rest_verifies(
    log: ChainedAuditLog, request: Any, tmp_path: Path
) -> None:
    await filled(log, 1, 40)
    archive = EventArchive(tmp_path / "old" / "archive")
    assert await asyncio.to_thread(log.prune, 31, 25, archive=archive) == 25
    assert await asyncio.to_thread(log.prune, 31, 25, archive=archive) == 0
    assert await asyncio.to_thread(log.prune, 31, archive=archive) == 5
    assert (await log.verify()).ok
    (file,) = (tmp_path / "old" / "archive").iterdir()
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    moved = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["sequence"] for each in moved] == list(range(1, 31))
    assert [each["previous_mac"] for each in moved[1:]] == [each["mac"] for each in moved[:-1]]
    await filled(log, 41, 45)
    found = await verified_once_closed(log, request, tmp_path)
    assert (found.faults, found.events_checked) == ((), 15)


async def test_retention_removes_expired_records_and_counts_them(tmp_path: Path) -> None:
    log, swept = await started_log(tmp_path), []
    await filled(log, 1, 40)
    retention = AuditRetention(log.prune, lambda: 100, 0.07, lambda: None, lambda *told: swept.append(told))
    assert [await asyncio.to_thread(retention.step) for _ in range(2)] == [True, False]
    assert swept == [("audit events", 29)]
    await log.close()


async def test_removal_goes_by_passes_and_a_chain_that_holds_a_young_event_early_stops_there(
    log: ChainedAuditLog, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub_service.stores.audit.retention.PASS_EVENTS", 12)
    monkeypatch.setattr("toolhub_service.stores.audit.retention._AT_ONCE", 5)
    for at in (*range(1, 31), 500, *range(31, 41)):
        log.append(called(at))
    await log.flush()
    passes = []
    while removed := await asyncio.to_thread(log.prune, 100):
        passes.append(removed)
    assert passes == [12, 12, 6]
    found = await verified_once_closed(log, request, tmp_path)
    assert (found.faults, found.events_checked) == ((), 11)


async def test_a_restored_log_is_carried_anew(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await filled(log, 1, 20)
    sink, reports = LimitedTarget(99), RecordingExportObserver()
    await drained(Export(log.events, sink, reports))
    await log.close()
    for file in files_in(tmp_path)[:2]:
        file.unlink()
    restored = await started_log(tmp_path, begin=True)
    await filled(restored, 1, 30)  # rows with the numbers of those that were carried
    await drained(Export(restored.events, sink, reports))
    assert reports.anew == 1
    assert sink.places[20:] == [(restored.writer, number) for number in range(1, 31)]
    await restored.close()


async def test_a_file_is_renamed_when_it_is_full_and_mended_where_a_crash_left_half_a_line(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await filled(log, 1, 10)
    place = tmp_path / "out" / "audit.jsonl"
    reports = RecordingExportObserver()
    export = Export(log.events, FileSink(place, 5_000), reports)
    await drained(export)
    assert (place.exists(), reports.refused) == (False, 0)
    (renamed,) = place.parent.iterdir()
    place.write_text('{"writer": "half a li')
    await filled(log, 11, 12)
    await drained(export)
    lines = renamed.read_text().splitlines() + place.read_text().splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == list(range(1, 13))
    assert renamed.stat().st_mode & 0o777 == 0o600
    await log.close()


async def test_a_bucket_gets_an_object_a_batch_once_it_answers_and_the_same_one_again_where_an_answer_is_lost(
    tmp_path: Path,
) -> None:
    log = await started_log(tmp_path)
    await filled(log, 1, 3)
    reports = RecordingExportObserver()
    with fake_s3() as s3:
        store = bucket_of(f"s3://{BUCKET}/audit", s3.environment())
        export = Export(log.events, BucketSink(lambda name, data: obstore.put(store, name, data)), reports)
        s3.contents.refuse_with = 503
        with pytest.raises(obstore.exceptions.GenericError):
            await asyncio.to_thread(export.step)
        assert (s3.contents.objects, export.last_sent_row(), reports.behind) == ({}, 0, 3)
        s3.contents.refuse_with, s3.contents.lose_answers = 0, 2
        await drained(export)
        assert (export.last_sent_row(), s3.contents.signed) == (3, {"test-id"})
        assert s3.contents.lose_answers == 0
        (name,) = s3.contents.objects
        assert name == f"audit/1970/01/01/000000000001-000000000003-{log.writer}-3.jsonl"
        lines = s3.contents.objects[name].data.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2, 3]
    await log.close()
