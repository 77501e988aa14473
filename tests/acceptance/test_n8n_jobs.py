"""Workflows that answer first and work then, as jobs of a whole hub, on a real n8n."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.n8n_hub import JOB_S, evidence, n8n_hub, state
from tests.acceptance.real_n8n import RealN8n
from tests.hub import RunningHub
from toolhub.v1 import error_pb2, job_pb2
from toolhub.v1 import job_service_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory, n8n: RealN8n) -> AsyncIterator[RunningHub]:
    async with n8n_hub(Path(tmp_path_factory.mktemp("hub")), n8n) as running:
        yield running


async def begun(hub: RunningHub, tool: str, args: dict[str, object], **fields: object) -> str:
    """The id of the job that an ordinary call becomes."""
    result = await hub.invoke(tool, args, **fields)  # type: ignore[arg-type]
    assert result.ok, result.error
    return result.job.job_id


async def history(hub: RunningHub, job_id: str) -> list[job_pb2.JobStatus]:
    """What a watch tells, from start to end."""
    watch = hub.jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S)
    return [answer.status async for answer in watch]


async def seen(hub: RunningHub, job_id: str, words: str) -> None:
    """Wait until its progress says so."""
    watch = hub.jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S)
    async for answer in watch:
        if words in answer.status.progress.message:
            watch.cancel()
            return
    raise AssertionError(f"it never said {words!r}")


def value(end: job_pb2.JobStatus) -> object:
    assert state(end) == "SUCCEEDED", end.error
    return json.loads(end.result.result_json)


async def test_workflow_that_answers_202_is_a_job_watched_to_its_end(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    entries = await history(hub, await begun(hub, "flows/work", {"seconds": 2, "n": 1}))
    made = value(entries[-1])
    assert isinstance(made, dict)
    assert made["echo"] == {"seconds": 2, "n": 1}
    assert [entry.sequence for entry in entries] == list(range(entries[0].sequence, entries[-1].sequence + 1))
    assert "RUNNING" in {state(entry) for entry in entries}
    told = evidence(entries[-1].result)
    assert told["execution_id"] == made["executionId"]
    assert len(await n8n.executions("hub-async")) == before + 1


async def test_execution_id_in_a_page_of_html_is_found(hub: RunningHub) -> None:
    entries = await history(hub, await begun(hub, "flows/started_id", {"n": 2}))
    made = value(entries[-1])
    assert isinstance(made, dict)
    assert made["echo"] == {"n": 2}


async def test_several_items_are_a_list(hub: RunningHub) -> None:
    entries = await history(hub, await begun(hub, "flows/many", {"count": 3}))
    assert json.dumps([{"n": 0}, {"n": 1}, {"n": 2}]) in json.dumps(value(entries[-1]))


async def test_workflow_that_fails_after_its_answer_fails_the_job_with_its_cause(hub: RunningHub) -> None:
    end = (await history(hub, await begun(hub, "flows/fails_late", {"n": 3})))[-1]
    assert state(end) == "FAILED"
    assert end.error.kind == error_pb2.ERROR_KIND_EXECUTION_ERROR
    assert "boom after the answer" in str(end.error)
    assert "node_modules" not in str(end.error)


async def test_cancelling_is_honest(hub: RunningHub, n8n: RealN8n) -> None:
    """2.8.4 has no route to stop an execution: it goes on, and the job says so and ends as the workflow does."""
    job_id = await begun(hub, "flows/work", {"seconds": 12, "n": 4})
    await seen(hub, job_id, "")
    await hub.jobs.CancelJob(pb.CancelJobRequest(job_id=job_id), timeout=JOB_S)
    end = (await history(hub, job_id))[-1]
    (execution,) = (await n8n.executions("hub-async"))[:1]
    assert (state(end), execution["status"]) in {("SUCCEEDED", "success"), ("CANCELLED", "canceled")}


async def test_waiting_execution_keeps_its_job_running_and_says_until_when(hub: RunningHub) -> None:
    """n8n writes waits of 65 seconds and more down, and takes them up again."""
    entries = await history(hub, await begun(hub, "flows/work", {"seconds": 66, "n": 5}, budget={"timeout_s": 110.0}))
    made = value(entries[-1])
    assert isinstance(made, dict)
    assert made["echo"] == {"seconds": 66, "n": 5}
    waiting = [entry for entry in entries if "wait" in entry.progress.message.lower()]
    assert waiting, [entry.progress.message for entry in entries]
    assert {state(entry) for entry in waiting} == {"RUNNING"}


async def test_ten_jobs_at_once_begin_ten_executions(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    jobs = await asyncio.gather(*(begun(hub, "flows/work", {"seconds": 1, "at_once": n}) for n in range(10)))
    ends = [(await history(hub, job_id))[-1] for job_id in jobs]
    echoes = [value(end)["echo"]["at_once"] for end in ends]  # type: ignore[index]
    assert echoes == list(range(10))
    assert len(await n8n.executions("hub-async")) == before + 10
