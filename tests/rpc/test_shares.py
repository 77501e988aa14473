"""What all share is not used up by one: streams that follow something, and idempotency keys."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from tests.rpc.principals import WAIT, WRITE, Client, CountedWaits, CountedWrites, Principals, hubs_of
from tests.rpc.sample_tools import Echo
from tests.rpc.statuses import failed_stream
from toolhub.v1 import error_pb2


async def follow(client: Client, job_id: str, streams: AsyncExitStack) -> Any:
    """A watch that is open."""
    watch = client.watch(job_id)
    streams.callback(watch.cancel)
    await watch.read()
    return watch


@pytest.mark.promise("shares.fair")
async def test_one_principal_does_not_use_up_the_watches_of_a_hub(tmp_path: Path) -> None:
    waits, settings = CountedWaits(), {"server": {"max_watches": 4}}
    async with hubs_of(tmp_path, settings, [waits]) as (running,), AsyncExitStack() as streams:
        people = Principals(running)
        robot, other = people.at(running), people.at(running, "other")
        job, another = await robot.submit(WAIT), await other.submit(WAIT)
        await follow(robot, job.job_id, streams)
        await follow(robot, job.job_id, streams)
        refused = await failed_stream(robot.watch(job.job_id))
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WATCH_SHARE_TAKEN")
        assert (refused.metadata, refused.retry_after_s) == ({"max_watches": "4", "yours": "2"}, 1.0)
        assert "Close some" in refused.message
        await follow(other, another.job_id, streams)
        waits.let_go.set()


@pytest.mark.promise("shares.fair")
async def test_one_principal_does_not_use_up_the_idempotency_keys(tmp_path: Path) -> None:
    writes, settings = CountedWrites(), {"idempotency": {"max_keys": 4}}
    writes.let_go.set()
    async with hubs_of(tmp_path, settings, [writes, Echo()]) as (running,):
        people = Principals(running)
        robot, other = people.at(running), people.at(running, "other")
        for key in ("k-1", "k-2"):
            assert (await robot.call(WRITE, idempotency_key=key)).ok
        refused = (await robot.call(WRITE, idempotency_key="k-3")).error
        assert refused.kind == error_pb2.ERROR_KIND_RATE_LIMITED
        assert (refused.details["limit"], refused.details["whose"]) == ("idempotency", "yours")
        assert not refused.retryable, "a key is forgotten after hours"
        assert MessageToDict(refused.details)["passes_in_s"] > 300
        assert "left to others" in refused.message
        assert (await robot.call(WRITE, idempotency_key="k-1")).replayed, "what it has, it keeps"
        assert (await other.call(WRITE, idempotency_key="k-1")).ok
        assert writes.runs == 3
