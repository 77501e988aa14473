"""Rights that are withdrawn: what is open ends at its next message, what is queued is judged anew, a name that the
policy does not know opens nothing. At befa727 only a revoked key ended a stream; narrowed grants and the jobs of a
principal that was removed were judged anew there, too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.hub import CALL_TIMEOUT_S, request
from tests.rpc.principals import WAIT, WRITE, Client, CountedWaits, CountedWrites, Principals, hubs_of, state
from tests.rpc.sample_tools import Echo
from tests.rpc.statuses import FailedRpc, failed, failure_of
from tests.rpc.test_registry import a_tool
from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    error_pb2,
    job_service_pb2,
    registry_service_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub

ECHO, FILE = "test/text.echo", "core/fs.writeText"
GRANT = "  - {principals: [robot, boss, other], capabilities: ['read:*', 'write:*']}\n"
ROLES = (
    "  - {principals: [robot, other], roles: [agent]}\n"
    "  - {principals: [judge], roles: [approver]}\n"
    "  - {principals: [boss], roles: [agent, operator, approver, auditor]}\n"
)
REST = """impersonate: [robot]
rules:
  - {id: writes-need-a-yes, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Files are shared.}
"""


def a_policy(grants: str = GRANT, roles: str = ROLES, rest: str = REST) -> str:
    return f"extends: none\ngrants:\n{grants}roles:\n{roles}{rest}"


NOT_ROBOT = a_policy(GRANT.replace("robot, ", ""), ROLES.replace("robot, ", ""), "")
"""Nothing names `robot` any more."""
ROBOT_APPROVES = a_policy(roles=ROLES.replace("robot, ", "").replace("[judge]", "[judge, robot]"))
"""`robot` holds its grant and is no agent any more."""


def boss_as(*roles: str) -> str:
    return a_policy(roles=ROLES.replace("[agent, operator, approver, auditor]", f"[{', '.join(roles)}]"))


@dataclass
class WithdrawalHarness:
    running: Any
    people: Principals
    waits: CountedWaits
    writes: CountedWrites

    def at(self, name: str) -> Client:
        return self.people.at(self.running, name)

    def puts_in_force(self, policy: str) -> None:
        change = self.running.hub.policy.replace(policy)
        assert change.applied, change.problem
        assert change.revision != change.previous_revision


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[WithdrawalHarness]:
    waits, writes = CountedWaits(), CountedWrites()
    tools = [waits, writes, Echo()]
    settings = {"jobs": {"max_running": 1}}
    async with hubs_of(tmp_path, settings, tools, policy=a_policy()) as (running,):
        people = Principals(running, names=("robot", "judge", "boss", "other", "stranger"))
        yield WithdrawalHarness(running, people, waits, writes)


async def broken(read: Any) -> FailedRpc:
    """What a stream that must send no more sends instead."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await read
    return failure_of(refused.value)


# Streams


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (boss_as("agent", "operator", "approver"), "ROLE_MISSING"),
        (a_policy(roles=ROLES.replace("[boss]", "[nobody]")), "ROLE_MISSING"),
        (a_policy(GRANT.replace(", boss", ""), ROLES.replace("[boss]", "[nobody]")), "PRINCIPAL_UNKNOWN"),
    ],
    ids=["a role is taken away", "the entry of roles is removed", "the principal is removed"],
)
async def test_a_tail_of_the_audit_log_ends_when_its_right_is_withdrawn(
    harness: WithdrawalHarness, policy: str, reason: str
) -> None:
    boss, other = harness.at("boss"), harness.at("other")
    tail = harness.running.audit.TailEvents(audit_service_pb2.TailEventsRequest(), metadata=boss.metadata)
    await tail.initial_metadata()
    assert (await other.call(ECHO)).ok
    assert (await tail.read()).event.tool == ECHO
    harness.puts_in_force(policy)
    assert (await other.call(ECHO)).ok
    failure = await broken(tail.read())
    assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, reason)


async def test_a_stream_goes_on_under_a_changed_policy_that_leaves_its_right(harness: WithdrawalHarness) -> None:
    boss, other = harness.at("boss"), harness.at("other")
    tail = harness.running.audit.TailEvents(audit_service_pb2.TailEventsRequest(), metadata=boss.metadata)
    await tail.initial_metadata()
    for policy in (boss_as("auditor"), boss_as("auditor", "agent"), a_policy()):
        harness.puts_in_force(policy)
        assert (await other.call(ECHO)).ok
        assert (await tail.read()).event.tool == ECHO
    tail.cancel()


