"""Checks who listens on the hub's ports: nobody, a hub or another program; and whether MCP clients can connect."""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.doctor import Finding, State, fail, ok, warn
from toolhub_service.app.doctor.port_holders import have_open, holders_of
from toolhub_service.app.listening import (
    SVID_DOCTOR_S,
    ListenRefused,
    host_and_port,
    open_certificates,
    tls_certificate_of,
)
from toolhub_service.app.start_refusals import reason_and_remedy, start_refusal
from toolhub_service.app.wiring.telemetry import cannot_serve_metrics
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.identity.spiffe import trust_domain_of
from toolhub_service.mcp_server.http.listener import is_installed
from toolhub_service.settings.document import Settings
from toolhub_service.transport.server import cannot_listen

# The first request of a hub waits until the SDK is loaded.
_WAIT_S: Final = 15.0
_PROBE_S: Final = 1.0
"""Timeout for recognising a hub on a port: a hub on this machine answers faster."""
_VERSION, _OLDER = "2026-07-28", "2025-11-25"
_ME: Final = {"name": "toolhub-doctor", "version": "1"}
_BEGIN: Final = {"protocolVersion": _OLDER, "capabilities": {}, "clientInfo": _ME}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": _VERSION,
    "io.modelcontextprotocol/clientInfo": _ME,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_SERVES: Final = "a hub serves there"
_HOLDERS_MAX: Final = 3
_READ: Final = "See what listens there, and the hub's log."


async def mcp_checks(settings: Settings) -> AsyncIterator[Finding]:
    """Check the port of MCP, what answers on it, and the names by which it is to be reached."""
    chosen = settings.server.mcp
    if not chosen.enabled:
        yield ok("mcp port", "server.mcp.enabled is false")
        return
    if not is_installed():
        advice = "toolhub extras install mcp, or set server.mcp.enabled to false."
        yield warn("mcp port", "the MCP SDK is not installed: no MCP client can connect", advice)
        return
    found = await asyncio.to_thread(
        _may_have,
        _Port("mcp port", "server.mcp.listen", chosen.listen),
        lambda host, port: _is_healthy(settings, _url(settings, host, port)),
    )
    yield found
    if found.state is State.OK and found.text.endswith(_SERVES):
        yield await _answers(settings, _url(settings, *host_and_port("server.mcp.listen", chosen.listen)))
    for finding in _names(settings):
        yield finding
    if settings.server.workers > 1:
        text = f"with server.workers {settings.server.workers}, sessions of {_OLDER} and older are not kept"
        advice = (
            "Such clients get no news of changes and cannot ask their user. One worker keeps sessions; so do several "
            f"hubs behind deploy/envoy.yaml. Clients of {_VERSION} have none."
        )
        yield warn("mcp sessions", text, advice)


def _url(settings: Settings, host: str, port: int) -> str:
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http{'s' if settings.has_tls else ''}://{name}:{port}"


def _verify(settings: Settings) -> Any:
    """Verify against this machine's own certificate: the names in it are for other machines."""
    if not settings.has_tls:
        return True
    if file := settings.server.tls.certificate_file:
        context = ssl.create_default_context(cafile=file)
    else:
        context = ssl.create_default_context()
        with suppress(ListenRefused):  # which the finding `auth` reports
            certificates = open_certificates(settings, SVID_DOCTOR_S)
            authorities = certificates.trusted.get(trust_domain_of(certificates.spiffe_id), b"")
            context.load_verify_locations(cadata=authorities.decode())
    context.check_hostname = False
    return context


def _is_healthy(settings: Settings, url: str) -> bool:
    try:
        return (
            httpx.get(f"{url}/healthz", timeout=_WAIT_S, verify=_verify(settings), trust_env=False).status_code == 200
        )
    except (httpx.HTTPError, OSError):
        return False


