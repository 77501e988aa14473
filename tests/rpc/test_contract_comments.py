"""What comments of the contract say that a hub does, held against a hub over the wire: a comment that is changed, and a
hub that behaves otherwise, fail alike."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.hub import RunningHub, request, running_hub
from tests.rpc.contract_text import assert_comment
from tests.rpc.sample_tools import Crashes, Echo
from tests.rpc.statuses import failed
from toolhub.v1 import artifact_service_pb2, error_pb2, job_state_pb2, registry_service_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.domain.tool import CostHints

ASKS = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
rules: [{id: ask, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText]}]
roles: [{principals: [local], roles: [agent, operator]}]
"""
NOW = "core/util.time.now"


class AlwaysJob(Echo):
    """Always long work."""

    name = "test/video.render"
    cost = CostHints(is_async=True)


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=ASKS, tools=[Echo(), Crashes(), AlwaysJob()]) as running:
        yield running


@pytest.mark.promise("contract.comments-hold")
async def test_unspecified_view_is_the_short_one_and_get_tool_has_none(asking: RunningHub) -> None:
    assert_comment("tool", "The same as BASIC. GetTool, which has no view, always answers all that the caller may see.")
    listed = await asking.stub.ListTools(pb.ListToolsRequest())
    found = await asking.stub.SearchTools(pb.SearchToolsRequest())
    snapshot = await asking.registry.GetSnapshot(registry_service_pb2.GetSnapshotRequest())
    tools = [*listed.tools, *(hit.tool for hit in found.hits), *snapshot.tools]
    assert {(tool.input_schema_json, len(tool.examples)) for tool in tools} == {(b"", 0)}
    assert (await asking.stub.GetTool(pb.GetToolRequest(name=NOW))).tool.input_schema_json


async def test_a_filter_without_states_means_callable_or_unavailable_tools(asking: RunningHub) -> None:
    assert_comment(
        "tool", "Empty means ACTIVE and UNAVAILABLE, so that a caller learns which tools are only unavailable."
    )
    every = tool_pb2.ToolFilter(states=[tool_pb2.TOOL_STATE_ACTIVE, tool_pb2.TOOL_STATE_UNAVAILABLE])
    one, other = [
        await asking.stub.ListTools(pb.ListToolsRequest(filter=where)) for where in (None, tool_pb2.ToolFilter())
    ]
    assert one == other == await asking.stub.ListTools(pb.ListToolsRequest(filter=every))


async def test_source_of_a_tool_is_one_that_the_hub_lists(asking: RunningHub) -> None:
    assert_comment("tool", "The source it came from, as ListSources names it, such as `core` or `github`.")
    sources = (await asking.registry.ListSources(registry_service_pb2.ListSourcesRequest())).sources
    tools = (await asking.stub.ListTools(pb.ListToolsRequest())).tools
    assert {tool.source for tool in tools if tool.name.startswith("core/")} == {"core"}
    assert "core" in {source.source for source in sources}


@pytest.mark.promise("contract.newer-hub")
def test_kind_of_a_newer_hub_comes_as_its_number() -> None:
    assert_comment(
        "error", "A kind of a newer hub comes as a number that this enum does not name: treat it as INTERNAL."
    )
    sent = error_pb2.ToolError(kind=4711)  # type: ignore[arg-type]
    assert error_pb2.ToolError.FromString(sent.SerializeToString()).kind == 4711
    assert 4711 not in error_pb2.ErrorKind.values()


@pytest.mark.promise("contract.comments-hold")
async def test_call_id_of_a_session_is_the_callers_beside_the_hubs_own(asking: RunningHub) -> None:
    for file in ("result", "plan"):
        assert_comment(file, "also in a session, whose events carry the caller's own id as well.")
    session = asking.stub.InvokeSession(timeout=60)
    for mode, outcome in ((pb.SessionCall().mode, "result"), (2, "plan")):
        call: pb.SessionCall = request(NOW, message=pb.SessionCall, mode=mode)
        call.call_id = "mine"
        await session.write(pb.InvokeSessionRequest(calls=[call]))
        (event,) = (await session.read()).events
        assert (event.call_id, event.WhichOneof("event")) == ("mine", outcome)
        assert getattr(event, outcome).call_id.startswith("call_")
    await session.done_writing()


