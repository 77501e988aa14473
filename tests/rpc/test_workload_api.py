"""A hub whose certificate and bundles come from the SPIFFE Workload API, while its agent changes them or is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from tests.fakes.tls import Authority, Signed
from tests.fakes.workload_api import FakeSpireAgent, agent_in, answer_of, response
from tests.hub import CALL_TIMEOUT_S, RunningHub, channel_to, request, running_hub, settings_of
from tests.rpc.statuses import failed
from tests.rpc.test_certificates import metric
from tests.rpc.test_spiffe import PARTNER, POLICY, WORKLOAD, svid
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.credentials import certificate_checks
from toolhub_service.app.doctor.start import start_findings
from toolhub_service.app.listening import ListenRefused, listening_of, open_certificates
from toolhub_service.settings.loading import SettingsInvalid, load_settings

HUB = "spiffe://example.org/hub"
FEDERATED = "spiffe://partner.example"


def mesh_settings(agent: FakeSpireAgent, **spiffe: Any) -> dict[str, Any]:
    auth = {"modes": ["spiffe"], "spiffe": {"workload_api": agent.endpoint, **spiffe}}
    return {"server": {"listen": "localhost:0"}, "auth": auth, "logs": {"level": "info"}}


def connected(running: RunningHub, authority: Authority, client: Signed) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(authority.pem, client.key, client.certificate)
    return channel_to(f"localhost:{running.hub.server.port}", credentials)


async def whoami(running: RunningHub, authority: Authority, client: Signed) -> str:
    async with connected(running, authority, client) as channel:
        stub: Any = ToolServiceStub(channel)
        return str((await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)).principal)


async def until(holds: Callable[[], bool]) -> None:
    """Something of another thread or process has no event here that could be waited for."""
    async with asyncio.timeout(CALL_TIMEOUT_S):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


@pytest.mark.promise("identity.workload-api")
async def test_svid_and_bundles_rotate_while_calls_go_on_and_the_last_ones_serve_while_the_agent_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, partner = Authority(), Authority(), Authority()
    ours, theirs, renewed = svid(old, WORKLOAD), svid(partner, PARTNER), svid(new, WORKLOAD)
    with agent_in(tmp_path) as agent:
        agent.gives(answer_of(HUB, old, federated={FEDERATED: partner.pem}))
        async with running_hub(tmp_path, policy=POLICY, settings=mesh_settings(agent)) as running:
            certificates = running.hub.deps.certificates

            async def given(answer: bytes) -> None:
                before = certificates.trusted
                agent.gives(answer)
                await until(lambda: certificates.trusted is not before)

            await until(lambda: is_connected(running))
            assert await whoami(running, old, ours) == WORKLOAD
            assert await whoami(running, old, theirs) == PARTNER, "by the bundle of its own trust domain"
            assert (await failed(whoami(running, old, svid(partner, WORKLOAD)))).code is grpc.StatusCode.UNAUTHENTICATED

            calls, done = 0, asyncio.Event()

            async def calling() -> None:
                nonlocal calls
                async with connected(running, old, ours) as channel:
                    stub: Any = ToolServiceStub(channel)
                    while not done.is_set():
                        answer = await stub.Invoke(request("core/util.time.now"), timeout=CALL_TIMEOUT_S)
                        assert answer.result.ok
                        calls += 1

            async with asyncio.TaskGroup() as group:
                group.create_task(calling())
                await until(lambda: calls > 0)  # its connection is made while the hub still shows the old SVID
                await given(answer_of(HUB, new, new, old, federated={FEDERATED: partner.pem}))
                assert await whoami(running, new, renewed) == await whoami(running, new, ours) == WORKLOAD
                await given(answer_of(HUB, new, new, old))
                assert (await failed(whoami(running, new, theirs))).code is grpc.StatusCode.UNAVAILABLE
                at_rotation = calls
                await until(lambda: calls > at_rotation)
                done.set()

            rejected = metric(running, "toolhub_certificate_reloads_total", file="workload_api", ok="false")
            agent.gives(response())
            await until(
                lambda: metric(running, "toolhub_certificate_reloads_total", file="workload_api", ok="false") > rejected
            )
            assert await whoami(running, new, renewed) == WORKLOAD, "an answer that cannot be used changes nothing"

            await asyncio.to_thread(agent.stop)
            await until(lambda: not is_connected(running))
            assert await whoami(running, new, renewed) == WORKLOAD
            assert capsys.readouterr().err.count("workload_api_away") == 1
            again = Authority()
            agent.gives(answer_of(HUB, again, again, new))
            agent.start()
            await until(lambda: is_connected(running))
            assert await whoami(running, again, renewed) == WORKLOAD


def is_connected(running: RunningHub) -> bool:
    return metric(running, "toolhub_workload_api_connected", id=HUB) == 1


@pytest.mark.promise("identity.workload-api")
async def test_a_hub_without_an_svid_does_not_start_and_doctor_names_the_socket(tmp_path: Path) -> None:
    own, partner = Authority(), Authority()
    with agent_in(tmp_path) as agent:
        settings = settings_of(tmp_path, mesh_settings(agent))
        for nothing, why in ((None, "no identity issued"), (b"\xff", "X509SVIDResponse"), (response(), "no SVID")):
            agent.gives(nothing)
            with pytest.raises(ListenRefused, match=rf"gives no SVID: .*{why}.*`spire-server entry create`"):
                open_certificates(settings, 0)
        torn = answer_of(HUB, own)[:-3]
        broken = answer_of(HUB, own).replace(own_key_marker(), b"\0" * len(own_key_marker()))
        for unusable in (torn, broken):
            agent.gives(unusable)
            with pytest.raises(ListenRefused, match=r"auth\.spiffe\.workload_api"):
                open_certificates(settings, 0)

        agent.gives(answer_of(HUB, own, federated={FEDERATED: partner.pem}))
        assert listening_of(settings).credentials is not None
        checks = {each.name: each for each in certificate_checks(settings)}
        assert checks["workload api"].state is State.OK
        assert f"{HUB} by {agent.endpoint}; trusts example.org, partner.example" in checks["workload api"].text
        assert checks["tls certificate"].state is checks["tls bundle partner.example"].state is State.OK
        listed = [{"name": "partner.example"}, {"name": "elsewhere.example"}]
        chosen = settings_of(tmp_path, mesh_settings(agent, trust_domains=listed))
        assert set(open_certificates(chosen, 0).trusted) == {"partner.example"}, "others are not listed"
        (found,) = [each for each in certificate_checks(chosen) if each.name == "workload api"]
        assert (found.state, "no bundle of elsewhere.example" in found.text) == (State.WARN, True)
    (refused,) = [each for each in await start_findings(settings) if each.name == "auth"]
    assert (refused.state, "gives no SVID: UNAVAILABLE" in refused.text) == (State.FAIL, True)


def own_key_marker() -> bytes:
    """The object identifier of an EC key (RFC 5480)."""
    return bytes.fromhex("06072a8648ce3d0201")


def test_the_socket_of_the_environment_counts_where_a_hub_would_have_no_certificate(tmp_path: Path) -> None:
    environment = {"SPIFFE_ENDPOINT_SOCKET": "unix:///run/spire/agent.sock"}
    of_mesh = {"TOOLHUB_AUTH_MODES": "spiffe", **environment}
    assert load_settings(None, of_mesh).auth.spiffe.workload_api == "unix:///run/spire/agent.sock"
    assert load_settings(None, environment).auth.spiffe.workload_api == "", "it may be meant for others of the pod"
    file = tmp_path / "toolhub.yaml"
    bundles = "trust_domains: [{name: a, bundle_file: a.pem}]"
    file.write_text(f"server: {{tls: {{certificate_file: a, key_file: b}}}}\nauth: {{spiffe: {{{bundles}}}}}")
    assert load_settings(file, of_mesh).auth.spiffe.workload_api == ""
    with pytest.raises(SettingsInvalid, match="workload_api"):
        load_settings(None, {"TOOLHUB_AUTH_MODES": "spiffe", "SPIFFE_ENDPOINT_SOCKET": "tcp://127.0.0.1:8081"})
    with pytest.raises(msgspec.ValidationError, match="bundle_file"):
        settings_of(tmp_path, {"auth": {"modes": ["spiffe"], "spiffe": {"trust_domains": [{"name": "a"}]}}})
