"""Certificates and CAs of the hub that are replaced on disk while it serves, over gRPC and MCP."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.fakes.tls import Authority, Signed, tls_settings
from tests.hub import CALL_TIMEOUT_S, RunningHub, channel_to, request, running_hub, settings_of
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.certificates import LiveCertificates
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.credentials import certificate_checks
from toolhub_service.app.serving import reload_certificates

INVOKE = "/toolhub.v1.ToolService/Invoke"
TOOL = "core/util.time.now"


def trusting(authority: Authority, client: Signed | None = None) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(authority.pem)
    return grpc.ssl_channel_credentials(authority.pem, client.key, client.certificate)


async def reaches(running: RunningHub, credentials: grpc.ChannelCredentials) -> bool:
    """Whether a new connection is answered."""
    async with channel_to(f"localhost:{running.hub.server.port}", credentials) as channel:
        stub: Any = ToolServiceStub(channel)
        try:
            return bool((await stub.Invoke(request(TOOL), timeout=CALL_TIMEOUT_S)).result.ok)
        except grpc.aio.AioRpcError as refused:
            if refused.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False


async def answers_over_mcp(
    running: RunningHub, authority: Authority, client: Signed | None, folder: Path, newest: ssl.TLSVersion | None = None
) -> bool:
    """Whether a new connection to the MCP endpoint is answered."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if newest is not None:
        context.maximum_version = newest
    if client is not None:
        (folder / "shown.pem").write_bytes(client.key + client.certificate)
        context.load_cert_chain(folder / "shown.pem")
    try:
        reader, writer = await asyncio.open_connection("localhost", running.hub.mcp.listener.port, ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return answer.startswith(b"HTTP/1.1 200")


def put(path: Path, content: bytes) -> None:
    """As a rotation of files does it: whole, or not there."""
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(path)


def renew(folder: Path, authority: Authority, **options: Any) -> None:
    signed = authority.sign("localhost", **options)
    put(folder / "hub.pem", signed.certificate)
    put(folder / "hub.key", signed.key)


def metric(running: RunningHub, name: str, **labels: str) -> float:
    for line in running.hub.observing.metrics.exposition().decode().splitlines():
        if line.startswith(f"{name}{{") and all(f'{label}="{value}"' in line for label, value in labels.items()):
            return float(line.rpartition(" ")[2])
    return 0.0


@pytest.mark.promise("tls.reloaded")
async def test_replaced_certificates_and_client_cas_hold_for_new_connections_and_old_ones_go_on(tmp_path: Path) -> None:
    old, new, clients, others = Authority(), Authority(), Authority(), Authority()
    settings: Any = tls_settings(tmp_path, old, client_ca=clients)
    settings["server"]["mcp"] = {"enabled": True, "listen": "localhost:0"}
    mine, foreign = clients.sign("agent"), others.sign("agent")
    async with (
        running_hub(tmp_path, settings=settings) as running,
        channel_to(f"localhost:{running.hub.server.port}", trusting(old, mine)) as connected,
    ):
        stub: Any = ToolServiceStub(connected)
        assert (await stub.Invoke(request(TOOL), timeout=CALL_TIMEOUT_S)).result.ok
        assert await answers_over_mcp(running, old, mine, tmp_path)
        assert not await answers_over_mcp(running, old, None, tmp_path)
        ends = metric(running, "toolhub_certificate_end_timestamp_seconds", file="certificate")

        renew(tmp_path, new, lifetime_s=7_200)
        await reload_certificates(running.hub, asked=False)
        assert (await stub.Invoke(request(TOOL), timeout=CALL_TIMEOUT_S)).result.ok, "on its old connection"
        assert await reaches(running, trusting(new, mine))
        assert not await reaches(running, trusting(old, mine))
        assert await answers_over_mcp(running, new, mine, tmp_path)
        assert not await answers_over_mcp(running, old, mine, tmp_path)
        assert metric(running, "toolhub_certificate_end_timestamp_seconds", file="certificate") > ends + 3_000
        assert metric(running, "toolhub_certificate_reloads_total", file="certificate", ok="true") == 1

        put(tmp_path / "clients.pem", others.pem)
        await reload_certificates(running.hub, asked=False)
        assert await reaches(running, trusting(new, foreign))
        assert not await reaches(running, trusting(new, mine))
        assert await answers_over_mcp(running, new, foreign, tmp_path)
        assert not await answers_over_mcp(running, new, mine, tmp_path)


async def test_tls_1_2_is_answered_unless_the_setting_wants_1_3(tmp_path: Path) -> None:
    authority = Authority()
    old = ssl.create_default_context(cadata=authority.pem.decode())
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_alpn_protocols(["h2"])
    for version, is_answered in (("1.2", True), ("1.3", False)):
        folder = tmp_path / version
        folder.mkdir()
        settings: Any = tls_settings(folder, authority)
        settings["server"]["tls"]["min_version"] = version
        settings["server"]["mcp"] = {"enabled": True, "listen": "localhost:0"}
        async with running_hub(folder, settings=settings) as running:
            assert await reaches(running, trusting(authority))
            async with Channel("localhost", running.hub.server.port, ssl=old) as channel:
                invoke: Any = UnaryUnaryMethod(channel, INVOKE, pb.InvokeRequest, pb.InvokeResponse)
                if is_answered:
                    assert (await invoke(request(TOOL))).result.ok
                else:
                    with pytest.raises(GRPCError, match=r"TLS 1\.3") as refused:
                        await invoke(request(TOOL))
                    assert refused.value.status is Status.UNAUTHENTICATED
            assert await answers_over_mcp(running, authority, None, folder)
            newest = ssl.TLSVersion.TLSv1_2
            assert await answers_over_mcp(running, authority, None, folder, newest) is is_answered


def test_doctor_states_the_expiry_of_each_credential(tmp_path: Path) -> None:
    for lifetime_s, state in ((86_400, State.OK), (600, State.WARN), (-60, State.FAIL)):
        settings = settings_of(tmp_path, tls_settings(tmp_path, Authority(), client_ca=Authority()))
        renew(tmp_path, Authority(), lifetime_s=lifetime_s)
        own, clients = certificate_checks(settings)
        assert (own.name, own.state) == ("tls certificate", state)
        assert (clients.name, clients.state) == ("tls client ca", State.OK)


@pytest.mark.promise("tls.reloaded")
async def test_a_broken_partial_or_loose_file_keeps_the_old_certificate_and_is_counted(tmp_path: Path) -> None:
    authority = Authority()
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority)) as running:
        good = (tmp_path / "hub.pem").read_bytes(), (tmp_path / "hub.key").read_bytes()
        other = authority.sign("localhost")
        broken = {
            "half a certificate": (good[0][:200], good[1]),
            "a key that belongs to another": (good[0], other.key),
            "a certificate without its key yet": (other.certificate, good[1]),
            "an empty file": (b"", good[1]),
        }
        for count, (what, (certificate, key)) in enumerate(broken.items(), start=1):
            put(tmp_path / "hub.pem", certificate)
            put(tmp_path / "hub.key", key)
            for _ in range(2):  # reported once, not at each check
                await reload_certificates(running.hub, asked=False)
            assert await reaches(running, trusting(authority)), what
            assert metric(running, "toolhub_certificate_reloads_total", ok="false") == count, what
        (tmp_path / "hub.key").unlink()
        await reload_certificates(running.hub, asked=False)
        put(tmp_path / "hub.pem", other.certificate)
        put(tmp_path / "hub.key", other.key)
        (tmp_path / "hub.key").chmod(0o666)
        await reload_certificates(running.hub, asked=True)
        assert metric(running, "toolhub_certificate_reloads_total", ok="false") == len(broken) + 2
        assert metric(running, "toolhub_certificate_reloads_total", ok="true") == 0
        assert await reaches(running, trusting(authority))
        (tmp_path / "hub.key").chmod(0o600)
        await reload_certificates(running.hub, asked=False)
        assert metric(running, "toolhub_certificate_reloads_total", ok="true") == 1
        assert await reaches(running, trusting(authority))


