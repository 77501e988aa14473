"""A real Envoy that ends its clients' mTLS, calls the hub by mTLS of its own, and forwards who its clients are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.e2e.envoy_proxy import started
from tests.fakes.tls import Signed
from tests.free_port import free_port
from tests.hub import CALL_TIMEOUT_S, channel_to, request
from tests.rpc.statuses import failed
from tests.rpc.test_spiffe import PARTNER, WORKLOAD, SpiffeHarness, spiffe_harness, svid
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

PROXY = "spiffe://example.org/envoy"
HEADER = "x-forwarded-client-cert"
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def listener(folder: Path, port: int, forward: str, details: Mapping[str, bool]) -> dict[str, Any]:
    """Takes the certificates of clients that the bundle vouches for."""
    pair = {
        "certificate_chain": {"filename": f"{folder}/proxy.pem"},
        "private_key": {"filename": f"{folder}/proxy.key"},
    }
    trusted = {"trusted_ca": {"filename": f"{folder}/own.pem"}}
    common = {"tls_certificates": [pair], "validation_context": trusted, "alpn_protocols": ["h2"]}
    manager = {
        "@type": MANAGER,
        "stat_prefix": forward.lower(),
        "codec_type": "HTTP2",
        "forward_client_cert_details": forward,
        "set_current_client_cert_details": dict(details),
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "hub"}}]}
            ]
        },
    }
    tls = {"@type": f"{TLS}.DownstreamTlsContext", "require_client_certificate": True, "common_tls_context": common}
    return {
        "name": forward,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {
                "transport_socket": {"name": "tls", "typed_config": tls},
                "filters": [{"name": "http", "typed_config": manager}],
            }
        ],
    }


def cluster(folder: Path, port: int) -> dict[str, Any]:
    """The hub, which Envoy shows its own SVID."""
    pair = {
        "certificate_chain": {"filename": f"{folder}/proxy.pem"},
        "private_key": {"filename": f"{folder}/proxy.key"},
    }
    trusted = {"trusted_ca": {"filename": f"{folder}/server-ca.pem"}}
    common = {"tls_certificates": [pair], "validation_context": trusted, "alpn_protocols": ["h2"]}
    tls = {"@type": f"{TLS}.UpstreamTlsContext", "sni": "localhost", "common_tls_context": common}
    place = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "name": "hub",
        "load_assignment": {"cluster_name": "hub", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": place}}]}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": HTTP,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "transport_socket": {"name": "tls", "typed_config": tls},
    }


@asynccontextmanager
async def envoy(given: SpiffeHarness, folder: Path) -> AsyncIterator[tuple[int, int]]:
    """Ports: one that sets the header anew, with the URI alone; one that appends all it knows to what was sent."""
    proxy = given.own.sign("envoy", uris=(PROXY,))
    (folder / "proxy.pem").write_bytes(proxy.certificate)
    (folder / "proxy.key").write_bytes(proxy.key)
    (folder / "server-ca.pem").write_bytes(given.server.pem)
    clean, appending = free_port(), free_port()
    everything = {"subject": True, "cert": True, "chain": True, "dns": True, "uri": True}
    document = {
        "static_resources": {
            "listeners": [
                listener(folder, clean, "SANITIZE_SET", {"uri": True}),
                listener(folder, appending, "APPEND_FORWARD", everything),
            ],
            "clusters": [cluster(folder, given.running.hub.server.port)],
        }
    }
    async with started(document, folder):
        yield clean, appending


@pytest.mark.promise("identity.xfcc")
async def test_the_client_of_envoy_is_the_principal_whatever_its_own_headers(tmp_path: Path) -> None:
    async with (
        spiffe_harness(tmp_path, ("xfcc", "spiffe"), xfcc={"proxies": [PROXY]}) as given,
        envoy(given, tmp_path) as ports,
    ):
        client, made_up = svid(given.own, WORKLOAD), [(HEADER, f"Hash=aa;URI={PARTNER}")]

        async def whoami(port: int, shown: Signed, sent: list[tuple[str, str]]) -> str:
            credentials = grpc.ssl_channel_credentials(given.own.pem, shown.key, shown.certificate)
            async with channel_to(f"localhost:{port}", credentials) as channel:
                stub: Any = ToolServiceStub(channel)
                assert (
                    await stub.Invoke(request("core/util.time.now"), timeout=CALL_TIMEOUT_S, metadata=sent)
                ).result.ok
                asked = pb.GetServerInfoRequest()
                return str((await stub.GetServerInfo(asked, timeout=CALL_TIMEOUT_S, metadata=sent)).principal)

        for port in ports:
            for sent in ([], made_up):
                assert await whoami(port, client, sent) == WORKLOAD
        assert await given.whoami(client, made_up) == WORKLOAD, "past Envoy it counts for nothing"
        assert (await failed(whoami(ports[0], given.own.sign("x"), []))).code is grpc.StatusCode.UNAUTHENTICATED
        called = [each.event for each in await given.running.events() if each.event.tool]
        assert {event.principal for event in called} == {WORKLOAD}
