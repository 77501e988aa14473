"""API keys that expire, are narrowed and are replaced, over the wire of a hub that accepts them by default."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from tests.hub import RunningHub, request, running_hub
from tests.rpc.statuses import failed, failure_of
from toolhub.v1 import (
    approval_pb2,
    approval_service_pb2,
    error_pb2,
    job_service_pb2,
    job_state_pb2,
    registry_service_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub_service.app.config_files.key_file import KeyFile, KeyUses, Wanted
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.key_care import USES_KEPT_EVERY_S, KeyCare
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.call import Role
from toolhub_service.domain.ports import Clock

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOOL, WRITE = "core/util.time.now", "core/fs.writeText"
WHOLE = Wanted()
POLICY = """
grants:
  - {principals: [robot, local], capabilities: ["read:*", "write:fs"]}
roles:
  - {principals: [robot, rotated, boss], roles: [agent, operator, approver]}
rules:
  - {id: ask, effect: REQUIRE_APPROVAL, principals: [local], tools: [core/fs.writeText], reason: Files are shared.}
"""
Metadata = tuple[tuple[str, str], ...]


class KeyedHub:
    def __init__(self, running: RunningHub) -> None:
        self.running = running
        self.file: KeyFile = Paths(running.hub.settings).key_file()

    def made(self, name: str, wanted: Wanted = WHOLE) -> tuple[str, Metadata]:
        """ID and metadata of a new key, which the hub knows."""
        key = self.file.create(name, wanted)
        self.reload()
        return "_".join(key.split("_")[:2]), by(key)

    def reload(self) -> None:
        reload_keys(self.running.hub, self.file)


def by(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KeyedHub]:
    async with running_hub(tmp_path_factory.mktemp("keys"), policy=POLICY) as running:
        yield KeyedHub(running)


@pytest.mark.promise("identity.keys-narrow")
async def test_capabilities_of_a_key_narrow_the_grant_of_its_principal_and_add_nothing(keyed: KeyedHub) -> None:
    _, reading = keyed.made("robot", Wanted(capabilities=frozenset({"read:*", "danger:*"})))
    _, whole = keyed.made("robot")
    write = {"path": "a.txt", "text": "x"}
    assert (await keyed.running.invoke(TOOL, metadata=reading)).ok
    refused = await keyed.running.invoke(WRITE, write, metadata=reading)
    assert refused.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
    assert "API key is narrowed to danger:*, read:*" in refused.error.message
    assert "needs write:fs" in refused.error.message
    assert "toolhub keys create" in refused.error.rule.remedy
    asking = await keyed.running.invoke(WRITE, write, metadata=whole, permissions=["read:fs"])
    assert "context.permissions" in asking.error.message, "a call may narrow itself"
    deleting = {"path": "a.txt", "confirm": True}
    beyond = await keyed.running.invoke("core/fs.deletePath", deleting, metadata=reading)
    assert beyond.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED, "the policy does not grant it"
    assert (await keyed.running.invoke(WRITE, write, metadata=whole)).ok


@pytest.mark.promise("identity.keys-narrow")
async def test_lists_leave_out_what_a_narrowed_key_may_never_call(keyed: KeyedHub) -> None:
    _, reading = keyed.made("robot", Wanted(capabilities=frozenset({"read:*"})))
    _, whole = keyed.made("robot")
    stub = keyed.running.stub

    async def listed(metadata: Metadata) -> set[str]:
        page = await stub.ListTools(pb.ListToolsRequest(page_size=1_000), metadata=metadata)
        return {tool.name for tool in page.tools}

    async def found(metadata: Metadata) -> set[str]:
        page = await stub.SearchTools(pb.SearchToolsRequest(query="write text to a file"), metadata=metadata)
        return {hit.tool.name for hit in page.hits}

    for names in (listed, found):
        # The same principal in turn: what is kept for one of its keys is not shown to another.
        assert WRITE in await names(whole)
        assert WRITE not in await names(reading)
        assert WRITE in await names(whole)
    assert {TOOL, "core/fs.readText"} <= await listed(reading)
    unknown = await failed(stub.GetTool(pb.GetToolRequest(name=WRITE), metadata=reading))
    assert unknown.code is grpc.StatusCode.NOT_FOUND


@pytest.mark.promise("identity.keys-narrow")
async def test_a_job_of_a_narrowed_key_is_as_narrow(keyed: KeyedHub) -> None:
    _, reading = keyed.made("robot", Wanted(capabilities=frozenset({"read:*"})))
    asked = request(WRITE, {"path": "a.txt", "text": "x"})
    jobs: Any = JobServiceStub(keyed.running.channel)
    submitted = job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context)
    refused = (await jobs.SubmitJob(submitted, metadata=reading, timeout=60)).job
    assert refused.status.state == job_state_pb2.JOB_STATE_FAILED
    assert refused.status.result.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED


@pytest.mark.promise("identity.keys-narrow")
async def test_roles_of_a_key_narrow_those_of_its_principal_and_add_none(keyed: KeyedHub) -> None:
    _, agent = keyed.made("robot", Wanted(roles=frozenset({Role.AGENT, Role.AUDITOR}), tenant="acme"))
    info = await keyed.running.stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=agent)
    assert (info.principal, list(info.roles)) == ("robot", ["agent"])
    snapshot = registry_service_pb2.GetSnapshotRequest()
    refused = await failed(keyed.running.registry.GetSnapshot(snapshot, metadata=agent))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")


@pytest.mark.promise("identity.keys-end")
async def test_an_expired_key_is_refused_and_only_its_holder_learns_why(keyed: KeyedHub) -> None:
    key_id, metadata = keyed.made("robot", Wanted(expires_s=int(time.time()) - 60))
    refused = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=metadata))
    assert (refused.reason, refused.metadata["problem"]) == ("CREDENTIAL_REFUSED", "expired")
    assert f"toolhub keys rotate {key_id}" in refused.message
    guessed = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=by(f"{key_id}_guessed")))
    assert guessed.metadata["problem"] == "unknown"
    assert "expired" not in guessed.message


@pytest.mark.promise("identity.keys-end")
async def test_a_replaced_key_holds_until_the_overlap_is_over_for_open_streams_too(keyed: KeyedHub) -> None:
    old_id, old = keyed.made("rotated", Wanted(roles=frozenset({Role.AGENT})))
    rotated = keyed.file.rotate("rotated", 3_600)
    assert rotated is not None
    keyed.reload()
    for metadata in (old, by(rotated.key)):
        info = await keyed.running.stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata, timeout=60)
        assert info.principal == "rotated"
    session: Any = keyed.running.stub.InvokeSession(metadata=old)
    await session.write(in_session("before"))
    await session.read()
    keys = keyed.running.hub.keys.all()
    later_s = keys[old_id].expires_s
    assert later_s is not None
    keyed.running.hub.keys.now_s = lambda: float(later_s)
    try:
        await session.write(in_session("after"))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await session.read()
        refused = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=old))
    finally:
        keyed.running.hub.keys.now_s = time.time
    assert failure_of(ended.value).metadata["problem"] == refused.metadata["problem"] == "replaced"
    assert "_".join(rotated.key.split("_")[:2]) in refused.message


def in_session(call_id: str) -> pb.InvokeSessionRequest:
    asked = request(TOOL, message=pb.SessionCall)
    asked.call_id = call_id
    return pb.InvokeSessionRequest(calls=[asked])


@pytest.mark.promise("identity.keys-by-default")
async def test_a_second_person_gets_a_key_and_approves_while_the_hub_runs(keyed: KeyedHub) -> None:
    approvals: Any = ApprovalServiceStub(keyed.running.channel)
    asked = request(WRITE, {"path": "shared.txt", "text": "x"}, request_id="work")
    waiting = (await keyed.running.stub.Invoke(asked, timeout=60)).result
    assert waiting.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
    asked.approval_id = str(waiting.error.details["approval_id"])
    _, boss = keyed.made("boss", Wanted(roles=frozenset({Role.APPROVER})))
    decision = approval_service_pb2.DecideApprovalRequest(
        approval_id=asked.approval_id, decision=approval_pb2.DECISION_APPROVE
    )
    await approvals.DecideApproval(decision, metadata=boss, timeout=60)
    assert (await keyed.running.stub.Invoke(asked, timeout=60)).result.ok


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = int(time.time())

    def monotonic_s(self) -> float:
        return float(self.now_s)

    def unix_ms(self) -> int:
        return self.now_s * 1_000


async def test_the_last_use_of_a_key_is_written_once_in_five_minutes_and_at_the_end(
    keyed: KeyedHub, tmp_path: Path
) -> None:
    key_id, metadata = keyed.made("robot")
    idle_id, _ = keyed.made("robot")
    file, clock = tmp_path / "used.json", SetClock()
    clocked: Clock = clock
    uses, keys = KeyUses(file), keyed.running.hub.keys
    keys.take_used()
    care = KeyCare(keys, uses, keyed.running.hub.observing, clocked)
    await care.check()
    assert not file.exists(), "nothing was used"
    written: list[int] = []
    for seconds in (0, 2, USES_KEPT_EVERY_S - 4, 4):
        clock.now_s += seconds
        assert (await keyed.running.invoke(TOOL, metadata=metadata)).ok
        await care.check()
        written.append(uses.read()[key_id])
    first = written[0]
    assert written == [first, first, first, first + USES_KEPT_EVERY_S + 2]
    assert idle_id not in uses.read()
    clock.now_s += 7
    assert (await keyed.running.invoke(TOOL, metadata=metadata)).ok
    await care.close()
    assert uses.read()[key_id] == clock.now_s
    assert file.stat().st_mode & 0o777 == 0o600


async def test_the_last_use_that_cannot_be_written_loses_no_call(keyed: KeyedHub, tmp_path: Path) -> None:
    _, metadata = keyed.made("robot")
    (tmp_path / "used.json").mkdir()
    care = KeyCare(keyed.running.hub.keys, KeyUses(tmp_path / "used.json"), keyed.running.hub.observing, SetClock())
    assert (await keyed.running.invoke(TOOL, metadata=metadata)).ok
    await care.check()
    assert (await keyed.running.invoke(TOOL, metadata=metadata)).ok