async def test_a_watch_of_tools_ends_with_the_role_of_an_operator(harness: WithdrawalHarness) -> None:
    asked = registry_service_pb2.WatchToolsRequest()
    watch = harness.running.registry.WatchTools(asked, metadata=harness.at("boss").metadata, timeout=CALL_TIMEOUT_S)
    await watch.read()
    harness.puts_in_force(boss_as("agent", "approver", "auditor"))
    harness.running.hub.toolbox.catalog.set_state(ECHO, harness.running.hub.toolbox.catalog.get(ECHO).state, "anew")
    harness.running.hub.toolbox.catalog.unregister(ECHO)
    assert (await broken(watch.read())).reason == "ROLE_MISSING"


async def test_a_watch_of_everybodys_approvals_ends_when_only_ones_own_may_be_seen(harness: WithdrawalHarness) -> None:
    """An agent may watch approvals, too: its own. What was opened as an approver shows everybody's."""
    asked = approval_service_pb2.WatchApprovalsRequest()
    watch = harness.at("boss").approvals.WatchApprovals(
        asked, metadata=harness.at("boss").metadata, timeout=CALL_TIMEOUT_S
    )
    await watch.initial_metadata()
    harness.puts_in_force(boss_as("agent", "operator", "auditor"))
    await harness.at("other").call(FILE, {"path": "a", "text": "b"})
    failure = await broken(watch.read())
    assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
    assert failure.metadata["role"] == "approver"
    assert "open the stream again" in failure.message


async def test_an_overseer_gets_no_further_updates_of_anothers_job(harness: WithdrawalHarness) -> None:
    job = await harness.at("other").submit(WAIT)
    watch = harness.at("boss").watch(job.job_id)
    while (await watch.read()).status.progress.message != "half way":
        pass
    harness.puts_in_force(boss_as("agent", "approver"))
    harness.waits.let_go.set()
    assert (await broken(watch.read())).reason == "ROLE_MISSING"
    assert state((await harness.at("other").ended(job.job_id))[-1]) == "SUCCEEDED"


@pytest.mark.parametrize("policy", [ROBOT_APPROVES, NOT_ROBOT], ids=["no agent any more", "removed"])
async def test_a_submitter_whose_right_is_gone_gets_no_further_updates_of_its_job(
    harness: WithdrawalHarness, policy: str
) -> None:
    job = await harness.at("robot").submit(WAIT)
    watch = harness.at("robot").watch(job.job_id)
    while (await watch.read()).status.progress.message != "half way":
        pass
    harness.puts_in_force(policy)
    harness.waits.let_go.set()
    assert (await broken(watch.read())).code is grpc.StatusCode.PERMISSION_DENIED
    assert (await failed(harness.at("robot").job(job.job_id))).code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("policy", [ROBOT_APPROVES, NOT_ROBOT], ids=["no agent any more", "removed"])
