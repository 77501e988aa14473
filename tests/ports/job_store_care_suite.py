"""Who looks after jobs: the part of `JobStoreSuite` about runners, sweeps, expiry and counts."""

from __future__ import annotations

import pytest

from tests.ports.job_records import FINAL, HOUR_MS, T0, a_job, ended, in_state, kept, running
from toolhub_service.domain.job import JobCounts, JobFilter, amend_job, move_job
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.result import JobState


class JobStoreSweepSuite:
    # Runners, and who is looked after

    async def test_a_runner_lives_until_its_last_beat_expires(self, started: JobStore, another: JobStore) -> None:
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
        assert list(await started.find_unattended(T0, 0, 10)) == [job], "never beat"
        await started.beat("runner-1", T0 + 10)
        assert list(await started.find_unattended(T0 + 9, 0, 10)) == []
        assert list(await started.find_unattended(T0 + 10, 0, 10)) == [job], "fell silent"
        await started.beat("runner-1", T0 + 99)
        assert list(await started.find_unattended(T0 + 10, 0, 10)) == []
        await started.beat("runner-1", 0)
        assert list(await started.find_unattended(T0 + 10, 0, 10)) == [job], "left"

    async def test_running_job_that_nobody_holds_is_unattended(self, started: JobStore) -> None:
        job = await kept(started, a_job(), running(a_job(), runner=""))
        assert list(await started.find_unattended(T0, 0, 10)) == [job]

    async def test_queued_job_is_unattended_when_it_has_waited(self, started: JobStore) -> None:
        job = await kept(started, a_job())
        assert list(await started.find_unattended(T0, T0, 10)) == []
        assert list(await started.find_unattended(T0, T0 + 1, 10)) == [job]

    async def test_queued_job_waits_from_its_latest_entry_on(self, started: JobStore) -> None:
        runs = running(a_job(), at_unix_ms=T0 + 50)
        await kept(started, a_job(), runs, move_job(runs, JobState.QUEUED, T0 + 100, runner=""))
        assert list(await started.find_unattended(T0, T0 + 100, 10)) == []
        assert len(await started.find_unattended(T0, T0 + 101, 10)) == 1

    async def test_jobs_that_await_approval_are_gone_round_in_pieces(
        self, started: JobStore, another: JobStore
    ) -> None:
        jobs = [
            await kept(started, job, move_job(job, JobState.AWAITING_APPROVAL, T0 + at))
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
        await started.put(move_job(jobs[0], JobState.QUEUED, T0 + 10))
        assert list(await another.awaiting(None, 1)) == jobs[1:2]

    async def test_the_deadline_of_a_job_pauses_while_it_awaits_approval(self, started: JobStore) -> None:
        job = await kept(started, *in_state(a_job(), JobState.AWAITING_APPROVAL))
        late_unix_ms = job.deadline_unix_ms + 1
        assert list(await started.find_unattended(late_unix_ms, late_unix_ms, 10)) == []
        queued = move_job(job, JobState.QUEUED, T0 + 5)
        assert await started.put(queued)
        assert list(await started.find_unattended(late_unix_ms, 0, 10)) == [queued]

    @pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING])
    async def test_job_past_its_deadline_is_unattended_although_its_runner_lives(
        self, started: JobStore, state: JobState
    ) -> None:
        job = await kept(started, *in_state(a_job(), state))
        await started.beat("runner-1", T0 + 2 * HOUR_MS)
        assert list(await started.find_unattended(job.deadline_unix_ms - 1, 0, 10)) == []
        assert list(await started.find_unattended(job.deadline_unix_ms, 0, 10)) == [job]

    @pytest.mark.parametrize("state", FINAL)
    async def test_finished_job_needs_nobody(self, started: JobStore, state: JobState) -> None:
        await kept(started, *in_state(a_job(), state))
        assert list(await started.find_unattended(T0 + 9 * HOUR_MS, T0 + 9 * HOUR_MS, 10)) == []

    async def test_longest_waiting_comes_first_and_the_limit_holds(self, started: JobStore) -> None:
        for number in (3, 1, 4, 0, 2):
            await kept(started, a_job(f"job-{number}", created_at_unix_ms=T0 + number))
        waiting = await started.find_unattended(T0, T0 + 99, 3)
        assert [job.job_id for job in waiting] == ["job-0", "job-1", "job-2"]

    async def test_a_backlog_does_not_hide_jobs_of_dead_runners(self, started: JobStore) -> None:
        for number in range(4):
            await kept(started, a_job(f"waits-{number}", created_at_unix_ms=T0 + 10))
        late = a_job("runs", created_at_unix_ms=T0 + 20)
        await kept(started, late, running(late, at_unix_ms=T0 + 20))
        found = [job.job_id for job in await started.find_unattended(T0, T0 + 99, 5)]
        assert found == ["runs", "waits-0", "waits-1", "waits-2", "waits-3"]

    # Forgetting and counting

    async def test_finished_job_is_forgotten_when_it_expires(self, started: JobStore, another: JobStore) -> None:
        await kept(started, *in_state(a_job(key="k-1"), JobState.FAILED))
        assert await another.forget(T0 + HOUR_MS - 1, 10) == 0
        assert await another.forget(T0 + HOUR_MS, 10) == 1
        assert await started.get("job-1") is None
        assert list(await started.history("job-1", 0, 10)) == []
        assert await started.page(JobFilter(), after=None, limit=10) == ([], 0)
        assert not await started.put(amend_job(in_state(a_job(), JobState.FAILED)[-1]))
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
        assert await started.count_jobs() == JobCounts({}, None)
        for number, state in enumerate(JobState):
            await kept(started, *in_state(a_job(f"job-{number}"), state))
        await kept(started, a_job("job-early", created_at_unix_ms=T0 - 5))
        counts = await another.count_jobs()
        assert {state: count for state, count in counts.by_state.items() if count} == {
            JobState.QUEUED: 2,
            JobState.AWAITING_APPROVAL: 1,
            JobState.RUNNING: 1,
            JobState.CANCELLING: 1,
        }
        assert counts.oldest_queued_at_unix_ms == T0 - 5

    async def test_tally_forgets_what_has_ended(self, started: JobStore) -> None:
        job = await kept(started, a_job(), running(a_job()))
        await started.put(ended(job))
        assert not any((await started.count_jobs()).by_state.values())
