"""Public SSRF payloads against the client: each is refused in words, no connection leaves for a forbidden address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

import httpcore
import pytest

from tests.corpora import load_json, load_lines
from tests.fakes.egress import egress_clients
from tests.fakes.resolvers import FixedResolver
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import HttpRequest
from toolhub_service.guards.addresses import is_public
from toolhub_service.guards.urls import CheckedUrl, check_url

ANYWHERE = (EgressRule(("*",), ports=frozenset(range(1, 65_536))),)
INTERNAL = {
    "localhost": ("127.0.0.1", "::1"),
    "ip6-localhost": ("::1",),
    "ip6-loopback": ("::1",),
    "localtest.me": ("127.0.0.1",),
    "test.localtest.me": ("127.0.0.1",),
    "hostname": ("172.17.0.2",),
    "metadata.google.internal": ("169.254.169.254",),
}
TYPED = {ErrorKind.INVALID_INPUT, ErrorKind.HTTP_DISALLOWED_HOST, ErrorKind.NETWORK_ERROR}


class RefusingNetwork(httpcore.AsyncMockBackend):
    """The innermost layer: notes where a connection would have gone and opens none."""

    def __init__(self) -> None:
        super().__init__([])
        self.dialled: list[str] = []

    async def connect_tcp(self, host: str, *args: object, **options: object) -> httpcore.AsyncNetworkStream:
        self.dialled.append(host)
        raise httpcore.ConnectError


class CLibraryResolver(FixedResolver):
    """Reads every spelling of an address that inet_aton reads, as getaddrinfo does; `*.nip.io` leads to loopback."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if host.endswith((".nip.io", ".xip.io")):
            return ("127.0.0.1",)
        try:
            return (socket.inet_ntoa(socket.inet_aton(host)),)
        except OSError:
            return await super().resolve(host, port)


def checked(url: str, egress: tuple[EgressRule, ...]) -> CheckedUrl | ErrorKind:
    """The verdict, or the kind of the refusal."""
    try:
        return check_url(url, "GET", egress)
    except ToolFailure as failure:
        return failure.error.kind


def forms(line: str) -> list[str]:
    """A payload as it stands, decoded, and as a host, a path and a query of a URL."""
    return [line, unquote(line), f"http://{line}", f"http://{unquote(line)}/", f"https://{line}/latest/meta-data"]


def payloads() -> list[str]:
    lines = list(load_json("ssrf/patt_ssrf_urls.json.gz"))
    for name in ("seclists_SSRF_hacktricks", "fuzzdb_localhost", "patt_Open-Redirect-payloads"):
        lines += load_lines(f"ssrf/{name}.txt.gz")
    return [form for line in lines for form in forms(line)]


@pytest.mark.promise("net.only-checked-addresses")
async def test_no_payload_reaches_an_address_that_is_not_public() -> None:
    inner = RefusingNetwork()
    resolver = CLibraryResolver(INTERNAL, default=("93.184.216.34",))
    kinds = []
    async with egress_clients() as clients:
        client = clients(resolver, network=inner)
        for url in payloads():
            with pytest.raises(ToolFailure) as caught:
                async with client.open(HttpRequest(url), ANYWHERE, deadline_s=asyncio.get_running_loop().time() + 30):
                    pytest.fail(f"{url} was answered")
            kinds.append(caught.value.error.kind)
    assert len(kinds) > 2_000
    assert set(kinds) <= TYPED
    assert [address for address in inner.dialled if not is_public(address)] == []
    assert kinds.count(ErrorKind.HTTP_DISALLOWED_HOST) > 100


def test_every_forbidden_range_is_refused_as_a_literal() -> None:
    for cidr in load_json("ssrf/antissrf_ranges.json.gz")["recommendedV1"]:
        network = ip_network(cidr)
        for position in (0, network.num_addresses // 2, -1):
            address = network[position]
            host = f"[{address}]" if address.version == 6 else str(address)
            with pytest.raises(ToolFailure) as caught:
                check_url(f"http://{host}/", "GET", ANYWHERE)
            assert caught.value.error.kind is ErrorKind.HTTP_DISALLOWED_HOST


def test_the_allow_list_holds_against_open_redirect_payloads() -> None:
    only = (EgressRule(("www.whitelisteddomain.tld",)),)
    lines = load_lines("ssrf/patt_Open-Redirect-payloads.txt.gz")
    verdicts = [checked(form, only) for line in lines for form in forms(line)]
    hosts = {url.host for url in verdicts if isinstance(url, CheckedUrl)}
    assert hosts <= {"www.whitelisteddomain.tld"}
    assert {kind for kind in verdicts if isinstance(kind, ErrorKind)} <= TYPED


def test_names_become_ascii_by_the_url_standard_or_are_refused() -> None:
    same = 0
    for case in (case for case in load_json("ssrf/wpt_toascii.json.gz") if isinstance(case, dict)):
        verdict = checked(f"http://{case['input']}/", ANYWHERE)
        if isinstance(verdict, CheckedUrl):
            assert case["output"] is not None, case
            assert verdict.host == case["output"].lower().removesuffix("."), case
            same += 1
        else:
            assert verdict in TYPED
    assert same >= 15


def test_no_checked_url_could_be_read_as_another_address() -> None:
    for verdict in (checked(url, ANYWHERE) for url in payloads()):
        if not isinstance(verdict, CheckedUrl):
            continue
        if verdict.is_address:
            assert str(ip_address(verdict.host)) == verdict.host
            assert is_public(verdict.host)
        else:
            assert verdict.host.isascii()
            assert not verdict.host.rpartition(".")[2].isdigit()
