"""Who may ask what about a job."""

from __future__ import annotations

from operator import methodcaller
from pathlib import Path

import pytest

from tests.unit.runtime.jobs.job_harness import AGENT, MARK, JobHarness, Process, a_job, in_state
from toolhub_service.domain.call import Owners, Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.result import JobState
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.jobs import SqliteJobs

OPERATOR = Principal("op", frozenset({Role.OPERATOR}))
AUDITOR = Principal("auditor", frozenset({Role.AUDITOR}))
OTHER = Principal("agent-b")


@pytest.mark.parametrize("who", [AGENT, OPERATOR, AUDITOR])
async def test_own_jobs_are_seen_and_by_operators_and_auditors_all(
    harness: JobHarness, process: Process, who: Principal
) -> None:
    job = await harness.kept(a_job())
    assert await process.jobs.get(who, "job-1") == job
    assert await process.jobs.page(who, JobFilter(), after=None, limit=9) == ([job], 1)


async def test_jobs_of_others_do_not_exist(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    for job_id in ("job-1", "job-2"):
        with pytest.raises(ToolFailure) as unknown:
            await process.jobs.get(OTHER, job_id)
        assert unknown.value.error.kind is ErrorKind.NOT_FOUND
    assert await process.jobs.page(OTHER, JobFilter(), after=None, limit=9) == ([], 0)
    assert await process.jobs.page(OTHER, JobFilter(principal=AGENT.id), after=None, limit=9) == ((), 0)


async def test_a_foreign_id_costs_the_same_reads_as_an_unknown_one_and_no_job_is_read(
    harness: JobHarness, process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in SQLite, whose reads are plain: reading a whole job takes longer than finding none."""
    file = SqliteFile(tmp_path / "hub.db", readers=1)  # the connection that is traced makes every read
    store = SqliteJobs(file)
    await file.start()
    await store.start()
    try:
        await store.create(a_job())
        decoded: list[object] = []
        monkeypatch.setattr("toolhub_service.stores.sqlite.jobs.decode_job", decoded.append)
        statements: dict[str, list[str]] = {}
        for job_id in ("job-1", "job-2"):
            seen = statements.setdefault(job_id, [])
            await file.read(methodcaller("set_trace_callback", seen.append))
            assert await store.get(job_id, OTHER.id.__eq__) is None
            await file.read(lambda connection: connection.set_trace_callback(None))
        shapes = [
            [text.replace(job_id, "ID") for text in said if "FROM jobs" in text] for job_id, said in statements.items()
        ]
        assert shapes[0] == shapes[1]
        assert len(shapes[0]) == 1
        assert decoded == []
    finally:
        await store.close()
        await file.close()


async def test_every_question_about_a_foreign_job_asks_the_store_as_often_as_about_an_unknown_one(
    harness: JobHarness, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.kept(a_job())
    asked: list[str] = []
    read = harness.store.get

    async def get(job_id: str, seen: Owners | None = None) -> Job | None:
        asked.append(job_id)
        return await read(job_id, seen)

    monkeypatch.setattr(harness.store, "get", get)
    for job_id in ("job-1", "job-2"):
        with pytest.raises(ToolFailure):
            await process.jobs.get(OTHER, job_id)
        with pytest.raises(ToolFailure):
            await process.jobs.cancel(OTHER, job_id, "")
    assert asked == ["job-1", "job-1", "job-2", "job-2"]


@pytest.mark.parametrize("who", [OTHER, AUDITOR])
async def test_jobs_of_others_are_not_cancelled(harness: JobHarness, process: Process, who: Principal) -> None:
    standing = await harness.kept(a_job())
    with pytest.raises(ToolFailure):
        await process.jobs.cancel(who, "job-1", "")
    assert await harness.job() == standing


@pytest.mark.parametrize("who", [AGENT, OPERATOR])
async def test_cancelling_twice_is_cancelling_once(harness: JobHarness, process: Process, who: Principal) -> None:
    await harness.kept(*in_state(a_job(), JobState.RUNNING, "runner-other"))
    first = await process.jobs.cancel(who, "job-1", "enough")
    assert await process.jobs.cancel(who, "job-1", "more") == first
    assert first.cancel_reason == "enough"


@pytest.mark.parametrize(
    ("state", "fields", "then"),
    [
        (JobState.QUEUED, {}, JobState.CANCELLED),
        (JobState.AWAITING_APPROVAL, {}, JobState.CANCELLED),
        (JobState.RUNNING, {}, JobState.CANCELLING),
        (JobState.CANCELLING, {}, JobState.CANCELLING),
        (JobState.AWAITING_APPROVAL, {"remote": MARK}, JobState.CANCELLING),
        (JobState.RUNNING, {"remote": MARK}, JobState.CANCELLING),
    ],
)
async def test_cancelling_leads_from_each_state_to_its_next(
    harness: JobHarness, process: Process, state: JobState, fields: dict[str, object], then: JobState
) -> None:
    await harness.kept(*in_state(a_job(), state, "runner-other", **fields))
    assert (await process.jobs.cancel(AGENT, "job-1", "")).state is then
    assert process.engine.waiting == (state is JobState.AWAITING_APPROVAL and then is JobState.CANCELLING)


async def test_job_handed_over_with_remote_work_is_delivered_to_be_stopped(
    harness: JobHarness, process: Process
) -> None:
    await harness.kept(a_job(remote=MARK))
    assert (await process.jobs.cancel(AGENT, "job-1", "")).state is JobState.CANCELLING
    assert process.engine.waiting == 1


async def test_job_that_is_over_stays_as_it_is(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    over = await process.jobs.cancel(AGENT, "job-1", "enough")
    assert await process.jobs.cancel(AGENT, "job-1", "more") == over


async def test_reason_that_is_no_text_is_kept_as_text(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    assert (await process.jobs.cancel(AGENT, "job-1", "a\ud800b")).cancel_reason == "a?b"
