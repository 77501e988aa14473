"""Finding jobs and listening for changes: the part of `JobStoreSuite` about pages and listeners."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.ports.job_records import HOUR_MS, RESULT, T0, a_job, ended, in_state, kept, running
from tests.ports.recording_listener import JobListener
from toolhub_service.domain.call import ExecContext
from toolhub_service.domain.job import Job, JobFilter, amend_job, move_job
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.result import FINAL_STATES, JobState, Progress


class JobStoreReadsSuite:
    # Finding

    async def test_a_job_whose_principal_may_not_be_seen_reads_as_an_unknown_one(self, started: JobStore) -> None:
        job = a_job("job-1")
        await started.create(job)
        owner = job.call.principal.id
        assert await started.get("job-1", owner.__eq__) == await started.get("job-1")
        assert await started.get("job-1", lambda _: False) is None
        assert await started.get("job-2", lambda _: True) is None

    async def test_pages_go_from_the_newest_to_the_oldest(self, started: JobStore) -> None:
        jobs = [a_job(f"job-{number}", created_at_unix_ms=T0 + number // 2) for number in range(9)]
        await asyncio.gather(*(started.create(job) for job in jobs))
        newest_first = sorted(jobs, key=lambda job: (job.created_at_unix_ms, job.job_id), reverse=True)
        after: tuple[int, str] | None = None
        read: list[Job] = []
        while True:
            page, count = await started.page(JobFilter(), after=after, limit=2)
            assert count == 9
            if not page:
                break
            read += page
            after = (page[-1].created_at_unix_ms, page[-1].job_id)
        assert read == newest_first

    @pytest.mark.parametrize(
        ("where", "found"),
        [
            (JobFilter(), {"a", "b", "c", "d"}),
            (JobFilter(principal="agent-b"), {"b"}),
            (JobFilter(owners="agent-b".__eq__), {"b"}),
            (JobFilter(owners=lambda _: False), set()),
            (JobFilter(states=frozenset({JobState.QUEUED})), {"a", "b"}),
            (JobFilter(states=frozenset({JobState.RUNNING, JobState.SUCCEEDED})), {"c", "d"}),
            (JobFilter(tool="core/math.sum"), {"a", "b", "c"}),
            (JobFilter(tool="core/*"), {"a", "b", "c"}),
            (JobFilter(tool="*.[st]?m"), {"a", "b", "c"}),
            (JobFilter(tool="[!c]*"), {"d"}),
            (JobFilter(tool="CORE/*"), set()),
            (JobFilter(tool="core/math.s_m"), set()),
            (JobFilter(request_id="r-1"), {"a", "c"}),
            (JobFilter(task_id="t-2"), {"c"}),
            (JobFilter(principal="agent-a", request_id="r-1", states=frozenset({JobState.RUNNING})), {"c"}),
        ],
    )
    async def test_filters_join_by_and(self, started: JobStore, where: JobFilter, found: set[str]) -> None:
        await kept(started, a_job("a", context=ExecContext("r-1", "t-1")))
        await kept(started, a_job("b", principal="agent-b"))
        await kept(started, *in_state(a_job("c", context=ExecContext("r-1", "t-2")), JobState.RUNNING))
        await kept(started, *in_state(a_job("d", tool="x/n8n.flow_1"), JobState.SUCCEEDED))
        page, count = await started.page(where, after=None, limit=10)
        assert {job.job_id for job in page} == found
        assert count == len(found)

    async def test_total_counts_beyond_the_page_and_the_cursor(self, started: JobStore) -> None:
        jobs = [a_job(f"job-{n}", principal=f"agent-{n % 2}", created_at_unix_ms=T0 + n) for n in range(10)]
        await asyncio.gather(*(started.create(job) for job in jobs))
        page, count = await started.page(JobFilter(principal="agent-1"), after=(T0 + 5, "job-5"), limit=1)
        assert [job.job_id for job in page] == ["job-3"]
        assert count == 5
        assert await started.page(JobFilter(), after=(T0, "job-0"), limit=5) == ([], 10)

    async def test_a_thousand_jobs_are_handled_in_bounded_time(self, started: JobStore) -> None:
        jobs = [a_job(f"job-{number:04}", created_at_unix_ms=T0 + number) for number in range(1_000)]
        assert await asyncio.gather(*(started.create(job) for job in jobs)) == [None] * 1_000
        runs = [running(job) for job in jobs]
        assert all(await asyncio.gather(*(started.put(job) for job in runs)))
        assert all(await asyncio.gather(*(started.put(ended(job)) for job in runs)))
        page, count = await started.page(JobFilter(states=FINAL_STATES), after=None, limit=100)
        assert [job.job_id for job in page] == [f"job-{number:04}" for number in range(999, 899, -1)]
        assert count == 1_000
        assert await started.forget(T0 + HOUR_MS, 600) == 600
        assert await started.forget(T0 + HOUR_MS, 600) == 400

    # Listening

    async def test_a_listener_receives_every_entry_and_nothing_else(
        self, started: JobStore, listener: JobListener
    ) -> None:
        job = a_job()
        runs = running(job)
        begun = amend_job(runs, begun=True)
        done = ended(begun)
        await kept(started, job, runs, begun, done)
        await listener.until(lambda: len(listener.sequences("job-1")) == 3)
        assert listener.sequences("job-1") == [1, 2, 3]
        entries = {entry.sequence: entry for entry in (job.status, runs.status, done.status)}
        assert all(news.status in (None, entries[news.sequence]) for news in listener.news if news.job_id)

    async def test_refused_change_is_not_heard(self, started: JobStore, listener: JobListener) -> None:
        job = await kept(started, a_job(key="k-1"))
        assert await started.create(a_job("job-2", key="k-1")) == job
        assert not await started.put(replace(running(job), version=7))
        assert await started.put(running(job))
        await listener.until(lambda: listener.sequences("job-1") == [1, 2])
        assert listener.sequences("job-2") == []

    async def test_a_listener_receives_changes_of_other_processes_in_order(
        self, started: JobStore, another: JobStore, listener: JobListener
    ) -> None:
        await kept(another, *in_state(a_job(), JobState.CANCELLING))
        await listener.until(lambda: len(listener.sequences("job-1")) == 3)
        assert listener.sequences("job-1") == [1, 2, 3]

    async def test_a_listener_receives_only_what_comes_after_the_start(
        self, store: JobStore, other: JobStore | None
    ) -> None:
        listener, writer = JobListener(), other or store
        if other is not None:
            await other.start()
        await kept(writer, a_job("before"))
        store.listen(listener)
        await store.start()
        await kept(writer, a_job("after"))
        await listener.until(lambda: bool(listener.sequences("after")))
        assert listener.sequences("before") == []
        for each in {store, writer}:
            await each.close()

    @pytest.mark.promise("watch.gapless")
    async def test_nothing_is_missed_and_order_holds_when_two_processes_write_one_job(
        self, started: JobStore, another: JobStore, listener: JobListener
    ) -> None:
        names = [f"job-{number}" for number in range(10)]

        async def work(job_id: str) -> None:
            job = a_job(job_id)
            await kept(started, job, job := running(job))
            for step in range(20):
                job = move_job(job, JobState.RUNNING, T0, progress=Progress(step))
                assert await (started, another)[step % 2].put(job)
            assert await another.put(ended(job))

        await asyncio.gather(*map(work, names))
        await listener.until(lambda: all(len(listener.sequences(name)) == 23 for name in names))
        assert all(listener.sequences(name) == list(range(1, 24)) for name in names)
        assert all(news.status is None or news.status.sequence == news.sequence for news in listener.news)

    async def test_a_listener_receives_large_entries(
        self, started: JobStore, another: JobStore, listener: JobListener
    ) -> None:
        runs = running(a_job())
        done = ended(runs)
        result = RESULT._replace(value="x" * 1024 * 1024)
        await kept(another, a_job(), runs, replace(done, status=replace(done.status, result=result)))
        await listener.until(lambda: listener.sequences("job-1") == [1, 2, 3])
        last = listener.news[-1].status
        assert last is None or last.result == result
