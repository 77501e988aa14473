"""What every store of jobs must do, whoever shares it. Inherit `JobStoreSuite` and give an empty store.

Fixtures of the subclass: `store` (not started yet, so that a test may listen first), `other` (a second instance on the
same storage, as another process has it, not started either; None where nothing is shared). The suite closes both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.ports.job_store_cast import FINAL, HOUR_MS, RESULT, T0, Ear, a_job, ended, in_state, kept, running
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import ExecContext, Mode
from toolhub_service.domain.job import Job, JobFilter, JobTally, RemoteMark
from toolhub_service.domain.job_machine import ForbiddenTransition, amended, moved
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.job_state import FINAL_STATES, JobState
from toolhub_service.domain.progress import Progress


class JobStoreSuite:
    @pytest.fixture
    def ear(self) -> Ear:
        return Ear()

    @pytest.fixture
    async def started(self, store: JobStore, ear: Ear) -> AsyncIterator[JobStore]:
        store.listen(ear)
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def another(self, other: JobStore | None, started: JobStore) -> AsyncIterator[JobStore]:
        """The second instance, or the first once more where nothing is shared."""
        if other is None:
            yield started
        else:
            await other.start()
            yield other
            await other.close()

    # Creating

    async def test_created_job_is_read_whole_by_everyone(self, started: JobStore, another: JobStore) -> None:
        job = a_job(
            context=ExecContext("r-1", "t-1", permissions=frozenset({"fs:read"}), labels={"a": "b"}),
            args={"large": 2**80, "none": None, "text": "é😀\x00", "ratio": 1.0},
            mode=Mode.SUBMIT,
            state_since_unix_ms=T0,
            trace_parent="00-1",
        )
        assert await started.create(job) is None
        assert await another.get("job-1") == job
        assert list(await another.history("job-1", 0, 10)) == [job.status]

    async def test_unknown_job_is_none_and_has_no_history(self, started: JobStore) -> None:
        assert await started.get("job-1") is None
        assert list(await started.history("job-1", 0, 10)) == []

    async def test_same_key_of_the_same_principal_and_tool_gives_the_standing_job(
        self, started: JobStore, another: JobStore
    ) -> None:
        first = running(a_job(key="k-1"))
        await kept(started, a_job(key="k-1"), first)
        assert await another.create(a_job("job-2", key="k-1")) == first
        assert await another.get("job-2") is None

    @pytest.mark.parametrize(
        "changes", [{"key": "k-2"}, {"key": "k-1", "principal": "agent-b"}, {"key": "k-1", "tool": "core/math.mean"}]
    )
    async def test_key_in_another_scope_is_another_key(self, started: JobStore, changes: dict[str, str]) -> None:
        assert await started.create(a_job(key="k-1")) is None
        assert await started.create(a_job("job-2", **changes)) is None

    async def test_same_id_under_the_same_key_gives_the_standing_job_as_it_stands(
        self, started: JobStore, another: JobStore
    ) -> None:
        runs = await kept(started, a_job(key="k-1"), running(a_job(key="k-1")))
        assert await another.create(a_job(key="k-1", args={"other": 1}, args_digest="b" * 64)) == runs
        assert await started.get("job-1") == runs
        assert [entry.sequence for entry in await started.history("job-1", 0, 10)] == [1, 2]

    async def test_parts_of_a_scope_do_not_run_into_one_another(self, started: JobStore) -> None:
        assert await started.create(a_job("job-1", principal="a", tool="b/c", key="d")) is None
        assert await started.create(a_job("job-2", principal="a/b", tool="c", key="d")) is None
        assert await started.create(a_job("job-3", principal="a", tool="b", key="c/d")) is None

    async def test_jobs_without_a_key_never_meet(self, started: JobStore) -> None:
        assert await started.create(a_job("job-1")) is None
        assert await started.create(a_job("job-2")) is None

    @pytest.mark.promise("jobs.same-key-same-job")
    async def test_many_creations_with_one_key_make_one_job(self, started: JobStore, another: JobStore) -> None:
        jobs = [a_job(f"job-{number}", key="k-1") for number in range(50)]
        answers = await asyncio.gather(*((started, another)[n % 2].create(job) for n, job in enumerate(jobs)))
        assert answers.count(None) == 1
        winner = jobs[answers.index(None)]
        assert all(answer in (None, winner) for answer in answers)
        _, count = await started.page(JobFilter(), after=None, limit=1)
        assert count == 1

    # Changing

    async def test_put_replaces_the_record_and_appends_the_entry(self, started: JobStore, another: JobStore) -> None:
        job = a_job()
        progress = Progress(1.0, 5.0, "rows", "half", 2.5)
        part = (ArtifactRef("art-1", "e" * 64, 7, "text/plain", "a.txt", T0 + 9),)
        steps = [job, runs := running(job), moved(runs, JobState.RUNNING, T0 + 2, progress=progress, artifacts=part)]
        steps.append(ended(steps[-1]))
        await kept(started, *steps)
        assert await another.get("job-1") == steps[-1]
        assert list(await another.history("job-1", 0, 10)) == [step.status for step in steps]

    async def test_every_field_of_the_record_may_change(self, started: JobStore, another: JobStore) -> None:
        job = a_job()
        mark = RemoteMark("key", "remote-1", True, "gpu-1", {"queue": "q"})
        then = running(job)
        then = amended(
            then,
            begun=True,
            remote=mark,
            cancel_reason="",
            cancelled_by="boss",
            approval_id="apr-1",
            deadline_unix_ms=T0 + 5,
            args_digest="b" * 64,
            call=job.call._replace(approval_id="apr-1", purpose="another"),
        )
        await kept(started, job, replace(then, version=2))
        assert await another.get("job-1") == replace(then, version=2)

    async def test_amended_record_adds_nothing_to_the_history(self, started: JobStore) -> None:
        runs = running(a_job())
        last = await kept(started, a_job(), runs, amended(runs, begun=True))
        assert await started.get("job-1") == last
        assert [status.sequence for status in await started.history("job-1", 0, 10)] == [1, 2]

    async def test_put_of_an_unknown_job_changes_nothing(self, started: JobStore) -> None:
        assert not await started.put(running(a_job()))
        assert await started.get("job-1") is None

    @pytest.mark.promise("jobs.compare-and-set")
    async def test_stale_record_is_refused(self, started: JobStore, another: JobStore) -> None:
        job = a_job()
        runs = await kept(started, job, running(job))
        assert not await another.put(moved(job, JobState.CANCELLED, T0 + 5, result=RESULT))
        assert not await started.put(running(job, "runner-2")), "the same version again"
        assert not await started.put(replace(runs, version=runs.version + 2)), "a version left out"
        assert await started.get("job-1") == runs

    @pytest.mark.parametrize("state", FINAL)
    @pytest.mark.promise("jobs.one-machine")
    async def test_nothing_follows_a_final_state(self, started: JobStore, state: JobState) -> None:
        last = await kept(started, *in_state(a_job(), state))
        after = last.status._replace(sequence=4, state=JobState.RUNNING, result=None)
        with pytest.raises(ForbiddenTransition):
            await started.put(replace(last, version=4, status=after))
        assert await started.get("job-1") == last

    @pytest.mark.promise("jobs.one-machine")
    async def test_forbidden_transition_and_a_gap_are_refused(self, started: JobStore) -> None:
        job = await kept(started, a_job())
        for status in (
            job.status._replace(sequence=2, state=JobState.QUEUED),
            job.status._replace(sequence=3, state=JobState.RUNNING),
            job.status._replace(sequence=0, state=JobState.RUNNING),
        ):
            with pytest.raises(ForbiddenTransition):
                await started.put(replace(job, version=2, status=status))
        assert await started.get("job-1") == job
        assert list(await started.history("job-1", 0, 10)) == [job.status]

    @pytest.mark.promise("jobs.compare-and-set")
    async def test_one_of_many_concurrent_writers_wins(self, started: JobStore, another: JobStore) -> None:
        job = await kept(started, a_job())
        wanted = [running(job, f"runner-{number}") for number in range(50)]
        answers = await asyncio.gather(*((started, another)[n % 2].put(each) for n, each in enumerate(wanted)))
        assert answers.count(True) == 1
        assert await started.get("job-1") == wanted[answers.index(True)]
        assert [status.sequence for status in await started.history("job-1", 0, 10)] == [1, 2]

    async def test_refused_neighbours_do_not_fail_a_put(self, started: JobStore) -> None:
        good, bad, stale = [await kept(started, a_job(f"job-{name}")) for name in ("good", "bad", "stale")]
        forbidden = replace(bad, version=2, status=bad.status._replace(sequence=2, state=JobState.QUEUED))
        answers = await asyncio.gather(
            started.put(forbidden),
            started.put(running(good)),
            started.put(replace(running(stale), version=7)),
            return_exceptions=True,
        )
        assert isinstance(answers[0], ForbiddenTransition)
        assert list(answers[1:]) == [True, False]

    @pytest.mark.promise("watch.gapless")
    async def test_history_has_no_gap_whoever_writes(self, started: JobStore, another: JobStore) -> None:
        await kept(started, a_job(), running(a_job()))

        async def report(store: JobStore, times: int) -> None:
            while times:
                job = await store.get("job-1")
                assert job is not None
                times -= await store.put(moved(job, JobState.RUNNING, T0, progress=Progress(times)))

        await asyncio.gather(*(report(store, 10) for store in (started, another) * 3))
        history = await started.history("job-1", 0, 100)
        assert [status.sequence for status in history] == list(range(1, 63))

    async def test_history_is_read_in_pieces(self, started: JobStore) -> None:
        jobs = [a_job(), running(a_job())]
        for number in range(8):
            jobs.append(moved(jobs[-1], JobState.RUNNING, T0 + number, progress=Progress(number)))
        await kept(started, *jobs)
        for after, limit in ((0, 3), (3, 3), (8, 100), (10, 5), (99, 5)):
            piece = await started.history("job-1", after, limit)
            assert [status.sequence for status in piece] == list(range(1, 11))[after : after + limit]

    async def test_large_arguments_and_results_are_kept(self, started: JobStore, another: JobStore) -> None:
        text = "é" * (512 * 1024)
        job = a_job(args={"text": text})
        runs = running(job)
        done = replace(ended(runs), status=ended(runs).status._replace(result=RESULT._replace(value={"text": text})))
        await kept(started, job, runs, done)
        assert await another.get("job-1") == done
        assert (await another.history("job-1", 2, 1))[0].result == done.status.result

    # Finding

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

    async def test_a_thousand_jobs_are_no_burden(self, started: JobStore) -> None:
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

    # Runners, and who is looked after

    async def test_runner_lives_as_long_as_its_last_beat_says(self, started: JobStore, another: JobStore) -> None:
        assert not await started.is_alive("runner-1", T0)
        assert not await started.is_alive("", T0)
        await started.beat("runner-1", T0 + 10)
        assert await another.is_alive("runner-1", T0 + 9)
        assert not await another.is_alive("runner-1", T0 + 10)
        await another.beat("runner-1", T0 + 20)
        assert await started.is_alive("runner-1", T0 + 19)
        assert not await started.is_alive("runner-2", T0)
        await started.beat("runner-1", 0)
        assert not await another.is_alive("runner-1", T0)
        await started.beat("runner-1", 0)

    @pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLING])
    async def test_held_job_is_unattended_when_its_runner_is_dead(self, started: JobStore, state: JobState) -> None:
        job = await kept(started, *in_state(a_job(), state))
        assert list(await started.unattended(T0, 0, 10)) == [job], "never beat"
        await started.beat("runner-1", T0 + 10)
        assert list(await started.unattended(T0 + 9, 0, 10)) == []
        assert list(await started.unattended(T0 + 10, 0, 10)) == [job], "fell silent"
        await started.beat("runner-1", T0 + 99)
        assert list(await started.unattended(T0 + 10, 0, 10)) == []
        await started.beat("runner-1", 0)
        assert list(await started.unattended(T0 + 10, 0, 10)) == [job], "left"

    async def test_running_job_that_nobody_holds_is_unattended(self, started: JobStore) -> None:
        job = await kept(started, a_job(), running(a_job(), runner=""))
        assert list(await started.unattended(T0, 0, 10)) == [job]

    async def test_queued_job_is_unattended_when_it_has_waited(self, started: JobStore) -> None:
        job = await kept(started, a_job())
        assert list(await started.unattended(T0, T0, 10)) == []
        assert list(await started.unattended(T0, T0 + 1, 10)) == [job]

    async def test_queued_job_waits_from_its_latest_entry_on(self, started: JobStore) -> None:
        runs = running(a_job(), at_unix_ms=T0 + 50)
        await kept(started, a_job(), runs, moved(runs, JobState.QUEUED, T0 + 100, runner=""))
        assert list(await started.unattended(T0, T0 + 100, 10)) == []
        assert len(await started.unattended(T0, T0 + 101, 10)) == 1

    async def test_jobs_that_await_approval_are_gone_round_in_pieces(
        self, started: JobStore, another: JobStore
    ) -> None:
        jobs = [
            await kept(started, job, moved(job, JobState.AWAITING_APPROVAL, T0 + at))
            for at, job in ((5, a_job("c")), (1, a_job("z")), (5, a_job("a")), (5, a_job("b")), (9, a_job("y")))
        ]
        jobs.sort(key=lambda job: (job.status.at_unix_ms, job.job_id))
        await kept(started, a_job("queued"))
        assert list(await another.awaiting(None, 10)) == jobs
        after: tuple[int, str] | None = None
        for expected in (jobs[:2], jobs[2:4], jobs[4:]):
            found = list(await another.awaiting(after, 2))
            assert found == expected
            after = (found[-1].status.at_unix_ms, found[-1].job_id)
        assert list(await another.awaiting(after, 2)) == []
        await started.put(moved(jobs[0], JobState.QUEUED, T0 + 10))
        assert list(await another.awaiting(None, 1)) == jobs[1:2]

    async def test_time_stands_still_while_a_job_awaits_approval(self, started: JobStore) -> None:
        job = await kept(started, *in_state(a_job(), JobState.AWAITING_APPROVAL))
        late_unix_ms = job.deadline_unix_ms + 1
        assert list(await started.unattended(late_unix_ms, late_unix_ms, 10)) == []
        queued = moved(job, JobState.QUEUED, T0 + 5)
        assert await started.put(queued)
        assert list(await started.unattended(late_unix_ms, 0, 10)) == [queued]

    @pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING])
    async def test_job_past_its_deadline_is_unattended_although_its_runner_lives(
        self, started: JobStore, state: JobState
    ) -> None:
        job = await kept(started, *in_state(a_job(), state))
        await started.beat("runner-1", T0 + 2 * HOUR_MS)
        assert list(await started.unattended(job.deadline_unix_ms - 1, 0, 10)) == []
        assert list(await started.unattended(job.deadline_unix_ms, 0, 10)) == [job]

    @pytest.mark.parametrize("state", FINAL)
    async def test_finished_job_needs_nobody(self, started: JobStore, state: JobState) -> None:
        await kept(started, *in_state(a_job(), state))
        assert list(await started.unattended(T0 + 9 * HOUR_MS, T0 + 9 * HOUR_MS, 10)) == []

    async def test_longest_waiting_comes_first_and_the_limit_holds(self, started: JobStore) -> None:
        for number in (3, 1, 4, 0, 2):
            await kept(started, a_job(f"job-{number}", created_at_unix_ms=T0 + number))
        waiting = await started.unattended(T0, T0 + 99, 3)
        assert [job.job_id for job in waiting] == ["job-0", "job-1", "job-2"]

    async def test_work_of_the_dead_is_not_hidden_by_a_backlog(self, started: JobStore) -> None:
        for number in range(4):
            await kept(started, a_job(f"waits-{number}", created_at_unix_ms=T0 + 10))
        late = a_job("runs", created_at_unix_ms=T0 + 20)
        await kept(started, late, running(late, at_unix_ms=T0 + 20))
        found = [job.job_id for job in await started.unattended(T0, T0 + 99, 5)]
        assert found == ["runs", "waits-0", "waits-1", "waits-2", "waits-3"]

    # Forgetting and counting

    async def test_finished_job_is_forgotten_when_it_expires(self, started: JobStore, another: JobStore) -> None:
        await kept(started, *in_state(a_job(key="k-1"), JobState.FAILED))
        assert await another.forget(T0 + HOUR_MS - 1, 10) == 0
        assert await another.forget(T0 + HOUR_MS, 10) == 1
        assert await started.get("job-1") is None
        assert list(await started.history("job-1", 0, 10)) == []
        assert await started.page(JobFilter(), after=None, limit=10) == ([], 0)
        assert not await started.put(amended(in_state(a_job(), JobState.FAILED)[-1]))
        assert await started.create(a_job("job-2", key="k-1")) is None, "the key is free again"

    async def test_job_that_is_not_over_is_never_forgotten(self, started: JobStore) -> None:
        for state in (JobState.QUEUED, JobState.AWAITING_APPROVAL, JobState.RUNNING, JobState.CANCELLING):
            await kept(started, *in_state(a_job(state.value), state))
        assert await started.forget(T0 + 99 * HOUR_MS, 10) == 0

    async def test_at_most_the_limit_is_forgotten_first_expired_first(self, started: JobStore) -> None:
        for number in (2, 0, 1):
            runs = running(a_job(f"job-{number}"))
            await kept(started, a_job(f"job-{number}"), runs, ended(runs, expires_at_unix_ms=T0 + 10 + number))
        assert await started.forget(T0 + 99, 2) == 2
        page, _ = await started.page(JobFilter(), after=None, limit=10)
        assert [job.job_id for job in page] == ["job-2"]

    async def test_tally_counts_what_is_not_over(self, started: JobStore, another: JobStore) -> None:
        assert await started.tally() == JobTally({}, None)
        for number, state in enumerate(JobState):
            await kept(started, *in_state(a_job(f"job-{number}"), state))
        await kept(started, a_job("job-early", created_at_unix_ms=T0 - 5))
        tally = await another.tally()
        assert {state: count for state, count in tally.by_state.items() if count} == {
            JobState.QUEUED: 2,
            JobState.AWAITING_APPROVAL: 1,
            JobState.RUNNING: 1,
            JobState.CANCELLING: 1,
        }
        assert tally.oldest_queued_at_unix_ms == T0 - 5

    async def test_tally_forgets_what_has_ended(self, started: JobStore) -> None:
        job = await kept(started, a_job(), running(a_job()))
        await started.put(ended(job))
        assert not any((await started.tally()).by_state.values())

    # Listening

    async def test_listener_hears_every_entry_and_nothing_else(self, started: JobStore, ear: Ear) -> None:
        job = a_job()
        runs = running(job)
        begun = amended(runs, begun=True)
        done = ended(begun)
        await kept(started, job, runs, begun, done)
        await ear.until(lambda: len(ear.sequences("job-1")) == 3)
        assert ear.sequences("job-1") == [1, 2, 3]
        entries = {entry.sequence: entry for entry in (job.status, runs.status, done.status)}
        assert all(news.status in (None, entries[news.sequence]) for news in ear.news if news.job_id)

    async def test_refused_change_is_not_heard(self, started: JobStore, ear: Ear) -> None:
        job = await kept(started, a_job(key="k-1"))
        assert await started.create(a_job("job-2", key="k-1")) == job
        assert not await started.put(replace(running(job), version=7))
        assert await started.put(running(job))
        await ear.until(lambda: ear.sequences("job-1") == [1, 2])
        assert ear.sequences("job-2") == []

    async def test_listener_hears_other_processes_in_order(
        self, started: JobStore, another: JobStore, ear: Ear
    ) -> None:
        await kept(another, *in_state(a_job(), JobState.CANCELLING))
        await ear.until(lambda: len(ear.sequences("job-1")) == 3)
        assert ear.sequences("job-1") == [1, 2, 3]

    async def test_listener_hears_only_what_comes_after_the_start(
        self, store: JobStore, other: JobStore | None
    ) -> None:
        ear, writer = Ear(), other or store
        if other is not None:
            await other.start()
        await kept(writer, a_job("before"))
        store.listen(ear)
        await store.start()
        await kept(writer, a_job("after"))
        await ear.until(lambda: bool(ear.sequences("after")))
        assert ear.sequences("before") == []
        for each in {store, writer}:
            await each.close()

    @pytest.mark.promise("watch.gapless")
    async def test_nothing_is_missed_and_order_holds_when_two_processes_write_one_job(
        self, started: JobStore, another: JobStore, ear: Ear
    ) -> None:
        names = [f"job-{number}" for number in range(10)]

        async def work(job_id: str) -> None:
            job = a_job(job_id)
            await kept(started, job, job := running(job))
            for step in range(20):
                job = moved(job, JobState.RUNNING, T0, progress=Progress(step))
                assert await (started, another)[step % 2].put(job)
            assert await another.put(ended(job))

        await asyncio.gather(*map(work, names))
        await ear.until(lambda: all(len(ear.sequences(name)) == 23 for name in names))
        assert all(ear.sequences(name) == list(range(1, 24)) for name in names)
        assert all(news.status is None or news.status.sequence == news.sequence for news in ear.news)

    async def test_listener_hears_large_entries(self, started: JobStore, another: JobStore, ear: Ear) -> None:
        runs = running(a_job())
        done = ended(runs)
        result = RESULT._replace(value="x" * 1024 * 1024)
        await kept(another, a_job(), runs, replace(done, status=done.status._replace(result=result)))
        await ear.until(lambda: ear.sequences("job-1") == [1, 2, 3])
        last = ear.news[-1].status
        assert last is None or last.result == result
