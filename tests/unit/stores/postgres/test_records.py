"""The suites on a real PostgreSQL, with another process's link beside: news, clocks and outages."""

from __future__ import annotations

import asyncio
import os
import time

import psycopg
import pytest
from msgspec.structs import replace

from tests.ports.approval_store_suite import MINUTE_MS, ApprovalStoreSuite, an_approval
from tests.ports.artifact_records_suite import ArtifactRecordsSuite, an_artifact
from tests.ports.job_records import a_job, kept
from tests.ports.pin_store_suite import Damage, PinStoreSuite, WrittenPinsSuite, a_pin
from tests.ports.record_store_suite import ListenerSuite, RecordStoreSuite
from tests.ports.recording_listener import ApprovalListener, JobListener
from tests.services import PostgresServer
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.artifact import Artifact, ArtifactRecords
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.source import PinStore
from toolhub_service.stores.postgres.jobs import PostgresJobs
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import PostgresApprovals, PostgresArtifacts, PostgresPins, PostgresRecords
from toolhub_service.stores.postgres.writer import TableWriter
from toolhub_service.stores.record_store import APPROVALS, ARTIFACTS, PINS, RecordStore

__all__ = ["link", "other_link"]


class TestPostgresRecords(RecordStoreSuite, ListenerSuite):
    @pytest.fixture
    def approvals(self, link: PostgresLink) -> RecordStore[Approval]:
        return PostgresRecords(link, APPROVALS)

    @pytest.fixture
    def store(self, link: PostgresLink) -> RecordStore[Approval]:
        return PostgresRecords(link, APPROVALS, is_announced=True)

    @pytest.fixture
    def artifacts(self, link: PostgresLink) -> RecordStore[Artifact]:
        return PostgresRecords(link, ARTIFACTS)

    @pytest.fixture
    def pins(self, link: PostgresLink) -> RecordStore[Pin]:
        return PostgresRecords(link, PINS)

    @pytest.fixture
    def other_pins(self, other_link: PostgresLink) -> RecordStore[Pin]:
        return PostgresRecords(other_link, PINS)


class TestPostgresApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self, link: PostgresLink) -> ApprovalStore:
        return PostgresApprovals(link)

    @pytest.fixture
    def other(self, other_link: PostgresLink) -> ApprovalStore:
        return PostgresApprovals(other_link)


class TestPostgresArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self, link: PostgresLink) -> ArtifactRecords:
        return PostgresArtifacts(link)

    @pytest.fixture
    def other(self, other_link: PostgresLink) -> ArtifactRecords:
        return PostgresArtifacts(other_link)


class TestPostgresPins(PinStoreSuite, WrittenPinsSuite):
    @pytest.fixture
    def store(self, link: PostgresLink) -> PinStore:
        return PostgresPins(link)

    @pytest.fixture
    def other(self, other_link: PostgresLink) -> PinStore:
        return PostgresPins(other_link)

    @pytest.fixture
    def damage(self, link: PostgresLink) -> Damage:
        async def overwrite(pin: Pin, record: bytes) -> None:
            changed, _ = await link.execute(
                "UPDATE pins SET record = %s WHERE source = %s AND tool = %s AND digest = %s", (record, *pin.key)
            )
            assert changed == 1

        return overwrite


async def started(link: PostgresLink) -> PostgresApprovals:
    await link.start()
    return PostgresApprovals(link)


class TestTwoHubs:
    async def test_one_of_many_equal_requests_asks(self, link: PostgresLink, other_link: PostgresLink) -> None:
        stores = await started(link), await started(other_link)
        asked = [an_approval(f"apr-{number}") for number in range(20)]
        found = await asyncio.gather(*(stores[n % 2].create(each) for n, each in enumerate(asked)))
        first = asked[found.index(None)]
        assert [each for each in found if each is not None] == [first] * 19

    async def test_one_of_several_removals_of_shared_bytes_is_the_last(
        self, link: PostgresLink, other_link: PostgresLink
    ) -> None:
        await asyncio.gather(link.start(), other_link.start())
        stores = PostgresArtifacts(link), PostgresArtifacts(other_link)
        for number in range(20):
            await stores[0].add(an_artifact(f"art-{number}"))
        removed = await asyncio.gather(*(stores[n % 2].remove(f"art-{n}") for n in range(20)))
        assert removed.count(True) == 1
        assert await stores[1].usage("agent-a") == (0, 0)

    async def test_hub_whose_clock_is_ahead_ends_nothing(self, link: PostgresLink) -> None:
        store = await started(link)
        now_unix_ms = time.time_ns() // 1_000_000
        lasting = an_approval(requested_at_unix_ms=now_unix_ms, expires_at_unix_ms=now_unix_ms + 60 * MINUTE_MS)
        await store.create(lasting)
        assert list(await store.read_expired(now_unix_ms + 600 * MINUTE_MS, 9)) == []
        await store.put(replace(lasting, version=2, state=ApprovalState.REJECTED))
        assert await store.forget(now_unix_ms + 600 * MINUTE_MS, 9) == 0


