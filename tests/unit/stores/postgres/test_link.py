"""Outages, crowds and impostors: what a process's link to PostgreSQL does when the server does not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.ports.job_records import a_job, kept, running
from tests.ports.recording_listener import JobListener
from tests.services import PostgresServer
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.job import JobFilter, JobNews, amend_job
from toolhub_service.stores.postgres.jobs import PostgresJobs
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.writer import BatchWriter

__all__ = ["link", "other_link"]


@pytest.fixture
async def own_link(own_postgres: PostgresServer) -> AsyncIterator[PostgresLink]:
    made = PostgresLink(own_postgres.url, patience_s=2.0)
    yield made
    await made.close()


async def answer_of(link: PostgresLink) -> object:
    """What it answers, or why it does not."""
    try:
        return await link.run(one, repeatable=False)
    except ToolFailure as failure:
        return failure.error.details["reason"]


async def one(connection: AsyncConnection) -> object:
    return await (await connection.execute("SELECT 1")).fetchone()


def reason(caught: pytest.ExceptionInfo[ToolFailure]) -> str:
    error = caught.value.error
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert error.is_retryable
    return str(error.details["reason"])


class TestOutages:
    async def test_server_that_is_not_there_is_reported_without_the_password(self) -> None:
        link = PostgresLink("postgresql://hub:t0psecret@127.0.0.1:1/jobs")
        with pytest.raises(ToolFailure) as caught:
            await link.start()
        assert reason(caught).startswith("no connection")
        assert caught.value.error.details["server"] == "127.0.0.1:1/jobs"
        assert "t0psecret" not in repr(caught.value.error)
        assert caught.value.__suppress_context__
        await link.close()

    async def test_refused_password_is_reported_as_such(self, postgres_url: str) -> None:
        link = PostgresLink(postgres_url.replace("postgres@", "nobody:t0psecret@"))
        with pytest.raises(ToolFailure) as caught:
            await link.start()
        assert "t0psecret" not in repr(caught.value.error)
        await link.close()

    @pytest.mark.parametrize("url", ["postgresql//hub:t0psecret@db", "postgresql://hub:t0psecret@db/x?colour=1"])
    def test_url_that_cannot_be_read_is_not_repeated(self, url: str) -> None:
        with pytest.raises(HubFailure) as caught:
            PostgresLink(url)
        assert caught.value.reason.name == "POSTGRES_URL_INVALID"
        assert "t0psecret" not in caught.value.message

    @pytest.mark.promise("store.outage")
    async def test_call_during_an_outage_fails_in_time_and_the_next_one_after_it_succeeds(
        self, own_postgres: PostgresServer, own_link: PostgresLink
    ) -> None:
        store = PostgresJobs(own_link)
        await store.start()
        job = await kept(store, a_job())
        own_postgres.stop()
        async with asyncio.timeout(60):
            for attempt in (store.get("job-1"), store.put(running(job)), store.create(a_job("job-2"))):
                with pytest.raises(ToolFailure) as caught:
                    await attempt
                reason(caught)
        own_postgres.start()
        async with asyncio.timeout(60):
            assert await store.get("job-1") == job
            assert await store.put(running(job))
        await store.close()

    async def test_connections_that_died_unseen_lose_no_answer(
        self, own_postgres: PostgresServer, own_link: PostgresLink
    ) -> None:
        store = PostgresJobs(own_link)
        await store.start()
        job = await kept(store, a_job())
        for attempt in range(2):
            await asyncio.gather(*(store.get("job-1") for _ in range(50)))  # The pool has grown.
            own_postgres.restart()
            if attempt:
                assert await store.get("job-1") == job
            assert await store.put(job := amend_job(job, approval_id=str(attempt)))
            assert await store.create(a_job(f"new-{attempt}")) is None
        await store.close()

    async def test_created_job_whose_answer_was_lost_is_created_once(self, link: PostgresLink) -> None:
        store = PostgresJobs(link)
        await store.start()
        job = a_job(key="k-1")
        assert await store.create(job) is None
        assert await store.create(job) is None
        assert await store.create(a_job("job-2", key="k-1")) == job
        assert (await store.page(JobFilter(), after=None, limit=9))[1] == 1
        await store.close()

    async def test_frozen_server_is_given_up_and_used_again_when_it_goes_on(self, own_postgres: PostgresServer) -> None:
        link = PostgresLink(own_postgres.url, patience_s=2.0)
        await link.start()
        backend = await link.run(pid_of, repeatable=False)
        os.kill(backend, signal.SIGSTOP)
        try:
            assert await answer_of(link) in ("no answer in time", (1,)), "the latter by a connection made in time"
        finally:
            os.kill(backend, signal.SIGCONT)
        async with asyncio.timeout(60):
            assert await link.run(one, repeatable=False) == (1,)
            await link.close()

    async def test_statement_that_takes_too_long_is_ended_by_the_server(self, postgres_url: str) -> None:
        link = PostgresLink(postgres_url, patience_s=1.0)
        await link.start()
        with pytest.raises(ToolFailure) as caught:
            await link.run(lambda connection: connection.execute("SELECT pg_sleep(60)"), repeatable=False)
        assert reason(caught) == "no answer in time"
        assert await link.run(one, repeatable=False) == (1,)
        await link.close()

    async def test_closed_link_refuses(self, link: PostgresLink) -> None:
        await link.start()
        await link.close()
        with pytest.raises(ToolFailure) as caught:
            await link.run(one, repeatable=True)
        assert reason(caught) == "the hub is closing"

    async def test_commits_wait_for_the_disk_although_the_database_would_not(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            (name,) = admin.execute("SELECT current_database()").fetchone() or ("",)
            admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')  # type: ignore[call-overload, unused-ignore]
        link = PostgresLink(postgres_url)
        await link.start()

        async def setting(connection: AsyncConnection) -> object:
            return await (await connection.execute("SHOW synchronous_commit")).fetchone()

        assert await link.run(setting, repeatable=True) == ("on",)
        await link.close()


async def pid_of(connection: AsyncConnection) -> int:
    return connection.info.backend_pid


class TestNotifications:
    async def test_own_entries_arrive_whole_and_others_are_read_from_the_store(
        self, link: PostgresLink, other_link: PostgresLink
    ) -> None:
        store, other, listener = PostgresJobs(link), PostgresJobs(other_link), JobListener()
        store.listen(listener)
        await store.start()
        await other.start()
        job = await kept(store, a_job())
        runs = running(job)
        assert await other.put(runs)
        await listener.until(lambda: len(listener.news) == 2)
        assert listener.news == [JobNews("job-1", 1, job.status), JobNews("job-1", 2, None)]
        await store.close()
        await other.close()

    async def test_lost_connection_is_reported_as_a_gap_and_updates_go_on(
        self, own_postgres: PostgresServer, own_link: PostgresLink
    ) -> None:
        store, listener = PostgresJobs(own_link), JobListener()
        store.listen(listener)
        await store.start()
        await kept(store, a_job())
        await listener.until(lambda: listener.sequences("job-1") == [1])
        own_postgres.restart()
        await listener.until(lambda: JobNews("") in listener.news)
        assert await store.put(running(a_job()))
        await listener.until(lambda: listener.sequences("job-1") == [1, 2])
        await store.close()

    async def test_updates_that_no_hub_has_sent_are_skipped(self, hub_postgres_url: str, link: PostgresLink) -> None:
        store, listener = PostgresJobs(link), JobListener()
        store.listen(listener)
        await store.start()
        with psycopg.connect(hub_postgres_url, autocommit=True) as stranger:
            for payload in ("", "job-1", "job-1 x y", " 1 y", "job-1 -1 y"):
                stranger.execute("SELECT pg_notify(%s, %s)", (link.channel("jobs"), payload))
        await kept(store, a_job())
        await listener.until(lambda: bool(listener.news))
        assert [news.job_id for news in listener.news] == ["job-1"]
        await store.close()

    async def test_schemas_of_one_database_are_stores_of_their_own(self, postgres_url: str) -> None:
        links = []
        for name in ("one", "two"):
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute(f"CREATE SCHEMA {name}")  # type: ignore[call-overload, unused-ignore]
            links.append(PostgresLink(f"{postgres_url}?options=-csearch_path%3D{name}"))
        one, two = map(PostgresJobs, links)
        listener = JobListener()
        one.listen(listener)
        await one.start()
        await two.start()
        await kept(two, a_job("elsewhere"))
        await kept(one, a_job("here"))
        await listener.until(lambda: bool(listener.news))
        assert [news.job_id for news in listener.news] == ["here"]
        assert await one.get("elsewhere") is None
        for store in (one, two):
            await store.close()
        for each in links:
            await each.close()


class TestTexts:
    async def test_characters_that_the_database_cannot_hold_stay_apart(self, link: PostgresLink) -> None:
        store = PostgresJobs(link)
        await store.start()
        names = ["a\0b", "a\\0b", "a\\\\0b", "ab"]
        for number, name in enumerate(names):
            assert await store.create(a_job(f"job-{number}", principal=name, key="k\0")) is None
        for number, name in enumerate(names):
            page, count = await store.page(JobFilter(principal=name), after=None, limit=9)
            assert ([job.job_id for job in page], count) == ([f"job-{number}"], 1)
            assert page[0].call.principal.id == name
        assert await store.get("job-\0") is None
        await store.close()

    async def test_names_of_any_length_are_kept_and_found(self, link: PostgresLink) -> None:
        store = PostgresJobs(link)
        await store.start()
        long = os.urandom(20_000).hex()
        job = a_job(principal=long, key=long)
        job = a_job(principal=long, key=long, context=job.call.context._replace(request_id=long, task_id=long))
        await kept(store, job)
        where = JobFilter(principal=long, request_id=long, task_id=long)
        assert await store.page(where, after=None, limit=9) == ([job], 1)
        await store.close()


class TestBatchWriter:
    async def test_waiting_changes_go_together_and_those_of_one_key_in_turn(self, link: PostgresLink) -> None:
        await link.start()
        groups: list[list[str]] = []

        async def write(connection: AsyncConnection, wanted: list[str]) -> list[int]:
            groups.append(list(wanted))
            await one(connection)
            return [len(groups)] * len(wanted)

        writer: BatchWriter[str, int] = BatchWriter(link, write, key=lambda each: each[0], repeatable=True)  # type: ignore[arg-type]
        answers = await asyncio.gather(*map(writer.put, ("a1", "a2", "b1", "a3")))
        assert groups == [["a1", "b1"], ["a2"], ["a3"]]
        assert answers == [1, 2, 1, 3]
        await writer.close()

    async def test_cancelled_caller_is_left_out_and_delays_nobody(self, link: PostgresLink) -> None:
        await link.start()
        written: list[str] = []
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def write(_: AsyncConnection, wanted: list[str]) -> list[None]:
            begun.set()
            await go_on.wait()
            written.extend(wanted)
            return [None] * len(wanted)

        writer: BatchWriter[str, None] = BatchWriter(link, write, key=lambda each: each, repeatable=True)  # type: ignore[arg-type]
        first = asyncio.create_task(writer.put("first"))
        await begun.wait()
        gone, stays = asyncio.create_task(writer.put("gone")), asyncio.create_task(writer.put("stays"))
        await asyncio.sleep(0)
        gone.cancel()
        go_on.set()
        await asyncio.gather(first, stays)
        assert written == ["first", "stays"]

    async def test_defect_is_raised_for_every_caller(self, link: PostgresLink) -> None:
        await link.start()

        async def write(_: AsyncConnection, wanted: list[str]) -> list[None]:
            raise KeyError("defect")

        writer: BatchWriter[str, None] = BatchWriter(link, write, key=lambda each: each, repeatable=True)  # type: ignore[arg-type]
        answers = await asyncio.gather(*map(writer.put, "abc"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [KeyError] * 3
