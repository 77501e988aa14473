"""When the audit log's thread wakes up, and who seals in the meantime."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.audit_log_suite import EVERYTHING, called
from tests.unit.stores.audit.logs_in import files_in, started_log, verified
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.event import Event
from toolhub_service.stores.audit import chain
from toolhub_service.stores.audit.log import WriterTiming
from toolhub_service.stores.audit.sqlite import SqliteEvents, SqliteEventTable

NEVER_BY_ITSELF = WriterTiming(linger_s=3_600.0)


class RecordingObserver:
    """What the log reports to its observer, and in which thread."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.events = 0
        self.threads: set[int] = set()
        self.news = asyncio.Event()
        self._then = then

    def audit_committed(self, events: int, seconds: float, depth: int) -> None:
        self.events += events
        self.threads.add(threading.get_ident())
        self.news.set()
        self._then()

    def audit_failed(self, reason: str) -> None:
        raise AssertionError(reason)

    async def until(self, events: int) -> None:
        async with asyncio.timeout(60):
            while self.events < events:
                self.news.clear()
                await self.news.wait()


async def test_event_that_nobody_waits_for_is_written_by_itself(tmp_path: Path) -> None:
    observer = RecordingObserver()
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.001), observer=observer)
    for count in range(1, 21):
        log.append(called(count))
        await observer.until(count)
    assert log.depth == 0
    await log.close()
    assert verified(tmp_path).events_checked == 20


async def test_durable_append_commits_the_events_queued_before_it(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=NEVER_BY_ITSELF)
    for number in range(1, 40, 2):
        log.append(called(number))
        await log.append_durably(called(number + 1))
        assert log.depth == 0
    log.append(called(41))
    await log.flush()
    assert log.depth == 0
    await log.close()
    assert log.depth == 0
    assert verified(tmp_path).events_checked == 41


async def test_a_plain_append_waits_however_much_another_log_writes(tmp_path: Path) -> None:
    observer = RecordingObserver()
    log = await started_log(tmp_path, timing=NEVER_BY_ITSELF, observer=observer)
    other = await started_log(tmp_path / "other")
    log.append(called(1))
    for number in range(1, 21):
        await other.append_durably(called(number))
    assert (observer.events, log.depth) == (0, 1)
    await log.flush()
    await observer.until(1)
    await other.close()
    await log.close()


async def test_the_chain_follows_the_order_of_appending_for_any_sealer(tmp_path: Path) -> None:
    dice = random.Random(7)
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0005, group_limit=7))
    waiting: list[asyncio.Task[None]] = []
    for number in range(1, 1_501):
        if dice.random() < 0.5:
            log.append(called(number))
        else:
            waiting.append(asyncio.create_task(log.append_durably(called(number))))
            await asyncio.sleep(0)  # until it is appended
        if dice.random() < 0.1:
            await asyncio.gather(*waiting)
    await asyncio.gather(*waiting)
    await log.flush()
    events = await log.read(EVERYTHING, after=None, limit=2_000)
    in_chain = sorted(events, key=lambda each: each.sequence)
    assert [each.event.at_unix_ms for each in in_chain] == list(range(1, 1_501))
    await log.close()
    verification = verified(tmp_path)
    assert (verification.ok, verification.events_checked) == (True, 1_500)


async def test_the_caller_resumes_before_the_observer_is_notified_of_its_commit(tmp_path: Path) -> None:
    order: list[str] = []
    observer = RecordingObserver(then=lambda: order.append("observer"))
    log = await started_log(tmp_path, timing=NEVER_BY_ITSELF, observer=observer)
    for number in range(1, 4):
        await log.append_durably(called(number))
        order.append("caller")
        await observer.until(number)
    assert order == ["caller", "observer"] * 3
    assert observer.threads == {threading.get_ident()}
    await log.close()


async def test_event_that_cannot_be_sealed_is_refused_and_written_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))

    def defect(event: Event) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", defect)
    with pytest.raises(ToolFailure) as refused:
        await log.append_durably(called(2))
    assert (refused.value.error.kind, log.depth) == (ErrorKind.IO_ERROR, 1)
    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", chain.canonical)
    await log.close()
    verification = verified(tmp_path)
    assert (verification.ok, verification.events_checked) == (True, 2)