@pytest.mark.promise("tls.reloaded")
async def test_an_expired_or_not_yet_valid_certificate_never_replaces_a_valid_one(tmp_path: Path) -> None:
    authority = Authority()
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority)) as running:
        for count, options in enumerate(({"lifetime_s": -60}, {"begins_in_s": 7_200, "lifetime_s": 9_000}), start=1):
            renew(tmp_path, authority, **options)
            for _ in range(2):  # reported once, not at each check
                await reload_certificates(running.hub, asked=False)
            assert await reaches(running, trusting(authority))
            assert metric(running, "toolhub_certificate_reloads_total", file="certificate", ok="false") == count
        renew(tmp_path, authority)
        await reload_certificates(running.hub, asked=False)
        assert metric(running, "toolhub_certificate_reloads_total", file="certificate", ok="true") == 1
        assert await reaches(running, trusting(authority))


async def test_expired_cas_of_clients_never_replace_valid_ones(tmp_path: Path) -> None:
    authority, clients = Authority(), Authority()
    mine = clients.sign("agent")
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority, client_ca=clients)) as running:
        put(tmp_path / "clients.pem", Authority().sign("old", lifetime_s=-60, is_ca=True).certificate)
        await reload_certificates(running.hub, asked=False)
        assert metric(running, "toolhub_certificate_reloads_total", file="client_ca", ok="false") == 1
        assert await reaches(running, trusting(authority, mine))


def test_a_certificate_that_was_not_yet_valid_comes_into_force_when_it_is(tmp_path: Path) -> None:
    authority, now = Authority(), [time.time()]
    settings = settings_of(tmp_path, tls_settings(tmp_path, authority))
    certificates = LiveCertificates(settings, now_s=lambda: now[0])
    renew(tmp_path, authority, begins_in_s=600, lifetime_s=3_000)
    (rejected,) = certificates.reload(asked=False, problem_of=lambda _: "")
    assert "is not valid before" in rejected.problem
    assert "set this machine's clock" in rejected.problem
    assert certificates.reload(asked=False, problem_of=lambda _: "") == []
    now[0] += 700
    (taken,) = certificates.reload(asked=False, problem_of=lambda _: "")
    assert not taken.problem
    assert taken.validity.begin_s > now[0] - 200


def test_an_expired_certificate_replaces_one_that_has_expired_too(tmp_path: Path) -> None:
    authority, now = Authority(), [time.time()]
    certificates = LiveCertificates(settings_of(tmp_path, tls_settings(tmp_path, authority)), now_s=lambda: now[0])
    now[0] += 10_000
    renew(tmp_path, authority)
    (taken,) = certificates.reload(asked=False, problem_of=lambda _: "")
    assert not taken.problem
