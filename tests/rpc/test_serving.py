"""Where and how the hub listens: health, reflection, TLS with and without client certificates, a Unix socket."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tests.fakes.tls import Authority, Signed, tls_settings
from tests.hub import RunningHub, channel_to, request, running_hub, settings_of
from tests.missing import need_program
from tests.rpc.statuses import failed
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_client import connect
from toolhub_service import __version__
from toolhub_service.app.hub import open_hub
from toolhub_service.app.listening import ListenRefused, listening_of
from toolhub_service.transport.server import contract_digest, server_options

SERVICES = [f"toolhub.v1.{name}Service" for name in ("Tool", "Job", "Approval", "Artifact", "Registry", "Audit")]
SERVING = health_pb2.HealthCheckResponse.SERVING
TOOL = "core/util.time.now"


@pytest.mark.promise("serving.health-and-reflection")
@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_health_is_reported_by_service(hub: RunningHub, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(hub.channel)
    assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING


async def test_health_of_an_unknown_service_is_not_found(hub: RunningHub) -> None:
    stub = health_pb2_grpc.HealthStub(hub.channel)
    failure = await failed(stub.Check(health_pb2.HealthCheckRequest(service="nobody.Home")))
    assert failure.code is grpc.StatusCode.NOT_FOUND


@pytest.mark.promise("contract.server-info")
async def test_every_caller_is_shown_the_hub_and_its_own_identity(tmp_path: Path) -> None:
    policy = "extends: none\nroles: [{principals: [local], roles: [auditor]}]\n"
    settings = {"session": {"max_in_flight": 7}, "results": {"show_raw": True}}
    async with running_hub(tmp_path, policy=policy, settings=settings) as hub, connect(hub.address) as client:
        info = await client.server_info()
    assert (info.principal, list(info.roles)) == ("local", ["auditor"])
    server = info.server
    assert (server.version, server.contract) == (__version__, "toolhub.v1")
    assert server.contract_digest == contract_digest()
    assert {"jobs.watch_many", "tools.args_form", "tools.watch", "reflection", "results.raw"} <= set(server.features)
    assert "search.meaning" not in server.features
    assert server.limits.max_session_calls == 7
    assert server.limits.max_call_timeout.ToSeconds() == 600
    assert len(server.limits.ListFields()) == len(server.limits.DESCRIPTOR.fields)
    assert [(way.protocol, list(way.credentials)) for way in server.entrances] == [
        ("grpc", ["insecure-local", "api-key"])
    ]


@pytest.mark.promise("serving.health-and-reflection")
@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_services_and_describes_them(hub: RunningHub, version: str) -> None:
    channel: Any = hub.channel
    reflect = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="toolhub.v1.ToolService"),
    ]
    listed, described = [answer async for answer in reflect(iter(asked))]
    names = {service.name for service in listed.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health", f"grpc.reflection.{version}.ServerReflection"} <= names
    files = [FileDescriptorProto.FromString(raw) for raw in described.file_descriptor_response.file_descriptor_proto]
    assert "toolhub/v1/tool_service.proto" in {file.name for file in files}


async def test_reflection_can_be_switched_off(tmp_path: Path) -> None:
    async with running_hub(tmp_path, settings={"server": {"reflection": False}}) as running:
        channel: Any = running.channel
        # As one message: the write of a stream may meet its end, which grpc.aio's client reports as INTERNAL.
        reflect = channel.unary_unary("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await reflect(b"", timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_unix_socket_serves_like_a_port(tmp_path: Path) -> None:
    socket = tmp_path / "hub.sock"
    async with running_hub(tmp_path, settings={"server": {"listen": f"unix:{socket}"}}) as running:
        assert (await running.invoke(TOOL)).ok
        assert socket.is_socket()


async def test_address_that_is_taken_is_refused_by_name(hub: RunningHub, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=hub.address):
        await open_hub(settings_of(tmp_path / "second", {"server": {"listen": hub.address}}))


@pytest.mark.promise("serving.health-and-reflection", "serving.reflection")
@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (
            ("buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--list-methods", "http://{}"),
            "toolhub.v1.ToolService/Invoke",
        ),
        (("grpcurl", "-plaintext", "{}", "describe", "toolhub.v1.ToolService.Invoke"), "rpc Invoke"),
        (("grpcurl", "-plaintext", "{}", "describe", "grpc.reflection.v1.ServerReflection"), "ServerReflectionInfo"),
    ],
)
async def test_programs_find_every_method_by_reflection(hub: RunningHub, program: tuple[str, ...], shown: str) -> None:
    need_program(program[0])
    command = [word.format(hub.address) for word in program]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert shown in result.stdout


def trusting(authority: Authority, client: Signed | None = None) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(authority.pem)
    return grpc.ssl_channel_credentials(authority.pem, client.key, client.certificate)


async def reaches(port: int, credentials: grpc.ChannelCredentials | None) -> bool:
    async with channel_to(f"localhost:{port}", credentials) as channel:
        stub: Any = ToolServiceStub(channel)
        try:
            return bool((await stub.Invoke(request(TOOL), timeout=60)).result.ok)
        except grpc.aio.AioRpcError as refused:
            if refused.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False


@pytest.mark.promise("identity.mtls")
async def test_tls_by_configuration_serves_who_trusts_it_and_nobody_in_plaintext(tmp_path: Path) -> None:
    authority = Authority()
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority)) as running:
        port = running.hub.server.port
        assert await reaches(port, trusting(authority))
        assert not await reaches(port, trusting(Authority()))
        assert not await reaches(port, None)


@pytest.mark.promise("identity.mtls")
async def test_mutual_tls_serves_only_who_shows_a_certificate_of_the_right_authority(tmp_path: Path) -> None:
    authority, clients = Authority(), Authority()
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority, client_ca=clients)) as running:
        port = running.hub.server.port
        assert await reaches(port, trusting(authority, clients.sign("agent")))
        assert not await reaches(port, trusting(authority))
        assert not await reaches(port, trusting(authority, Authority().sign("agent")))


async def test_missing_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    tls = {"certificate_file": str(tmp_path / "no.pem"), "key_file": str(tmp_path / "no.key")}
    with pytest.raises(ListenRefused, match=r"key_file.*No such file"):
        await open_hub(settings_of(tmp_path, {"server": {"tls": tls}}))


@pytest.mark.parametrize("max_timeout_s", [5.0, 3_600.0])
@pytest.mark.promise("serving.old-connections")
def test_connection_that_is_too_old_lets_the_longest_call_end(tmp_path: Path, max_timeout_s: float) -> None:
    settings = {"server": {"max_connection_age_s": 60}, "budget": {"max_timeout_s": max_timeout_s}}
    options = dict(server_options(listening_of(settings_of(tmp_path, settings))))
    assert options["grpc.max_connection_age_ms"] == 60_000
    assert options["grpc.max_connection_age_grace_ms"] > max_timeout_s * 1_000