async def _answers(settings: Settings, url: str) -> Finding:
    """Report whether both versions of the protocol are served there."""
    key = os.environ.get("TOOLHUB_API_KEY", "")
    headers = {"accept": "application/json, text/event-stream"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        async with httpx.AsyncClient(
            headers=headers, timeout=_WAIT_S, verify=_verify(settings), trust_env=False
        ) as client:
            listing = {"mcp-protocol-version": _VERSION, "mcp-method": "tools/list"}
            listed = await client.post(f"{url}/mcp", json=_request("tools/list", {"_meta": _META}), headers=listing)
            if listed.status_code == 401:
                text = f"{url}/mcp answers, and wants a credential: set TOOLHUB_API_KEY to have its tools listed"
                return ok("mcp", text)
            begun = await client.post(f"{url}/mcp", json=_request("initialize", _BEGIN))
            # Ended at once: otherwise each run of the doctor would leave a session until it idles out.
            if session := begun.headers.get("mcp-session-id"):
                await client.delete(f"{url}/mcp", headers={"mcp-session-id": session, "mcp-protocol-version": _OLDER})
    except httpx.HTTPError as failed:
        return warn("mcp", f"{url}/mcp does not answer: {type(failed).__name__}", _READ)
    for version, answer in ((_VERSION, listed), (_OLDER, begun)):
        if not answer.is_success or '"result"' not in answer.text:
            return warn("mcp", f"{url}/mcp answers {version} with status {answer.status_code}", _READ)
    tools = listed.text.count('"inputSchema"')
    return ok("mcp", f"{url}/mcp speaks {_VERSION} and {_OLDER}, and lists {tools} tools")


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _names(settings: Settings) -> Iterator[Finding]:
    """Yield hosts and origins that no header can equal."""
    chosen = settings.server.mcp
    for host in chosen.allowed_hosts:
        if "/" in host or "*" in host or not host.strip():
            text = f"server.mcp.allowed_hosts has {host!r}, which no Host header equals"
            yield warn("mcp hosts", text, "Write a name, with or without :port, such as hub.example:8443.")
    for origin in chosen.allowed_origins:
        parts = urlsplit(origin.rstrip("/"))
        if not parts.scheme or not parts.netloc or parts.path or "*" in origin:
            text = f"server.mcp.allowed_origins has {origin!r}, which no Origin header equals"
            yield warn("mcp origins", text, "Write scheme and host, such as https://app.example.")


def is_hub(address: str) -> bool:
    """Return whether a hub answers on that port in plaintext."""
    with grpc.insecure_channel(address) as channel:
        try:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_PROBE_S)
        except grpc.RpcError:
            return False
    return True


def is_metrics(host: str, port: int) -> bool:
    """Return whether a hub's metrics are served there."""
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read(16) == b"ok\n"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def port_checks(settings: Settings) -> Iterator[Finding]:
    """Check the ports without which a hub does not start."""
    server, metrics = settings.server.listen, settings.metrics.listen
    own = partial(is_this_hub, settings)
    if server.startswith("unix:"):
        yield _socket(settings, server)
    elif server.startswith("unix"):
        yield ok("server port", server)
    else:
        yield _must_have(settings, _Port("server port", "server.listen", server), own, cannot_listen)
    if keys := settings.server.tls.keys_listen:
        yield _must_have(settings, _Port("keys port", "server.tls.keys_listen", keys), own, cannot_listen)
    if metrics:
        port = _Port("metrics port", "metrics.listen", metrics)
        yield _must_have(settings, port, partial(_are_our_metrics, settings), cannot_serve_metrics)
    else:
        yield ok("metrics port", "none is set")


class _Port(NamedTuple):
    name: str
    setting: str
    address: str


def _must_have(
    settings: Settings,
    port: _Port,
    is_ours: Callable[[str, int], bool],
    refused: Callable[[str], OSError],
) -> Finding:
    """Return a failure in the words of the start when the address cannot be bound, and who holds it."""
    try:
        found = _report_bound_port(port, is_ours)
    except OSError:
        reason, remedy = reason_and_remedy(start_refusal(refused(port.address), settings))
        return fail(port.name, f"{reason}{_held_by(host_and_port(port.setting, port.address)[1])}", remedy)
    return found