class TestNotifications:
    async def test_record_of_any_size_is_reported_whole_and_in_its_place(
        self, link: PostgresLink, other_link: PostgresLink
    ) -> None:
        store, listener = PostgresApprovals(link), ApprovalListener()
        store.listen(listener)
        await store.start()
        other = await started(other_link)
        reasons = ["", "x" * 60_000, os.urandom(30_000).hex(), "small"]
        asked = [an_approval(f"apr-{n}", tool=f"a/{n}", reason=reason) for n, reason in enumerate(reasons)]
        for each in asked:
            assert await other.create(each) is None
        await listener.until(lambda: asked[-1] in listener.news)
        assert listener.news == asked
        await store.close()

    async def test_updates_that_no_hub_has_sent_are_skipped(self, hub_postgres_url: str, link: PostgresLink) -> None:
        store, listener = PostgresApprovals(link), ApprovalListener()
        store.listen(listener)
        await store.start()
        with psycopg.connect(hub_postgres_url, autocommit=True) as stranger:
            for payload in ("", "approval", "1 x y", "1 0 ?", "-1 0 AAAA"):
                stranger.execute("SELECT pg_notify(%s, %s)", (link.channel("approvals"), payload))
            stranger.execute("SELECT pg_notify(%s, %s)", (link.channel("approvals"), "1 0 AAAA"))
        await store.create(an_approval())
        await listener.until(lambda: an_approval() in listener.news)
        assert listener.news == [None, an_approval()], "what reads like a record and is none is a gap"
        await store.close()

    async def test_lost_connection_is_announced_as_a_gap_and_updates_go_on(self, own_postgres: PostgresServer) -> None:
        link = PostgresLink(own_postgres.url, patience_s=2.0)
        store, listener = PostgresApprovals(link), ApprovalListener()
        store.listen(listener)
        await store.start()
        await store.create(an_approval())
        await listener.until(lambda: an_approval() in listener.news)
        own_postgres.restart()
        await listener.until(lambda: None in listener.news)
        await store.create(later := an_approval("apr-2", tool="other/tool"))
        await listener.until(lambda: later in listener.news)
        assert listener.news.index(an_approval()) < listener.news.index(None) < listener.news.index(later)
        await store.close()
        await link.close()

    async def test_stores_of_one_link_share_its_connection_and_receive_their_own_changes(
        self, link: PostgresLink
    ) -> None:
        jobs, job_listener = PostgresJobs(link), JobListener()
        jobs.listen(job_listener)
        await jobs.start()
        store, listener = PostgresApprovals(link), ApprovalListener()
        store.listen(listener)
        await store.start()
        await store.create(an_approval())
        await kept(jobs, a_job())
        await listener.until(lambda: an_approval() in listener.news)
        await job_listener.until(lambda: job_listener.sequences("job-1") == [1])
        listening = (
            "SELECT count(*) FROM pg_stat_activity WHERE starts_with(query, 'LISTEN') AND datname = current_database()"
        )
        assert await link.rows(listening) == [(1,)]
        await jobs.close()
        await store.close()


class TestOutages:
    async def test_calls_fail_in_time_and_the_next_ones_after_it_succeed(self, own_postgres: PostgresServer) -> None:
        link = PostgresLink(own_postgres.url, patience_s=2.0)
        store = await started(link)
        await store.create(an_approval())
        own_postgres.stop()
        async with asyncio.timeout(60):
            for attempt in (store.get("apr-1"), store.create(an_approval("apr-2", tool="other/tool"))):
                with pytest.raises(ToolFailure) as caught:
                    await attempt
                assert caught.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
        own_postgres.start()
        async with asyncio.timeout(60):
            assert await store.get("apr-1") == an_approval()
            assert await store.create(an_approval("apr-2", tool="other/tool")) is None
        await link.close()

    async def test_a_locked_table_holds_no_caller_up_for_ever(self, hub_postgres_url: str) -> None:
        link = PostgresLink(hub_postgres_url, patience_s=1.0)
        store = await started(link)
        async with await psycopg.AsyncConnection.connect(hub_postgres_url) as stranger:
            await stranger.execute("SELECT pg_advisory_xact_lock(hashtext('toolhub approvals'), hashtext('public'))")
            with pytest.raises(ToolFailure) as caught:
                await store.create(an_approval())
            assert caught.value.error.details["reason"] == "no answer in time"
        assert await store.create(an_approval()) is None
        await link.close()

    async def test_group_of_which_one_cannot_be_written_leaves_nothing_and_the_next_is_written(
        self, link: PostgresLink
    ) -> None:
        await link.start()
        writer = TableWriter(link, "pins")
        count = "INSERT INTO record_revisions VALUES (%s, 1) RETURNING 1"
        done = await asyncio.gather(
            writer.run(count, ("one",)),
            writer.run("SELECT 1 / 0", ()),
            writer.run(count, ("two",)),
            return_exceptions=True,
        )
        assert [type(each) for each in done] == [ToolFailure] * 3
        assert await link.rows("SELECT name FROM record_revisions") == []
        assert await writer.run(count, ("three",)) == [(1,)]


class TestTexts:
    async def test_characters_that_the_database_cannot_hold_stay_apart(self, link: PostgresLink) -> None:
        store = await started(link)
        names = ["a\0b", "a\\0b", "a\\\\0b", "ab", "x" * 20_000]
        for number, name in enumerate(names):
            asked = an_approval(f"apr-{number}\0", principal=name)
            assert await store.create(asked) is None
            page, count = await store.page(ApprovalFilter(principal=name), after=None, limit=9)
            assert (list(page), count) == ([asked], 1)
            assert await store.get(asked.approval_id) == asked

    async def test_pages_are_bounded(self, link: PostgresLink) -> None:
        await link.start()
        store = PostgresPins(link)
        await store.put([a_pin(f"notes/t{number:03}") for number in range(300)])
        found: list[Pin] = []
        page, count = await store.page(PinFilter(tool="notes/t*"), after=None, limit=70)
        while page:
            assert (len(page) <= 70, count) == (True, 300)
            found += page
            after = (page[-1].seen_at_unix_ms, *page[-1].key)
            page, count = await store.page(PinFilter(tool="notes/t*"), after=after, limit=70)
        assert [pin.tool for pin in found] == [f"notes/t{number:03}" for number in reversed(range(300))]
        assert (await store.page(PinFilter(), after=None, limit=0)) == ([], 300)
