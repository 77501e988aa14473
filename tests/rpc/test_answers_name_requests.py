"""Every answer names the request that its call belongs to, and with it the workspace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.hub import OPEN_POLICY, RunningHub, request, running_hub
from tests.rpc.sample_tools import Waits
from toolhub.v1 import job_state_pb2, tool_service_pb2

WRITE, READ = "core/fs.writeText", "core/fs.readText"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=OPEN_POLICY, tools=[Waits()]) as running:
        yield running


@pytest.mark.promise("call.names-its-request")
async def test_a_call_without_a_request_is_answered_with_the_one_whose_files_a_later_call_sees(hub: RunningHub) -> None:
    written = await hub.invoke(WRITE, {"path": "a.txt", "text": "hi"})
    assert written.request_id
    assert (await hub.value(READ, {"path": "a.txt"}, request_id=written.request_id))["text"] == "hi"
    elsewhere = await hub.invoke(READ, {"path": "a.txt"})
    assert not elsewhere.ok
    assert elsewhere.request_id not in ("", written.request_id)


@pytest.mark.promise("call.names-its-request")
async def test_the_callers_own_request_is_named_in_results_refusals_plans_and_jobs(hub: RunningHub) -> None:
    args, given = {"path": "a.txt", "text": "hi"}, "r-1"
    assert (await hub.invoke(WRITE, args, request_id=given)).request_id == given
    assert (await hub.invoke("no/such.tool", request_id=given)).request_id == given
    assert (await hub.plan(WRITE, {**args, "overwrite": True}, request_id=given)).request_id == given
    job = await hub.submit(WRITE, args, request_id=given)
    *_, last = await hub.watched(job.job_id)
    assert (job.request_id, last.result.request_id) == (given, given)


async def test_a_job_whose_call_named_no_request_names_the_one_that_was_minted(hub: RunningHub) -> None:
    job = await hub.submit(WRITE, {"path": "a.txt", "text": "hi"})
    *_, last = await hub.watched(job.job_id)
    assert last.state == job_state_pb2.JOB_STATE_SUCCEEDED
    assert job.request_id == last.result.request_id != ""
    assert (await hub.value(READ, {"path": "a.txt"}, request_id=job.request_id))["text"] == "hi"


async def test_a_replayed_result_names_the_request_of_the_call_that_ran(hub: RunningHub) -> None:
    args = {"path": "a.txt", "text": "hi"}
    first = await hub.invoke(WRITE, args, idempotency_key="once")
    again = await hub.invoke(WRITE, args, idempotency_key="once", request_id="another")
    assert (again.replayed, again.request_id) == (True, first.request_id)


async def test_a_call_of_a_session_that_is_cancelled_names_its_request(hub: RunningHub) -> None:
    session = hub.stub.InvokeSession(timeout=60)
    call: tool_service_pb2.SessionCall = request(Waits.name, message=tool_service_pb2.SessionCall, request_id="r-1")
    call.call_id = "mine"
    await session.write(tool_service_pb2.InvokeSessionRequest(calls=[call]))
    await session.write(tool_service_pb2.InvokeSessionRequest(cancel_call_ids=["mine"]))
    await session.done_writing()
    *_, last = [event async for answer in session for event in answer.events]
    assert (last.call_id, last.result.ok, last.result.request_id) == ("mine", False, "r-1")
