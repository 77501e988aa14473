"""Who calls by an X.509-SVID: the id of the certificate alone, vouched for by the bundle of its own trust domain."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import httpx
import msgspec
import pytest

from tests.fakes.tls import Authority, Signed, tls_settings
from tests.hub import CALL_TIMEOUT_S, RunningHub, channel_to, running_hub, settings_of
from tests.rpc.statuses import failed
from toolhub.v1 import audit_service_pb2, job_service_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.config_files.key_file import Wanted
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.credentials import certificate_checks
from toolhub_service.app.doctor.start import start_findings
from toolhub_service.app.hub import open_hub
from toolhub_service.app.listening import ListenRefused, listening_of
from toolhub_service.app.serving import reload_certificates, reload_keys

WORKLOAD = "spiffe://example.org/ns/agents/sa/planner"
PARTNER = "spiffe://partner.example/agent"
POLICY = f"""
grants:
  - {{principals: ["{WORKLOAD}", "{PARTNER}", key-holder, local], capabilities: [read:fs]}}
"""


@dataclass(slots=True)
class SpiffeHarness:
    """A hub of the trust domain example.org that knows another, partner.example."""

    running: RunningHub
    folder: Path
    server: Authority
    own: Authority
    partner: Authority

    def connected(self, client: Signed | None) -> grpc.aio.Channel:
        pair = (client.key, client.certificate) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(self.server.pem, *pair)
        return channel_to(f"localhost:{self.running.hub.server.port}", credentials)

    async def whoami(self, client: Signed | None, metadata: Sequence[tuple[str, str]] = ()) -> str:
        """The principal that the hub takes it for."""
        async with self.connected(client) as channel:
            stub: Any = ToolServiceStub(channel)
            answer = await stub.GetServerInfo(
                pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S, metadata=tuple(metadata)
            )
        return str(answer.principal)


def svid(authority: Authority, *uris: str, **options: Any) -> Signed:
    return authority.sign("workload", dns=(), uris=uris, **options)


@asynccontextmanager
async def spiffe_harness(
    folder: Path,
    modes: Sequence[str] = ("spiffe",),
    client_ca_file: str = "",
    tls: Mapping[str, str] = MappingProxyType({}),
    policy: str = POLICY,
    **auth: Any,
) -> AsyncIterator[SpiffeHarness]:
    server, own, partner = Authority(), Authority(uris=("spiffe://example.org",)), Authority()
    settings: Any = tls_settings(folder, server)
    settings["server"]["mcp"] = {"enabled": True, "listen": "localhost:0"}
    settings["server"]["tls"] |= {"client_ca_file": client_ca_file, **tls}
    (folder / "own.pem").write_bytes(own.pem)
    (folder / "partner.pem").write_bytes(partner.pem)
    domains = [
        {"name": "example.org", "bundle_file": str(folder / "own.pem"), "tenant": "home"},
        {"name": "partner.example", "bundle_file": str(folder / "partner.pem")},
    ]
    settings["auth"] = {"modes": list(modes), "spiffe": {"trust_domains": domains}, **auth}
    async with running_hub(folder, policy=policy, settings=settings) as running:
        yield SpiffeHarness(running, folder, server, own, partner)


@pytest.mark.promise("identity.spiffe")
async def test_an_svid_makes_its_id_the_principal_for_any_source_of_its_bundle(tmp_path: Path) -> None:
    async with spiffe_harness(tmp_path) as given:
        assert await given.whoami(svid(given.own, WORKLOAD)) == WORKLOAD
        assert await given.whoami(svid(given.partner, PARTNER)) == PARTNER
        assert await given.whoami(svid(Authority(above=given.own), WORKLOAD)) == WORKLOAD, "by an intermediate CA"
        async with given.connected(svid(given.own, WORKLOAD)) as channel:
            running = RunningHub(given.running.hub, "", channel)
            assert (await running.invoke("core/util.time.now")).ok
        (called,) = [each.event for each in await given.running.events() if each.event.tool]
        assert called.principal == WORKLOAD


@pytest.mark.promise("tenants.apart")
async def test_a_trust_domain_is_a_tenant_where_policy_maps_it(tmp_path: Path) -> None:
    tenants = """
