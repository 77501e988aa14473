"""Creating and changing jobs: the part of `JobStoreSuite` about compare-and-set and histories."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.ports.job_records import FINAL, RESULT, T0, a_job, ended, in_state, kept, running
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import ExecContext, Mode
from toolhub_service.domain.job import ForbiddenTransition, JobFilter, RemoteMark, amend_job, move_job
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.result import JobState, Progress


class JobStoreChangesSuite:
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
        steps = [job, runs := running(job), move_job(runs, JobState.RUNNING, T0 + 2, progress=progress, artifacts=part)]
        steps.append(ended(steps[-1]))
        await kept(started, *steps)
        assert await another.get("job-1") == steps[-1]
        assert list(await another.history("job-1", 0, 10)) == [step.status for step in steps]

    async def test_every_field_of_the_record_may_change(self, started: JobStore, another: JobStore) -> None:
        job = a_job()
        mark = RemoteMark("key", "remote-1", True, "gpu-1", {"queue": "q"})
        then = running(job)
        then = amend_job(
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
        last = await kept(started, a_job(), runs, amend_job(runs, begun=True))
        assert await started.get("job-1") == last
        assert [status.sequence for status in await started.history("job-1", 0, 10)] == [1, 2]

    async def test_put_of_an_unknown_job_changes_nothing(self, started: JobStore) -> None:
        assert not await started.put(running(a_job()))
        assert await started.get("job-1") is None

    @pytest.mark.promise("jobs.compare-and-set")
    async def test_stale_record_is_refused(self, started: JobStore, another: JobStore) -> None:
        job = a_job()
        runs = await kept(started, job, running(job))
        assert not await another.put(move_job(job, JobState.CANCELLED, T0 + 5, result=RESULT))
        assert not await started.put(running(job, "runner-2")), "the same version again"
        assert not await started.put(replace(runs, version=runs.version + 2)), "a version left out"
        assert await started.get("job-1") == runs

    @pytest.mark.parametrize("state", FINAL)
    @pytest.mark.promise("jobs.one-machine")
    async def test_a_final_state_has_no_successor(self, started: JobStore, state: JobState) -> None:
        last = await kept(started, *in_state(a_job(), state))
        after = replace(last.status, sequence=4, state=JobState.RUNNING, result=None)
        with pytest.raises(ForbiddenTransition):
            await started.put(replace(last, version=4, status=after))
        assert await started.get("job-1") == last

    @pytest.mark.promise("jobs.one-machine")
    async def test_forbidden_transition_and_a_gap_are_refused(self, started: JobStore) -> None:
        job = await kept(started, a_job())
        for status in (
            replace(job.status, sequence=2, state=JobState.QUEUED),
            replace(job.status, sequence=3, state=JobState.RUNNING),
            replace(job.status, sequence=0, state=JobState.RUNNING),
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
        forbidden = replace(bad, version=2, status=replace(bad.status, sequence=2, state=JobState.QUEUED))
        answers = await asyncio.gather(
            started.put(forbidden),
            started.put(running(good)),
            started.put(replace(running(stale), version=7)),
            return_exceptions=True,
        )
        assert isinstance(answers[0], ForbiddenTransition)
        assert list(answers[1:]) == [True, False]

    @pytest.mark.promise("watch.gapless")
    async def test_history_has_no_gap_for_any_writers(self, started: JobStore, another: JobStore) -> None:
        await kept(started, a_job(), running(a_job()))

        async def report(store: JobStore, times: int) -> None:
            while times:
                job = await store.get("job-1")
                assert job is not None
                times -= await store.put(move_job(job, JobState.RUNNING, T0, progress=Progress(times)))

        await asyncio.gather(*(report(store, 10) for store in (started, another) * 3))
        history = await started.history("job-1", 0, 100)
        assert [status.sequence for status in history] == list(range(1, 63))

    async def test_history_is_read_in_pieces(self, started: JobStore) -> None:
        jobs = [a_job(), running(a_job())]
        for number in range(8):
            jobs.append(move_job(jobs[-1], JobState.RUNNING, T0 + number, progress=Progress(number)))
        await kept(started, *jobs)
        for after, limit in ((0, 3), (3, 3), (8, 100), (10, 5), (99, 5)):
            piece = await started.history("job-1", after, limit)
            assert [status.sequence for status in piece] == list(range(1, 11))[after : after + limit]

    @pytest.mark.parametrize("state", FINAL)
    async def test_arguments_of_a_finished_job_are_forgotten(
        self, started: JobStore, another: JobStore, state: JobState
    ) -> None:
        job = a_job(key="k", args_digest="d" * 64)
        runs = running(job)
        await started.create(job)
        await started.put(runs)
        assert (await another.get("job-1")) == runs
        assert runs.call.args
        await started.put(ended(runs, state))
        over = await another.get("job-1")
        assert over is not None
        assert (over.call.args, over.args_digest, over.call.call_id) == ({}, "d" * 64, job.call.call_id)
        standing = await another.create(a_job("job-2", key="k"))
        assert standing == over, "its key still stands for it"

    async def test_large_arguments_and_results_are_kept(self, started: JobStore, another: JobStore) -> None:
        text = "é" * (512 * 1024)
        job = a_job(args={"text": text})
        runs = running(job)
        done = replace(ended(runs), status=replace(ended(runs).status, result=RESULT._replace(value={"text": text})))
        await kept(started, job, runs)
        assert await another.get("job-1") == runs
        assert await started.put(done)
        assert await another.get("job-1") == done
        assert (await another.history("job-1", 2, 1))[0].result == done.status.result
