"""The command line's message when no hub answers, and how long a watch waits before it connects again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fakes.tls import Authority, tls_settings
from tests.hub import RunningHub, running_hub
from toolhub_service.cli.connection.channel import Endpoint, endpoint
from toolhub_service.cli.connection.client import Backoff, HubUnreachable, connect, resume_watch, retry_after_s
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

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


class Broken(grpc.RpcError):
    """As a stub raises it."""

    def __init__(self, retry_after_s: float | None) -> None:
        reason = ErrorKind.NOT_FOUND if retry_after_s is None else Reason.DRAINING
        failure = RpcFailure(reason, "Leaving.", retry_after_s=retry_after_s)
        self._trailers = (details_trailer(failure),)

    def trailing_metadata(self) -> Any:
        return self._trailers


def test_delay_of_retry_info_is_read() -> None:
    assert retry_after_s(Broken(0.5)) == 0.5
    assert retry_after_s(Broken(None)) == 0.0


@pytest.mark.promise("cli.login")
def test_a_watch_goes_on_under_a_new_token_and_ends_when_the_old_one_is_refused_at_once() -> None:
    class Expired(Broken):
        def __init__(self) -> None:
            failure = RpcFailure(Reason.CREDENTIAL_REFUSED, "The token has expired.", {"problem": "expired"})
            self._trailers = (details_trailer(failure),)

        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAUTHENTICATED

        def details(self) -> str:
            return "The token has expired."

    held_s, now_s = [3_600.0, 3_600.0, 0.1], [0.0]

    def watch() -> Iterator[str]:
        yield "opened"
        now_s[0] += held_s.pop(0)
        raise Expired

    received: list[str] = []
    with pytest.raises(Expired):
        received.extend(resume_watch(watch, 1.0, lambda _: None, lambda _: None, lambda: now_s[0]))
    assert received == ["opened"] * 3


@pytest.mark.parametrize("named_s", [0.5, 30.0])
def test_clients_wait_for_the_named_delay_and_do_not_come_back_all_at_once(named_s: float) -> None:
    first = [Backoff(5.0).pause_s(Broken(named_s)) for _ in range(50)]
    assert all(named_s <= pause_s <= 1.5 * named_s for pause_s in first)
    assert len(set(first)) > 1


def test_delay_of_a_day_is_cut_to_minutes() -> None:
    assert Backoff(5.0).pause_s(Broken(86_400.0)) <= 90.0


def test_pauses_grow_to_their_bound_and_begin_anew() -> None:
    backoff = Backoff(2.0)
    grown = [backoff.pause_s(None) for _ in range(6)]
    assert all(pause_s <= bound_s for pause_s, bound_s in zip(grown, (0.25, 0.5, 1.0, 2.0, 2.0, 2.0), strict=True))
    assert grown[-1] >= 1.0
    backoff.reset()
    assert backoff.pause_s(None) <= 0.25
