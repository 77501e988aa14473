"""Callers behind a proxy that forwards their client's certificate, and forged headers."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.fakes.tls import Authority, Signed
from tests.hub import CALL_TIMEOUT_S
from tests.rpc.statuses import failed
from tests.rpc.test_spiffe import HEADERS, META, PARTNER, WORKLOAD, SpiffeHarness, spiffe_harness, svid
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys

ENVOY = "spiffe://example.org/envoy"
HEADER = "x-forwarded-client-cert"
FORWARDED = [(HEADER, f"By={ENVOY};Hash=aa;URI={WORKLOAD}")]


async def whoami(given: SpiffeHarness, client: Signed, *elements: str) -> str:
    return await given.whoami(client, [(HEADER, element) for element in elements])


@pytest.mark.promise("identity.xfcc")
async def test_a_listed_proxy_names_its_client_by_its_last_word_alone(tmp_path: Path) -> None:
    async with spiffe_harness(tmp_path, ("xfcc", "spiffe", "api-key"), xfcc={"proxies": [ENVOY]}) as given:
        proxy = svid(given.own, ENVOY)
        assert await whoami(given, proxy, f"Hash=aa;URI={WORKLOAD}") == WORKLOAD
        assert await whoami(given, proxy, f"URI={WORKLOAD},Hash=bb;URI={PARTNER}") == PARTNER, (
            "elements before are others'"
        )
        assert await given.whoami(svid(given.own, WORKLOAD)) == WORKLOAD, "who connects directly"
        refused = {
            "have 0 URIs": (),
            "has 0 URIs": ("Hash=aa;DNS=localhost",),
            "has 2 URIs": (f"URI={WORKLOAD};URI={PARTNER}",),
            "cannot be read": (f'URI={WORKLOAD};Subject="',),
            "several": (f"URI={WORKLOAD}", f"URI={PARTNER}"),
            "no SPIFFE id of a trust domain": ("URI=spiffe://elsewhere.example/agent",),
        }
        refused["no credential"] = refused.pop("have 0 URIs")  # a proxy never speaks for itself
        for why, elements in refused.items():
            answer = await failed(whoami(given, proxy, *elements))
            assert answer.code is grpc.StatusCode.UNAUTHENTICATED
            assert why in answer.message, why
        file = Paths(given.running.hub.settings).key_file()
        key = ("authorization", f"Bearer {file.create('key-holder')}")
        reload_keys(given.running.hub, file)
        assert await given.whoami(proxy, [*FORWARDED, key]) == "key-holder", "what a request carries decides"


@pytest.mark.promise("identity.xfcc")
async def test_an_untrusted_proxys_header_is_ignored_and_audited_once_a_minute(tmp_path: Path) -> None:
    async with spiffe_harness(tmp_path, ("xfcc", "spiffe"), xfcc={"proxies": [ENVOY]}) as given:
        liar = svid(given.partner, PARTNER)
        foreign = svid(given.partner, ENVOY)
        for _ in range(50):
            assert await given.whoami(liar, FORWARDED) == PARTNER
        answer = await failed(given.whoami(foreign, FORWARDED))
        assert "does not vouch" in answer.message, "an id of ours that another trust domain has signed"
        given.running.hub.access.flush()
        events = [each.event for each in await given.running.events() if each.event.type.value == "AUTH_FAILED"]
        (ignored,) = [event for event in events if event.attributes["reason"] == "CREDENTIAL_IGNORED"]
        assert ignored.attributes["count"] == "51"
        assert ignored.attributes["peer"]


async def test_a_proxy_may_be_known_by_a_name_of_the_client_cas_or_by_its_digest(tmp_path: Path) -> None:
    clients = Authority()
    (tmp_path / "clients.pem").write_bytes(clients.pem)
    pinned = clients.sign("pinned", dns=())
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pinned.certificate.decode())).hexdigest()
    xfcc: Any = {"proxies": ["dns:envoy.internal", f"sha256:{digest.upper()}"]}
    async with spiffe_harness(tmp_path, ("xfcc",), client_ca_file=str(tmp_path / "clients.pem"), xfcc=xfcc) as given:
        for proxy in (clients.sign("envoy", dns=("envoy.internal",)), pinned):
            assert await given.whoami(proxy, FORWARDED) == WORKLOAD
        for other in (given.own.sign("envoy", dns=("envoy.internal",)), clients.sign("x", dns=("other.internal",))):
            assert (await failed(given.whoami(other, FORWARDED))).code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.promise("identity.xfcc")
async def test_over_mcp_a_listed_proxy_names_its_client_and_nobody_else_does(tmp_path: Path) -> None:
    modes = ("xfcc", "spiffe", "api-key")
    async with spiffe_harness(tmp_path, modes, xfcc={"proxies": [ENVOY]}) as given:
        file = Paths(given.running.hub.settings).key_file()
        key = ("authorization", f"Bearer {file.create('key-holder')}")
        reload_keys(given.running.hub, file)
        url = f"https://localhost:{given.running.hub.mcp.listener.port}/mcp"
        asked = {"name": "core__fs_listDir", "arguments": {"path": "."}, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
        common = {**HEADERS, "mcp-method": "tools/call", "mcp-name": "core__fs_listDir"}

        async def called(client: Signed | None, *sent: tuple[str, str]) -> str:
            """The principal of the call in the audit log; empty where the request is refused."""
            context = ssl.create_default_context(cadata=given.server.pem.decode())
            if client is not None:
                (tmp_path / "shown.pem").write_bytes(client.key + client.certificate)
                context.load_cert_chain(tmp_path / "shown.pem")
            async with httpx.AsyncClient(verify=context, timeout=CALL_TIMEOUT_S) as http:
                answer = await http.post(url, json=body, headers=[*common.items(), *sent])
            if answer.status_code == 401:
                return ""
            assert answer.status_code == 200, answer.text
            calls = [each.event for each in await given.running.events() if each.event.tool]
            return calls[-1].principal

        proxy, liar = svid(given.own, ENVOY), svid(given.partner, PARTNER)
        assert await called(proxy, *FORWARDED) == WORKLOAD
        assert await called(proxy, ("X-Forwarded-Client-Cert", f"URI={WORKLOAD},URI={PARTNER}")) == PARTNER
        assert await called(proxy, *FORWARDED, key) == "key-holder"
        assert await called(liar, *FORWARDED) == PARTNER, "the header of anybody else means nothing"
        assert await called(None, *FORWARDED, key) == "key-holder"
        assert await called(None, *FORWARDED) == ""
        assert await called(proxy) == "", "a proxy never speaks for itself"
        assert await called(proxy, (HEADER, f"URI={WORKLOAD}"), (HEADER, f"URI={PARTNER}")) == "", "sent twice"
        assert await called(proxy, (HEADER, "URI=spiffe://elsewhere.example/agent")) == ""
        assert await called(svid(given.partner, ENVOY), *FORWARDED) == "", "our id, signed by another trust domain"
        given.running.hub.access.flush()
        events = [each.event for each in await given.running.events() if each.event.type.value == "AUTH_FAILED"]
        assert "CREDENTIAL_IGNORED" in {event.attributes["reason"] for event in events}