def _held_by(port: int) -> str:
    holders = holders_of(port)
    if not holders:
        return ""
    shown = ", ".join(f"process {each.pid} (`{on_one_line(each.command)}`)" for each in holders[:_HOLDERS_MAX])
    return f" It is held by {shown}."


def _socket(settings: Settings, address: str) -> Finding:
    """Check the folder of a Unix socket; the start replaces a socket that is left there."""
    folder = Path(address.removeprefix("unix:")).absolute().parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return ok("server port", address)
    reason, remedy = reason_and_remedy(start_refusal(cannot_listen(address), settings))
    return fail("server port", f"{reason} The folder {folder} is missing or cannot be written.", remedy)


def is_this_hub(settings: Settings, host: str, port: int) -> bool:
    """Return whether the hub of this data folder listens there, and not another one.

    It is known by its open audit log, where this user may see what the process has open; else as `is_own`, if a hub has
    ever served from this folder. (A hub shows its open files to root only: PR_SET_DUMPABLE in prctl(2).)
    """
    if settings.stores.postgres_url:
        return is_own(settings, host, port)
    log, holders = Paths(settings).audit, holders_of(port)
    return have_open(holders, [log]) if holders else log.exists() and is_own(settings, host, port)


def _are_our_metrics(settings: Settings, host: str, port: int) -> bool:
    # A supervisor serves the metrics of its workers, which alone have the files open.
    of_a_hub = is_metrics(host, port)
    return of_a_hub and (settings.server.workers > 1 or is_this_hub(settings, host, port))


def is_own(settings: Settings, host: str, port: int) -> bool:
    """Return whether a hub with these settings serves there; with TLS it is recognised by its certificate."""
    if not settings.has_tls:
        return is_hub(settings.server.listen)
    if not settings.server.tls.certificate_file:
        return _has_our_id(settings, tls_certificate_of(host or "127.0.0.1", port, _PROBE_S))
    try:
        pem = Path(settings.server.tls.certificate_file).read_text()
        configured = ssl.PEM_cert_to_DER_cert(pem[: pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)])
    except (OSError, ValueError):
        return False  # the hub refuses to start with it, and says why
    return tls_certificate_of(host or "127.0.0.1", port, _PROBE_S) == configured


def _has_our_id(settings: Settings, certificate: bytes | None) -> bool:
    """Return whether it has the SPIFFE id that the Workload API gives here: the certificate itself changes every
    hour."""
    try:
        id = open_certificates(settings, SVID_DOCTOR_S).spiffe_id
    except ListenRefused:
        return False
    return certificate is not None and id.encode() in certificate


def _may_have(port: _Port, is_ours: Callable[[str, int], bool]) -> Finding:
    """Return a warning when the address cannot be bound: a hub starts without it."""
    try:
        return _report_bound_port(port, is_ours)
    except OSError as taken:
        text = f"{port.address}: {taken.strerror}{_held_by(host_and_port(port.setting, port.address)[1])}"
        return warn(port.name, text, "If that is not your hub, stop what listens there or choose another port.")


def _report_bound_port(port: _Port, is_ours: Callable[[str, int], bool]) -> Finding:
    """Try to bind the address. Raises OSError when it is not free, and not held by this hub either."""
    try:
        host, number = host_and_port(port.setting, port.address)
    except ListenRefused as wrong:
        return fail(port.name, str(wrong), "Correct it.")
    found = socket.getaddrinfo(host or None, number, type=socket.SOCK_STREAM)
    try:
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            # A port in TIME_WAIT does not prevent the hub from binding, either.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
    except OSError as taken:
        if taken.errno == errno.EADDRINUSE and is_ours(host, number):
            return ok(port.name, f"{port.address}: {_SERVES}")
        raise
    return ok(port.name, f"{port.address} is free")