async def test_broken_log_is_tried_again_now_and_then_and_not_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[str] = []

    class CountingObserver(RecordingObserver):
        def audit_failed(self, reason: str) -> None:
            failures.append(reason)

    def defect(event: Event) -> bytes:
        raise ZeroDivisionError

    log = await started_log(tmp_path, observer=CountingObserver())
    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", defect)
    with pytest.raises(ToolFailure):
        await log.append_durably(called(1))
    await asyncio.sleep(0.2)
    assert 1 <= len(failures) <= 3, "the first one, and one for what was set before it"
    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", chain.canonical)
    await log.close()


async def test_commits_are_bounded_though_events_have_piled_up_while_the_log_was_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PatientObserver(RecordingObserver):
        def __init__(self) -> None:
            super().__init__()
            self.commits: list[int] = []
            self.failures = threading.Semaphore(0)

        def audit_committed(self, events: int, seconds: float, depth: int) -> None:
            self.commits.append(events)

        def audit_failed(self, reason: str) -> None:
            self.failures.release()

    def defect(event: Event) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("toolhub_service.stores.audit.writer._RETRY_S", 0.01)
    observer = PatientObserver()
    timing = WriterTiming(linger_s=3_600.0, group_limit=5)
    log = await started_log(tmp_path, timing=timing, observer=observer)
    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", defect)
    for number in range(1, 21):
        log.append(called(number))
    with pytest.raises(ToolFailure):
        await log.flush()
    for _ in range(3):
        assert await asyncio.to_thread(observer.failures.acquire, timeout=60)
    monkeypatch.setattr("toolhub_service.stores.audit.log.canonical", chain.canonical)
    await log.flush()
    await log.close()
    assert observer.commits == [5, 5, 5, 5]


async def test_chain_is_attested_so_long_after_the_first_event_that_is_not_attested_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, carried = ManualClock(), list[str]()
    monkeypatch.setattr(
        "toolhub_service.stores.audit.writer.time",
        SimpleNamespace(monotonic=clock.monotonic_s, perf_counter=clock.monotonic_s),
    )
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0, checkpoint_s=30.0), witness=carried.append)
    clock.advance(100.0)
    for number in (1, 2):  # the second is durable once it has been decided whether the first is to be attested
        await log.append_durably(called(number))
    assert [json.loads(line)["kind"] for line in carried] == ["open"]
    clock.advance(30.0)
    for number in (3, 4):
        await log.append_durably(called(number))
    assert [json.loads(line)["kind"] for line in carried] == ["open", "periodic"]
    await log.close()


async def test_watcher_sees_events_of_other_processes_long_before_the_next_check_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteEvents, "check_s", 3_600.0)
    monkeypatch.setattr(SqliteEvents, "poll_s", 0.01)
    log, other = await started_log(tmp_path), await started_log(tmp_path)
    async with aclosing(log.tail(EVERYTHING)) as tail:
        await log.append_durably(called(1))  # from now on the writer knows that somebody watches
        assert (await anext(tail)).event.at_unix_ms == 1
        await other.append_durably(called(2))
        async with asyncio.timeout(20):
            assert (await anext(tail)).event.at_unix_ms == 2
    await other.close()
    await log.close()


async def test_write_ahead_log_is_carried_over_once_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied, tidy = threading.Event(), SqliteEventTable.tidy

    def noticed(table: SqliteEventTable) -> None:
        tidy(table)
        tidied.set()

    monkeypatch.setattr(SqliteEventTable, "tidy", noticed)
    log = await started_log(tmp_path)
    database = files_in(tmp_path)[0]
    size_bytes = database.stat().st_size
    for number in range(1, 300):
        log.append(called(number))
    await log.append_durably(called(300))
    assert await asyncio.to_thread(tidied.wait, 60)
    assert database.stat().st_size > size_bytes
    await log.close()
    assert verified(tmp_path).events_checked == 300