async def test_a_streamed_call_is_stopped_at_its_next_event(harness: WithdrawalHarness, policy: str) -> None:
    asked = request(WAIT, message=pb.InvokeStreamRequest)
    stream = harness.running.stub.InvokeStream(asked, metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    assert (await stream.read()).HasField("progress")
    harness.puts_in_force(policy)
    harness.waits.let_go.set()
    while (answer := await _next(stream)) is not None:
        assert answer.HasField("chunk"), "sent before, and only read now"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.read()
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def _next(stream: Any) -> Any:
    try:
        return await stream.read()
    except grpc.aio.AioRpcError:
        return None


async def test_an_upload_and_a_download_end_at_their_next_chunk(harness: WithdrawalHarness) -> None:
    stub: Any = ArtifactServiceStub(harness.running.channel)
    message = artifact_service_pb2.WriteArtifactRequest
    header = message(header=artifact_service_pb2.ArtifactHeader(name="a.txt"))
    writing = stub.WriteArtifact(metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    await writing.write(header)
    await writing.write(message(chunk=b"whole"))
    await writing.done_writing()
    artifact = (await writing).artifact
    writing = stub.WriteArtifact(metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    await writing.write(header)
    await writing.initial_metadata()
    harness.puts_in_force(NOT_ROBOT)
    await writing.write(message(chunk=b"more"))
    assert (await failed(writing)).code is grpc.StatusCode.PERMISSION_DENIED
    asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact.artifact_id)
    reading = stub.ReadArtifact(asked, metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    assert (await broken(reading.read())).code is grpc.StatusCode.PERMISSION_DENIED


# Sessions


def called(call_id: str, **fields: Any) -> pb.InvokeSessionRequest:
    call: pb.SessionCall = request(ECHO, message=pb.SessionCall, **fields)
    call.call_id = call_id
    return pb.InvokeSessionRequest(calls=[call])


@pytest.mark.parametrize("policy", [ROBOT_APPROVES, NOT_ROBOT], ids=["no agent any more", "removed"])
async def test_a_session_with_a_revoked_key_ends_at_its_next_call(harness: WithdrawalHarness, policy: str) -> None:
    session = harness.running.stub.InvokeSession(metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    await session.write(called("before"))
    assert (await session.read()).events[0].result.ok
    harness.puts_in_force(policy)
    await session.write(called("after"))
    assert (await broken(session.read())).code is grpc.StatusCode.PERMISSION_DENIED
    assert len({chained.event.call_id for chained in await harness.running.events(tool=ECHO)}) == 1


async def test_a_grant_that_is_narrowed_counts_for_the_next_call_of_a_session(harness: WithdrawalHarness) -> None:
    session = harness.running.stub.InvokeSession(metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    call: pb.SessionCall = request("core/fs.listDir", {"path": "."}, message=pb.SessionCall)
    for number, (policy, ok) in enumerate(((a_policy(), True), (a_policy(GRANT.replace("'read:*', ", "")), False))):
        if number:
            harness.puts_in_force(policy)
        call.call_id = str(number)
        await session.write(pb.InvokeSessionRequest(calls=[call]))
        assert (await session.read()).events[0].result.ok is ok
    session.cancel()


async def test_a_session_opened_by_who_might_act_for_others_does_so_no_longer(harness: WithdrawalHarness) -> None:
    session = harness.running.stub.InvokeSession(metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
    await session.write(called("before", agent_id="somebody"))
    assert (await session.read()).events[0].result.ok
    harness.puts_in_force(a_policy(rest=REST.replace("impersonate: [robot]", "")))
    await session.write(called("after", agent_id="somebody"))
    (event,) = (await session.read()).events
    assert event.result.error.kind == error_pb2.ERROR_KIND_PERMISSION_DENIED
    session.cancel()


# Jobs


async def queued(harness: WithdrawalHarness, tool: str = WRITE, **fields: Any) -> tuple[Any, Callable[[], None]]:
    """A job of `robot` that waits behind another's, and how to let both go on."""
    before = await harness.at("other").submit(WAIT)
    await harness.at("other").seen(before.job_id, lambda entry: entry.progress.message == "half way")
    harness.writes.let_go.set()
    job = await harness.at("robot").submit(tool, **fields)
    assert state((await harness.at("robot").job(job.job_id)).status) == "QUEUED"
    return job, harness.waits.let_go.set


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (ROBOT_APPROVES, error_pb2.ERROR_KIND_POLICY_DENIED),
        (NOT_ROBOT, error_pb2.ERROR_KIND_POLICY_DENIED),
    ],
    ids=["no agent any more", "removed"],
)
async def test_a_queued_job_of_who_may_call_nothing_any_more_never_runs(
    harness: WithdrawalHarness, policy: str, kind: error_pb2.ErrorKind.ValueType
) -> None:
    job, go_on = await queued(harness)
    harness.puts_in_force(policy)
    go_on()
    last = (await harness.at("boss").ended(job.job_id))[-1]
    assert (state(last), last.error.kind) == ("FAILED", kind)
    assert harness.writes.runs == 0


async def test_a_queued_job_whose_grant_was_narrowed_never_runs(harness: WithdrawalHarness) -> None:
    (folder := harness.running.workspace("work", "robot")).mkdir(parents=True)
    (folder / "a").write_text("a")
    job, go_on = await queued(harness, "core/fs.copy", args={"source": "a", "destination": "b"}, request_id="work")
    harness.puts_in_force(a_policy(GRANT.replace(", 'write:*'", "")))
    go_on()
    last = (await harness.at("boss").ended(job.job_id))[-1]
    assert (state(last), last.error.kind) == ("FAILED", error_pb2.ERROR_KIND_POLICY_DENIED)
    assert not (folder / "b").exists()


async def test_a_job_that_is_approved_after_its_owner_was_removed_never_runs(harness: WithdrawalHarness) -> None:
    job = await harness.at("robot").submit(FILE, {"path": "a", "text": "b"}, request_id="work")
    assert job.approval_id
    harness.puts_in_force(NOT_ROBOT + REST.partition("\n")[2])
    await harness.at("judge").decide(job.approval_id)
    last = (await harness.at("boss").ended(job.job_id))[-1]
    assert state(last) == "FAILED"
    assert not (harness.running.workspace("work", "robot") / "a").exists()


# Whom nothing names


async def test_a_key_that_no_policy_names_grants_nothing(harness: WithdrawalHarness) -> None:
    stranger = harness.at("stranger")
    running, metadata = harness.running, stranger.metadata
    artifacts: Any = ArtifactServiceStub(running.channel)
    header = artifact_service_pb2.WriteArtifactRequest(header=artifact_service_pb2.ArtifactHeader(name="a.txt"))
    for call in (
        stranger.call("core/util.time.now"),
        stranger.submit("core/util.time.now"),
        stranger.page(),
        running.jobs.GetJob(job_service_pb2.GetJobRequest(job_id="job_1"), metadata=metadata),
        artifacts.WriteArtifact(iter([header]), metadata=metadata),
        running.stub.ListTools(pb.ListToolsRequest(), metadata=metadata),
        running.stub.SearchTools(pb.SearchToolsRequest(query="time"), metadata=metadata),
        stranger.approvals.ListApprovals(approval_service_pb2.ListApprovalsRequest(), metadata=metadata),
        running.audit.ListEvents(audit_service_pb2.ListEventsRequest(), metadata=metadata),
        running.registry.RegisterTool(
            registry_service_pb2.RegisterToolRequest(tool=a_tool("acme/a")), metadata=metadata
        ),
    ):
        failure = await failed(call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PRINCIPAL_UNKNOWN")
        assert "policy.yaml" in failure.message
        assert "stranger" in failure.message
    session = running.stub.InvokeSession(metadata=metadata, timeout=CALL_TIMEOUT_S)
    assert (await broken(session.read())).reason == "PRINCIPAL_UNKNOWN"


@pytest.mark.parametrize(
    "entry",
    [
        "grants: [{principals: [strang*]}]",
        "grants: [{principals: ['*']}]",
        "roles: [{principals: [stranger], roles: [agent]}]",
    ],
)
async def test_a_grant_or_a_role_that_matches_is_a_name(harness: WithdrawalHarness, entry: str) -> None:
    harness.puts_in_force(f"extends: none\n{entry}\n")
    assert (await harness.at("stranger").call("core/util.time.now")).ok


async def test_rules_and_limits_for_everybody_name_nobody(harness: WithdrawalHarness) -> None:
    harness.puts_in_force(
        "rules: [{id: a, effect: ALLOW, principals: [stranger]}]\nlimits: [{id: b, quota: 9}]\n"
        "impersonate: [stranger]\n"
    )
    failure = await failed(harness.at("stranger").call("core/util.time.now"))
    assert failure.reason == "PRINCIPAL_UNKNOWN"


async def test_an_entry_without_roles_gives_none(harness: WithdrawalHarness) -> None:
    harness.puts_in_force(a_policy(roles=ROLES.replace("[agent]}", "[]}", 1)))
    assert (await failed(harness.at("robot").call(ECHO))).code is grpc.StatusCode.PERMISSION_DENIED


async def test_everything_open_at_once_ends_with_the_principal(harness: WithdrawalHarness) -> None:
    """Twenty sessions whose calls run: not one more answer leaves after the change."""
    sessions = []
    for number in range(20):
        session = harness.running.stub.InvokeSession(metadata=harness.at("robot").metadata, timeout=CALL_TIMEOUT_S)
        call: pb.SessionCall = request(WAIT, {"text": json.dumps(number)}, message=pb.SessionCall)
        call.call_id = "waits"
        await session.write(pb.InvokeSessionRequest(calls=[call]))
        assert (await session.read()).events[0].HasField("progress")
        sessions.append(session)
    harness.puts_in_force(NOT_ROBOT)
    harness.waits.let_go.set()

    async def rest(session: Any) -> bool:
        seen = False
        while (answer := await _next(session)) is not None:
            seen |= any(event.HasField("result") for event in answer.events)
        return seen

    assert await asyncio.gather(*map(rest, sessions)) == [False] * 20
