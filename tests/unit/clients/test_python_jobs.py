"""The Python client's jobs against a whole hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.hub import running_hub
from toolhub.v1 import job_state_pb2
from toolhub_client import CallFailed, Hub, connect
from toolhub_client.channel import pause_after
from toolhub_client.failures import hub_error
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

HASHING = ("core/util.hash.sha256Text", {"text": ""})


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with running_hub(tmp_path) as running, connect(running.address) as client:
        yield client


async def test_submitted_job_is_followed_to_its_answer(hub: Hub) -> None:
    job = await hub.submit_job(*HASHING, purpose="a test")
    answer = await hub.job_answer(job.job_id)
    assert answer.unwrap()["sha256"].startswith("e3b0c442")


async def test_same_key_gives_the_same_job(hub: Hub) -> None:
    first = await hub.submit_job(*HASHING, idempotency_key="once")
    second = await hub.submit_job(*HASHING, idempotency_key="once")
    assert first.job_id == second.job_id


async def test_a_watch_after_the_final_status_ends_at_once_and_sends_nothing(hub: Hub) -> None:
    job = await hub.submit_job(*HASHING)
    last = [status async for status in hub.watch_job(job.job_id)][-1]
    assert last.state == job_state_pb2.JOB_STATE_SUCCEEDED
    assert [status async for status in hub.watch_job(job.job_id, after_sequence=last.sequence)] == []


async def test_several_jobs_are_followed_to_their_ends_and_a_history_is_read_whole(hub: Hub) -> None:
    jobs = [await hub.submit_job(*HASHING) for _ in range(3)]
    ends = {status.job_id: status async for status in hub.watch_jobs([job.job_id for job in jobs])}
    assert [ends[job.job_id].state for job in jobs] == 3 * [job_state_pb2.JOB_STATE_SUCCEEDED]
    history = [status.sequence async for status in hub.watch_job(jobs[0].job_id, from_first=True)]
    assert history == list(range(1, ends[jobs[0].job_id].sequence + 1))


async def test_refused_job_has_failed_with_the_reason(hub: Hub) -> None:
    job = await hub.submit_job("core/fs.readText", {"path": "../x"}, purpose="a test")
    assert job.status.state == job_state_pb2.JOB_STATE_FAILED
    with pytest.raises(CallFailed, match="leaves the workspace"):
        (await hub.job_answer(job.job_id)).unwrap()


async def test_job_that_is_over_is_not_cancelled_any_more(hub: Hub) -> None:
    job = await hub.submit_job(*HASHING)
    await hub.job_answer(job.job_id)
    assert (await hub.cancel_job(job.job_id)).state == job_state_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.parametrize(("named_s", "least_s"), [(0.5, 0.5), (None, 0.0), (3_600.0, 5.0)])
def test_a_watch_reconnects_after_the_hubs_delay_bounded_to_minutes(named_s: float | None, least_s: float) -> None:
    failure = RpcFailure(Reason.DRAINING, "Leaving.", retry_after_s=named_s)
    trailers = grpc.aio.Metadata(details_trailer(failure))
    broken = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailers, "Leaving.")
    waits_s = [pause_after(1, hub_error(broken)) for _ in range(50)]
    assert all(least_s <= each <= 7.5 for each in waits_s)
    assert len(set(waits_s)) > 1, "not all at once"


def test_connection_that_broke_is_tried_again_soon() -> None:
    assert all(pause_after(1, ConnectionError()) <= 0.2 for _ in range(50))