tenants: [{name: "{tenant}", principals: ["spiffe://{tenant}/*"]}]
roles: [{principals: ["*"], roles: [agent, operator, auditor]}]
"""
    async with spiffe_harness(tmp_path, policy=f"{POLICY}{tenants}") as given:
        workload, partner = svid(given.own, WORKLOAD), svid(given.partner, PARTNER)
        async with given.connected(workload) as ours, given.connected(partner) as theirs:
            hubs = {channel: RunningHub(given.running.hub, "", channel) for channel in (ours, theirs)}
            for channel, tenant in ((ours, "example.org"), (theirs, "partner.example")):
                answer = await hubs[channel].stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
                assert answer.tenant == tenant
                assert (await hubs[channel].invoke("core/util.time.now")).ok
                job = await hubs[channel].submit("core/util.time.now")
                assert job.principal == answer.principal
            for channel, own in ((ours, WORKLOAD), (theirs, PARTNER)):
                listed = await hubs[channel].audit.ListEvents(
                    audit_service_pb2.ListEventsRequest(), timeout=CALL_TIMEOUT_S
                )
                assert {(event.principal, event.tenant) for event in listed.events} == {
                    (own, own.removeprefix("spiffe://").partition("/")[0])
                }
                jobs = await hubs[channel].jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=CALL_TIMEOUT_S)
                assert [job.principal for job in jobs.jobs] == [own]


@pytest.mark.promise("identity.spiffe")
async def test_certificates_that_are_no_svid_of_a_known_trust_domain_are_refused(tmp_path: Path) -> None:
    async with spiffe_harness(tmp_path) as given:
        refused = {
            "does not vouch": svid(given.partner, WORKLOAD),
            "no bundle of the trust domain": svid(given.own, "spiffe://elsewhere.example/agent"),
            "has 2 URIs": svid(given.own, WORKLOAD, PARTNER),
            "not the SPIFFE id of a workload": svid(given.own, "spiffe://example.org"),
            "no credential": given.own.sign("localhost"),
        }
        for why, client in refused.items():
            answer = await failed(given.whoami(client))
            assert answer.code is grpc.StatusCode.UNAUTHENTICATED
            assert why in answer.message
        for nobody in (None, svid(Authority(), WORKLOAD), svid(given.own, WORKLOAD, lifetime_s=-60)):
            assert (await failed(given.whoami(nobody))).code is grpc.StatusCode.UNAVAILABLE, "at the handshake"
        given.running.hub.access.flush()
        events = [each.event for each in await given.running.events() if each.event.type.value == "AUTH_FAILED"]
        assert {event.attributes["reason"] for event in events} == {"CREDENTIAL_REFUSED", "CREDENTIAL_MISSING"}


@pytest.mark.promise("identity.spiffe")
async def test_a_replaced_bundle_ends_connections_it_no_longer_vouches_for_and_a_broken_one_does_not(
    tmp_path: Path,
) -> None:
    async with spiffe_harness(tmp_path) as given:
        following, bundle = Authority(), tmp_path / "own.pem"
        old, new = svid(given.own, WORKLOAD), svid(following, WORKLOAD)
        async with given.connected(old) as channel:
            stub: Any = ToolServiceStub(channel)

            async def renewed(content: bytes) -> None:
                bundle.write_bytes(content)
                await reload_certificates(given.running.hub, asked=False)

            await renewed(given.own.pem + following.pem)
            assert (await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)).principal == WORKLOAD
            assert await given.whoami(new) == WORKLOAD
            await renewed(following.pem[:300])
            assert await given.whoami(old) == await given.whoami(new) == WORKLOAD
            await renewed(in_json(following.pem))
            assert await given.whoami(new) == WORKLOAD
            answer = await failed(stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S))
            assert answer.code is grpc.StatusCode.UNAUTHENTICATED, "on the connection that was there"
        assert (await failed(given.whoami(old))).code is grpc.StatusCode.UNAVAILABLE


def in_json(pem: bytes) -> bytes:
    """As `spire-server bundle show -format spiffe` writes it."""
    der = base64.b64encode(ssl.PEM_cert_to_DER_cert(pem.decode())).decode()
    keys = [{"use": "x509-svid", "kty": "EC", "x5c": [der]}, {"use": "jwt-svid", "kty": "EC", "kid": "1"}]
    return json.dumps({"spiffe_sequence": 1, "spiffe_refresh_hint": 300, "keys": keys}).encode()


async def test_beside_other_modes_what_a_request_carries_decides_over_its_certificate(tmp_path: Path) -> None:
    modes = ("spiffe", "api-key", "insecure-local")
    async with spiffe_harness(tmp_path, modes) as given:
        file = Paths(given.running.hub.settings).key_file()
        holder, impersonator = file.create("key-holder"), file.create(WORKLOAD)
        reload_keys(given.running.hub, file)
        with_svid, without = svid(given.own, WORKLOAD), given.own.sign("localhost")
        assert await given.whoami(with_svid) == WORKLOAD
        assert await given.whoami(with_svid, [("authorization", f"Bearer {holder}")]) == "key-holder"
        assert await given.whoami(without, [("authorization", f"Bearer {holder}")]) == "key-holder"
        assert await given.whoami(without) == "local"
        refused = {
            "unknown or was revoked": (with_svid, holder + "x"),
            "name of a principal": (without, impersonator),
            "does not vouch": (svid(given.partner, WORKLOAD), ""),
        }
        for why, (client, key) in refused.items():
            answer = await failed(given.whoami(client, [("authorization", f"Bearer {key}")] if key else []))
            assert answer.code is grpc.StatusCode.UNAUTHENTICATED
            assert why in answer.message


@pytest.mark.promise("identity.spiffe")
async def test_a_second_port_takes_keys_and_tokens_of_clients_without_a_certificate(tmp_path: Path) -> None:
    modes, keys_listen = ("spiffe", "api-key"), {"keys_listen": "localhost:0"}
    async with spiffe_harness(tmp_path, modes, tls=keys_listen) as given:
        file = Paths(given.running.hub.settings).key_file()
        key = [("authorization", f"Bearer {file.create('key-holder')}")]
        reload_keys(given.running.hub, file)

        async def at_second(client: Signed | None, metadata: Sequence[tuple[str, str]] = ()) -> str:
            pair = (client.key, client.certificate) if client else (None, None)
            credentials = grpc.ssl_channel_credentials(given.server.pem, *pair)
            async with channel_to(f"localhost:{given.running.hub.server.keys_port}", credentials) as channel:
                stub: Any = ToolServiceStub(channel)
                asked = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S, metadata=tuple(metadata))
                return str((await asked).principal)

        assert await at_second(None, key) == "key-holder"
        for client in (None, svid(given.own, WORKLOAD)):
            assert (await failed(at_second(client))).code is grpc.StatusCode.UNAUTHENTICATED, (
                "certificates are not read"
            )
        assert (await failed(given.whoami(None, key))).code is grpc.StatusCode.UNAVAILABLE
        assert await given.whoami(svid(given.own, WORKLOAD)) == WORKLOAD
        (tmp_path / "hub.pem").write_bytes((renewed := Authority().sign("localhost")).certificate)
        (tmp_path / "hub.key").write_bytes(renewed.key)
        await reload_certificates(given.running.hub, asked=False)
        assert (await failed(at_second(None, key))).code is grpc.StatusCode.UNAVAILABLE, (
            "its certificate is replaced, too"
        )
    for wrong, why in (
        ({"auth": {"modes": ["api-key"]}}, "asks for none"),
        ({"auth": {"modes": ["spiffe"], "spiffe": {"trust_domains": [domain_of(tmp_path)]}}}, "nobody could call"),
    ):
        settings: Any = {**tls_settings(tmp_path, Authority()), **wrong}
        settings["server"]["tls"] |= keys_listen
        with pytest.raises(ListenRefused, match=why):
            listening_of(settings_of(tmp_path, settings))
    settings = tls_settings(tmp_path, Authority())
    settings["server"]["tls"] |= keys_listen
    settings["server"]["max_connections"] = 10
    settings["auth"] = {"modes": list(modes), "spiffe": {"trust_domains": [domain_of(tmp_path)]}}
    assert listening_of(settings_of(tmp_path, settings)).max_connections == 5, "gRPC counts those of each port apart"


def domain_of(folder: Path) -> dict[str, str]:
    return {"name": "example.org", "bundle_file": str(folder / "own.pem")}


@pytest.mark.promise("identity.spiffe")
async def test_over_mcp_the_same_certificates_count_and_a_client_without_one_may_have_a_key(tmp_path: Path) -> None:
    async with spiffe_harness(tmp_path, ("spiffe", "api-key")) as given:
        file = Paths(given.running.hub.settings).key_file()
        key = {"authorization": f"Bearer {file.create('key-holder')}"}
        reload_keys(given.running.hub, file)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
        url = f"https://localhost:{given.running.hub.mcp.listener.port}/mcp"

        async def answered(client: Signed | None, **headers: str) -> httpx.Response:
            context = ssl.create_default_context(cadata=given.server.pem.decode())
            if client is not None:
                (tmp_path / "shown.pem").write_bytes(client.key + client.certificate)
                context.load_cert_chain(tmp_path / "shown.pem")
            async with httpx.AsyncClient(
                verify=context, timeout=CALL_TIMEOUT_S, headers={**HEADERS, **headers}
            ) as http:
                return await http.post(url, json=ping)

        async def status(client: Signed | None, **headers: str) -> int:
            return (await answered(client, **headers)).status_code

        async def listed(**headers: str) -> set[str]:
            answer = (await answered(None, **headers)).json()
            return {tool["name"] for tool in answer["result"]["tools"]}

        assert await status(svid(given.own, WORKLOAD)) == 200
        assert await status(svid(given.partner, WORKLOAD)) == 401
        assert await status(None) == 401
        assert await status(None, **key) == 200
        narrow = file.create("key-holder", Wanted(capabilities=frozenset({"write:fs"})))
        reload_keys(given.running.hub, file)
        assert "core__fs_readText" in await listed(**key)
        assert "core__fs_readText" not in await listed(authorization=f"Bearer {narrow}")


VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": VERSION,
    "mcp-method": "tools/list",
}


async def test_a_hub_that_could_not_know_anybody_by_certificates_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.pem").write_bytes(Authority().pem)
    domain = {"name": "example.org", "bundle_file": str(tmp_path / "own.pem")}
    auth = {"modes": ["spiffe"], "spiffe": {"trust_domains": [domain]}}
    with pytest.raises(ListenRefused, match=r"server\.tls\.certificate_file"):
        await open_hub(settings_of(tmp_path, {"auth": auth}))
    tls = tls_settings(tmp_path, Authority())
    gone = {**auth, "spiffe": {"trust_domains": [{**domain, "bundle_file": str(tmp_path / "none")}]}}
    with pytest.raises(ListenRefused, match="No such file"):
        await open_hub(settings_of(tmp_path, {**tls, "auth": gone}))
    for wrong in ({"modes": ["spiffe"]}, {"modes": ["api-key"], "spiffe": auth["spiffe"]}, {"modes": ["xfcc"]}):
        with pytest.raises(msgspec.ValidationError, match=r"^auth\.modes with"):
            settings_of(tmp_path, {"auth": wrong})
    whole = settings_of(tmp_path, {**tls, "auth": auth})
    *_, known = certificate_checks(whole)
    assert (known.state, known.text) == (State.OK, "trust domains: example.org; proxies: 0")
    short = Authority().sign("localhost", lifetime_s=600 - 3_600 + 300)
    (tmp_path / "hub.pem").write_bytes(short.certificate)
    (tmp_path / "hub.key").write_bytes(short.key)
    *_, late = certificate_checks(whole)
    assert late.state is State.WARN
    assert "server.max_connection_age_s" in late.advice
    monkeypatch.setattr("toolhub_service.identity.spiffe.find_spec", lambda _: None)
    (lacking,) = [each for each in await start_findings(whole) if each.name == "auth"]
    assert (lacking.state, "auth.modes has spiffe or xfcc" in lacking.text) == (State.FAIL, True)
    with pytest.raises(ListenRefused, match=r"toolhub extras install spiffe"):
        await open_hub(settings_of(tmp_path, {**tls, "auth": auth}))
