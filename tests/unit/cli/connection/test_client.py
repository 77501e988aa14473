"""The command line's message when no hub answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fakes.tls import Authority, tls_settings
from tests.hub import RunningHub, running_hub
from toolhub_service.cli.connection.channel import Endpoint, endpoint
from toolhub_service.cli.connection.client import HubUnreachable, connect

UNRESOLVED = "errors resolving hub:1: [field:hostname lookup error:address lookup failed for hub:1: Not found]"
FAILED = "failed to connect to all addresses; last error: "


class Unavailable(grpc.RpcError):
    """As a stub raises it when gRPC has no connection; the texts of `details` are those of gRPC 1.8x."""

    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return ()


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (UNRESOLVED, "Cannot resolve host hub."),
        (
            f"{FAILED}UNAVAILABLE: (Trying to connect an http1.x server (HTTP status 405))",
            "The server at hub:1 is not a hub",
        ),
        (f"{FAILED}UNKNOWN: Tls handshake failed (TSI_PROTOCOL_FAILURE): X", "The TLS handshake with hub:1 failed"),
        (f"{FAILED}UNKNOWN: Failed to connect to remote host: Connection refused", "No hub answers at hub:1. Start"),
        ("Socket closed", "The connection to hub:1 broke before the answer came. Nothing was changed"),
    ],
)
def test_hub_that_cannot_be_reached_is_explained_with_what_to_do(details: str, text: str) -> None:
    with pytest.raises(HubUnreachable) as ended, connect(Endpoint("hub:1"), None, 1.0):
        raise Unavailable(details)
    assert ended.value.message.startswith(text)


@pytest.mark.parametrize(
    ("given", "address", "is_encrypted"),
    [
        ("hub", "hub:50051", False),
        ("hub:1", "hub:1", False),
        ("http://hub:1/", "hub:1", False),
        ("grpc://hub", "hub:50051", False),
        ("https://hub", "hub:443", True),
        ("https://hub:1", "hub:1", True),
        ("grpcs://hub", "hub:50051", True),
        ("::1", "[::1]:50051", False),
        ("[::1]:7", "[::1]:7", False),
        ("unix:/run/hub.sock", "unix:/run/hub.sock", False),
        ("dns:///hub:1", "dns:///hub:1", False),
    ],
)
def test_address_needs_neither_scheme_nor_port(given: str, address: str, is_encrypted: bool) -> None:
    hub = endpoint(given)
    assert (hub.address, hub.is_encrypted) == (address, is_encrypted)


@pytest.mark.parametrize("given", ["hub:99999", "hub:0", "a hub", "hub:grpc", "https://hub:65536", ""])
def test_an_impossible_address_is_wrong_usage(given: str) -> None:
    with pytest.raises(click.UsageError, match="is no address"):
        endpoint(given)


def test_options_of_tls_turn_it_on_and_contradictions_are_wrong_usage() -> None:
    assert endpoint("hub", tls=True).is_encrypted
    assert endpoint("hub", ca_file=Path("ca.pem")).is_encrypted
    with pytest.raises(click.UsageError, match="https://"):
        endpoint("http://hub", tls=True)
    with pytest.raises(click.UsageError, match="go together"):
        endpoint("hub", cert_file=Path("me.pem"))


async def reached(running: RunningHub, **options: Any) -> str:
    """What a command says of a hub in this process: the name of the service's state, or the message it ends with."""
    hub = endpoint(f"localhost:{running.hub.server.port}", **options)

    def ask() -> str:
        try:
            with connect(hub, None, 20.0) as connection:
                stub = health_pb2_grpc.HealthStub(connection.channel)
                answer = connection.call(stub.Check, health_pb2.HealthCheckRequest())
        except HubUnreachable as unreachable:
            return unreachable.message
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    return await asyncio.to_thread(ask)


@pytest.mark.promise("cli.tls")
async def test_a_hub_with_tls_is_distinguished_from_an_unreachable_one(tmp_path: Path) -> None:
    authority, clients = Authority(), Authority()
    ca, other, me, key = (tmp_path / name for name in ("ca.pem", "other.pem", "me.pem", "me.key"))
    own = clients.sign("agent")
    for file, content in ((ca, authority.pem), (other, clients.pem), (me, own.certificate), (key, own.key)):
        file.write_bytes(content)
    async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority, client_ca=clients)) as running:
        assert "uses TLS. Add --ca-file" in await reached(running)
        assert "is not trusted" in await reached(running, ca_file=other)
        assert "may require a client certificate" in await reached(running, ca_file=ca)
        assert await reached(running, ca_file=ca, cert_file=me, key_file=key) == "SERVING"
        strange = authority.sign("agent")  # by the hub's own CA, which signs no clients
        me.write_bytes(strange.certificate), key.write_bytes(strange.key)
        assert "signed by a CA that the hub does not trust" in await reached(
            running, ca_file=ca, cert_file=me, key_file=key
        )
    for signed, words in (
        (authority.sign("localhost", lifetime_s=-60), "The certificate has expired at localhost"),
        (authority.sign("localhost", dns=["hub.example"]), "is for another host name"),
    ):
        async with running_hub(tmp_path, settings=tls_settings(tmp_path, authority, signed=signed)) as running:
            assert words in await reached(running, ca_file=ca)
    async with running_hub(tmp_path / "plain") as running:
        assert "does not use TLS" in await reached(running, ca_file=ca)
        assert await reached(running) == "SERVING"
