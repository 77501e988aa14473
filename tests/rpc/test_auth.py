"""Who is calling: from the credential alone; which services a role opens; who may act for whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.hub import RunningHub, request, running_hub, settings_of
from tests.rpc.statuses import failed, failure_of
from toolhub.v1 import audit_service_pb2, error_pb2, registry_service_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import open_hub
from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.serving import reload_keys

TOOL = "core/util.time.now"
API_KEYS = {"auth": {"modes": ["api-key"]}}
POLICY = """
grants:
  - {principals: [robot, boss], capabilities: [read:fs]}
roles:
  - {principals: [boss], roles: [agent, operator, auditor]}
impersonate: [boss]
"""


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


class KeyedHub:
    """A hub that wants API keys, and two of them."""

    def __init__(self, running: RunningHub) -> None:
        self.running = running
        self.file = Paths(running.hub.settings).key_file()
        self.robot = self.file.create("robot")
        self.boss = self.file.create("boss")
        self.reload()

    def reload(self) -> None:
        reload_keys(self.running.hub, self.file)


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedHub]:
    async with running_hub(tmp_path, policy=POLICY, settings=API_KEYS) as running:
        yield KeyedHub(running)


@pytest.mark.promise("identity.from-credential")
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_good_key_makes_its_principal(keyed: KeyedHub, header: str) -> None:
    value = f"Bearer {keyed.robot}" if header == "authorization" else keyed.robot
    result = await keyed.running.invoke(TOOL, metadata=((header, value),))
    assert result.ok
    (asked, *_) = await keyed.running.events(call_id=result.call_id)
    assert asked.event.principal == "robot"


@pytest.mark.promise("identity.bad-credential-refused")
async def test_no_key_is_refused_with_advice_how_to_get_one(keyed: KeyedHub) -> None:
    failure = await failed(keyed.running.stub.Invoke(request(TOOL)))
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_MISSING")
    assert "toolhub keys create" in failure.message


@pytest.mark.promise("identity.bad-credential-refused")
@pytest.mark.parametrize("spoil", ["{}x", "x{}", "thk_00000000_nothing", "{0:.14}wrong", "thk_", "not a key at all"])
async def test_wrong_key_is_refused_and_never_shown_again(keyed: KeyedHub, spoil: str) -> None:
    wrong = spoil.format(keyed.robot)
    failure = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=bearer(wrong)))
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED")
    assert keyed.robot not in failure.message


@pytest.mark.parametrize(("sent", "looks_like"), [("gho_16C7e42F292c6912E7", "opaque token"), ("thk_0_x", "revoked")])
async def test_an_opaque_token_is_told_from_an_unknown_key(keyed: KeyedHub, sent: str, looks_like: str) -> None:
    failure = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=bearer(sent)))
    assert looks_like in failure.message
    assert sent not in failure.message


@pytest.mark.promise("identity.bad-credential-refused")
async def test_revoked_key_stops_working_when_the_file_is_read_again(keyed: KeyedHub) -> None:
    assert (await keyed.running.invoke(TOOL, metadata=bearer(keyed.robot))).ok
    assert keyed.file.revoke("_".join(keyed.robot.split("_")[:2]))
    keyed.reload()
    failure = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=bearer(keyed.robot)))
    assert failure.reason == "CREDENTIAL_REFUSED"
    assert (await keyed.running.invoke(TOOL, metadata=bearer(keyed.boss))).ok


@pytest.mark.promise("identity.bad-credential-refused")
async def test_revoked_key_ends_the_session_that_was_opened_with_it(keyed: KeyedHub) -> None:
    session = keyed.running.stub.InvokeSession(metadata=bearer(keyed.robot))
    await session.write(session_request("before"))
    assert (await session.read()).events[0].result.ok
    assert keyed.file.revoke("_".join(keyed.robot.split("_")[:2]))
    keyed.reload()
    await session.write(session_request("after"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await session.read()
    failure = failure_of(refused.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED")
    assert [event.event.principal for event in await keyed.running.events(tool=TOOL)] == ["robot"]


@pytest.mark.promise("identity.bad-credential-refused")
async def test_a_revoked_key_gets_no_further_updates_of_what_it_followed(keyed: KeyedHub) -> None:
    tail = keyed.running.audit.TailEvents(audit_service_pb2.TailEventsRequest(), metadata=bearer(keyed.boss))
    await tail.initial_metadata()
    assert (await keyed.running.invoke(TOOL, metadata=bearer(keyed.robot))).ok
    assert (await tail.read()).event.tool == TOOL
    assert keyed.file.revoke("_".join(keyed.boss.split("_")[:2]))
    keyed.reload()
    assert (await keyed.running.invoke(TOOL, metadata=bearer(keyed.robot))).ok
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await tail.read()
    assert failure_of(refused.value).reason == "CREDENTIAL_REFUSED"


def session_request(call_id: str) -> pb.InvokeSessionRequest:
    asked = request(TOOL, message=pb.SessionCall)
    asked.call_id = call_id
    return pb.InvokeSessionRequest(calls=[asked])


async def test_broken_key_file_keeps_the_keys_that_were_read(keyed: KeyedHub) -> None:
    (Path(keyed.running.hub.settings.data_dir) / "api-keys.yaml").write_text("[not, keys")
    keyed.reload()
    assert (await keyed.running.invoke(TOOL, metadata=bearer(keyed.robot))).ok


@pytest.mark.promise("identity.keys-hashed")
def test_key_file_holds_no_key_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = Paths(settings_of(tmp_path)).key_file()
    key = file.create("robot")
    path = tmp_path / "hub" / "api-keys.yaml"
    assert key.split("_", 2)[2] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("identity.bad-credential-refused")
async def test_credential_that_was_sent_is_checked_even_where_none_is_needed(hub: RunningHub) -> None:
    failure = await failed(hub.stub.Invoke(request(TOOL), metadata=bearer("thk_1_2")))
    assert failure.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.promise("identity.insecure-only-locally")
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "hub.example.com:50051"])
async def test_hub_without_credentials_never_starts_where_others_reach_it(tmp_path: Path, address: str) -> None:
    with pytest.raises(ListenRefused, match="api-key"):
        await open_hub(settings_of(tmp_path, {"server": {"listen": address}}))


@pytest.mark.promise("identity.roles")
async def test_roles_open_services(keyed: KeyedHub) -> None:
    snapshot, events = registry_service_pb2.GetSnapshotRequest(), audit_service_pb2.ListEventsRequest()
    robot, boss = bearer(keyed.robot), bearer(keyed.boss)
    for call, role in (
        (keyed.running.audit.ListEvents(events, metadata=robot), "auditor"),
        (keyed.running.registry.GetSnapshot(snapshot, metadata=robot), "operator"),
    ):
        failure = await failed(call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
        assert failure.metadata["role"] == role
    assert (await keyed.running.audit.ListEvents(events, metadata=boss)) is not None
    assert (await keyed.running.registry.GetSnapshot(snapshot, metadata=boss)).tools


@pytest.mark.promise("identity.no-impersonation")
@pytest.mark.parametrize("field", ["agent_id", "user_id"])
async def test_only_who_may_impersonate_acts_for_another(keyed: KeyedHub, field: str) -> None:
    as_other = {field: "somebody"}
    refused = await keyed.running.stub.Invoke(request(TOOL, **as_other), metadata=bearer(keyed.robot))  # type: ignore[arg-type]
    assert refused.result.error.kind == error_pb2.ERROR_KIND_PERMISSION_DENIED
    allowed = await keyed.running.stub.Invoke(request(TOOL, **as_other), metadata=bearer(keyed.boss))  # type: ignore[arg-type]
    assert allowed.result.ok


async def test_health_and_reflection_ask_for_no_credential(keyed: KeyedHub) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    stub = health_pb2_grpc.HealthStub(keyed.running.channel)
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_caller_cannot_see_tools_that_it_cannot_call(keyed: KeyedHub) -> None:
    robot = bearer(keyed.robot)
    listed = await keyed.running.stub.ListTools(pb.ListToolsRequest(), metadata=robot)
    names = {tool.name for tool in listed.tools}
    assert "core/fs.readText" in names
    assert "core/fs.writeText" not in names
    failure = await failed(keyed.running.stub.GetTool(pb.GetToolRequest(name="core/fs.writeText"), metadata=robot))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "TOOL_NOT_FOUND")


@pytest.mark.promise("identity.bad-credential-refused")
async def test_two_credentials_are_refused_rather_than_one_chosen(keyed: KeyedHub) -> None:
    """Two entries at once: fails at befa727, where `authorization` won without a word."""
    robot, boss = bearer(keyed.robot), bearer(keyed.boss)
    for both in (
        (*robot, *boss),
        (*robot, ("x-api-key", keyed.boss)),
        (("authorization", "Basic eDp5"), ("x-api-key", keyed.boss)),
    ):
        failure = await failed(keyed.running.stub.Invoke(request(TOOL), metadata=both))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED")
        assert "send one" in failure.message
    assert (await keyed.running.invoke(TOOL, metadata=(*robot, ("x-api-key", keyed.robot)))).ok, "the same one twice"


async def test_credential_that_a_local_hub_does_not_take_is_refused_and_not_called_missing(tmp_path: Path) -> None:
    async with running_hub(tmp_path, settings={"auth": {"modes": ["insecure-local"]}}) as running:
        failure = await failed(running.stub.Invoke(request(TOOL), metadata=bearer("thk_00000000_nothing")))
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED")
    assert "leave it out" in failure.message
