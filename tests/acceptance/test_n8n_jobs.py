"""Workflows that answer first and work then, as jobs of a whole hub, on a real n8n."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.acceptance.n8n_hub import JOB_S, at_work, evidence, history, made, n8n_hub, state
from tests.acceptance.real_n8n import RealN8n
from tests.hub import RunningHub
from toolhub.v1 import error_pb2
from toolhub.v1 import job_service_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="session")

WITHOUT_STOP = ("2.8.4",)
"""Versions whose public API has no route to stop an execution: those before 2.10."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory, n8n: RealN8n) -> AsyncIterator[RunningHub]:
    async with n8n_hub(Path(tmp_path_factory.mktemp("hub")), n8n) as running:
        yield running


async def begun(hub: RunningHub, tool: str, args: dict[str, Any], **fields: Any) -> str:
    """The id of the job that an ordinary call becomes."""
    result = await hub.invoke(tool, args, **fields)
    assert result.ok, result.error
    return result.job.job_id


async def test_workflow_that_answers_202_is_a_job_watched_to_its_end(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    entries = await history(hub, await begun(hub, "flows/work", {"seconds": 2, "n": 1}))
    assert made(entries[-1])["echo"] == {"seconds": 2, "n": 1}
    assert [entry.sequence for entry in entries] == list(range(entries[0].sequence, entries[-1].sequence + 1))
    assert "running" in [entry.progress.message for entry in entries if state(entry) == "RUNNING"]
    proven = evidence(entries[-1].result)
    assert proven["execution_id"] == made(entries[-1])["executionId"]
    assert (proven["workflow_id"], proven["execution_status"]) == (n8n.workflows["hub-async"], "success")
    assert len(await n8n.executions("hub-async")) == before + 1


async def test_execution_id_in_a_page_of_html_is_found(hub: RunningHub) -> None:
    end = (await history(hub, await begun(hub, "flows/started_id", {"n": 2})))[-1]
    assert made(end)["echo"] == {"n": 2}


async def test_several_items_are_a_list(hub: RunningHub) -> None:
    end = (await history(hub, await begun(hub, "flows/many", {"count": 3})))[-1]
    value = made(end)
    assert [{"n": 0}, {"n": 1}, {"n": 2}] in (value, *(value.values() if isinstance(value, dict) else ()))


async def test_files_are_artifacts_or_named_as_missing(hub: RunningHub) -> None:
    end = (await history(hub, await begun(hub, "flows/files", {})))[-1]
    on_disk, inline = (item["data"] for item in made(end))
    assert (on_disk["filename"], "stays in n8n" in on_disk["dropped"], end.result.truncated) == ("a.txt", True, True)
    assert [artifact.artifact_id for artifact in end.artifacts] == [inline["artifact"]]
    assert inline["bytes"] == len("inline")
    assert any("a.txt" in proof.summary for proof in end.result.evidence)


async def test_workflow_that_fails_after_its_answer_fails_the_job_with_its_cause(hub: RunningHub) -> None:
    end = (await history(hub, await begun(hub, "flows/fails_late", {"n": 3})))[-1]
    assert state(end) == "FAILED"
    assert end.error.kind == error_pb2.ERROR_KIND_EXECUTION_ERROR
    assert "boom after the answer" in end.error.message
    assert "node_modules" not in str(end)


async def test_cancelling_stops_the_execution_or_states_that_it_cannot(hub: RunningHub, n8n: RealN8n) -> None:
    job_id = await begun(hub, "flows/work", {"seconds": 12, "n": 4})
    await at_work(hub, job_id)
    asked = await hub.jobs.CancelJob(pb.CancelJobRequest(job_id=job_id), timeout=JOB_S)
    assert state(asked.status) == "CANCELLING"
    entries = await history(hub, job_id)
    (execution, *_) = await n8n.executions("hub-async")
    if n8n.version in WITHOUT_STOP:
        assert (state(entries[-1]), execution["status"]) == ("SUCCEEDED", "success")
        assert any("cannot stop it" in entry.progress.message for entry in entries)
    else:
        assert (state(entries[-1]), execution["status"]) == ("CANCELLED", "canceled")


async def test_a_waiting_execution_keeps_its_job_running_and_states_until_when(hub: RunningHub) -> None:
    """n8n writes waits of 65 seconds and more down, and takes them up again."""
    args = {"seconds": 66, "n": 5}
    entries = await history(hub, await begun(hub, "flows/work", args, budget={"timeout_s": 110.0}))
    assert made(entries[-1])["echo"] == args
    waiting = [entry for entry in entries if entry.progress.message.startswith("waiting until 20")]
    assert waiting, [entry.progress.message for entry in entries]
    assert {state(entry) for entry in waiting} == {"RUNNING"}
    assert int(evidence(entries[-1].result)["duration_ms"]) >= 66_000


async def test_ten_jobs_at_once_begin_ten_executions(hub: RunningHub, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    jobs = await asyncio.gather(*(begun(hub, "flows/work", {"seconds": 1, "at_once": n}) for n in range(10)))
    ends = [(await history(hub, job_id))[-1] for job_id in jobs]
    assert [made(end)["echo"]["at_once"] for end in ends] == list(range(10))
    assert len(await n8n.executions("hub-async")) == before + 10