async def test_cancelling_an_unknown_or_ended_call_is_ignored(asking: RunningHub) -> None:
    assert_comment("tool_service", "Each still gets its result; unknown and finished ones are ignored.")
    session = asking.stub.InvokeSession(timeout=60)
    for cancelled in ([], ["mine", "nobody's"]):
        call: pb.SessionCall = request(NOW, message=pb.SessionCall)
        call.call_id = "mine" if not cancelled else "another"
        await session.write(pb.InvokeSessionRequest(calls=[call], cancel_call_ids=cancelled))
        (event,) = (await session.read()).events
        assert (event.call_id, event.result.ok) == (call.call_id, True)
    await session.done_writing()


@pytest.mark.promise("contract.comments-hold")
async def test_submission_that_is_refused_is_a_job_and_one_that_cannot_be_kept_an_error(asking: RunningHub) -> None:
    assert_comment("job_service", "the job of a refused call is FAILED at once, or AWAITING_APPROVAL.")
    assert_comment(
        "job_service", "The RPC fails when no job can be stored: ABORTED when the key belongs to another call,"
    )
    refused = await asking.submit("core/http.get", {"url": "https://example.com/"})
    assert refused.status.state == job_state_pb2.JOB_STATE_FAILED
    waiting = await asking.submit("core/fs.writeText", {"path": "a", "text": "a"})
    assert waiting.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL
    await asking.submit("test/text.echo", {"text": "a"}, idempotency_key="once")
    failure = await failed(asking.submit("test/text.echo", {"text": "b"}, idempotency_key="once"))
    assert failure.code is grpc.StatusCode.ABORTED


async def test_result_is_unset_where_there_is_none(asking: RunningHub) -> None:
    assert_comment("result", "Unset when `ok` is false, or when the answer is a job;")
    assert_comment("result", "At least one entry, also for refused calls.")
    refused = await asking.invoke("test/text.echo", {"text": 7})
    crashed = await asking.invoke("test/text.crash")
    accepted = await asking.invoke(AlwaysJob.name)
    for result, ok in ((refused, False), (crashed, False), (accepted, True)):
        assert (result.ok, result.WhichOneof("result"), bool(result.evidence)) == (ok, None, True)
    assert accepted.job.job_id


async def test_the_final_status_and_the_job_have_the_same_error(asking: RunningHub) -> None:
    assert_comment("job", "Set only in final states; its `error` equals the one above.")
    job = await asking.submit("test/text.crash")
    *before, last = await asking.watched(job.job_id)
    assert not any(status.HasField("result") for status in before)
    assert last.error == last.result.error
    assert last.error.kind == error_pb2.ERROR_KIND_INTERNAL


async def test_plan_digest_of_a_dry_run_is_ignored(asking: RunningHub) -> None:
    assert_comment("tool_service", "Ignored in DRY_RUN.")
    plan = await asking.plan(NOW, plan_digest="v2.of-nothing")
    assert all(step.ok for step in plan.steps)


async def test_artifact_without_declared_type_is_octets_and_has_an_end(asking: RunningHub) -> None:
    assert_comment("artifact", "`application/octet-stream` when it declared none.")
    assert_comment("artifact", "When it is deleted. Always set by the hub.")
    header = artifact_service_pb2.WriteArtifactRequest(header=artifact_service_pb2.ArtifactHeader())
    chunk = artifact_service_pb2.WriteArtifactRequest(chunk=json.dumps({"a": 1}).encode())
    written = (await ArtifactServiceStub(asking.channel).WriteArtifact(iter([header, chunk]))).artifact
    assert written.media_type == "application/octet-stream"
    assert written.expires_at.ToMilliseconds() > written.created_at.ToMilliseconds()
