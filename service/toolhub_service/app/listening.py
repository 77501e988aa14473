"""Where the server may listen: without credentials only where no other machine can reach it."""

from __future__ import annotations

import ipaddress
import resource
import socket
import ssl
from urllib.parse import urlsplit

from toolhub_service.app.certificates import CertificateInvalid, LiveCertificates
from toolhub_service.identity.workload_api import AgentUnavailable, AnswerUnusable, fetch
from toolhub_service.settings.document import Settings
from toolhub_service.transport.server import Listening

_PORT_MAX = 65_535
# A certificate is valid until it expires, and only a new connection presents a new one. SPIRE renews one-hour
# certificates at half their life: a client that reconnects every ten minutes never calls with an expired one.
_SVID_CONNECTION_S = 600.0


SVID_WAIT_S = 30.0
"""How long a start waits for the SPIFFE agent: both may just have been started, and entries take seconds."""

SVID_DOCTOR_S = 3.0
"""The same for commands that only check."""


class ListenRefused(ValueError):
    """Address, certificate, auth modes and workers do not fit together; the message says what to change."""


def open_certificates(settings: Settings, wait_s: float = SVID_WAIT_S) -> LiveCertificates:
    """Return the certificates. `wait_s`: how long to wait for an agent that has no SVID yet.

    Raises ListenRefused for unusable files, and when no SVID can be had.
    """
    endpoint = settings.auth.spiffe.workload_api
    try:
        return LiveCertificates(settings, fetch(endpoint, wait_s) if endpoint else None)
    except CertificateInvalid as invalid:
        raise ListenRefused(str(invalid)) from invalid
    except (AgentUnavailable, AnswerUnusable, ValueError) as none:
        raise ListenRefused(
            f"auth.spiffe.workload_api: {endpoint} gives no SVID: {none}. Start the agent, and register this workload "
            "with it (`spire-server entry create`); or set server.tls and bundle_file."
        ) from none


def listening_of(settings: Settings, certificates: LiveCertificates | None = None) -> Listening:
    """Return where to listen. Raises ListenRefused for an invalid address or certificate.

    Also when `insecure-local` or keys in plaintext would be served beyond this machine, or one socket by several
    workers.
    """
    address = settings.server.listen
    if not address.startswith("unix"):
        host_and_port("server.listen", address)
    if "insecure-local" in settings.auth.modes and not is_local(address):
        raise ListenRefused(
            f"auth mode insecure-local lets whoever connects act as `local`, and {address} is open to others. "
            "Set auth.modes to [api-key] (TOOLHUB_AUTH_MODES=api-key), or listen on 127.0.0.1 or a unix: socket."
        )
    is_plain = not settings.has_tls and not settings.server.allow_plaintext
    if is_plain and not is_local(address):  # the remaining modes need credentials
        raise ListenRefused(
            f"credentials would cross the network in the clear: {address} is open to others and there is no "
            "TLS. Set server.tls.certificate_file and server.tls.key_file, or listen on 127.0.0.1 or a unix: socket; "
            "where a mesh or a proxy encrypts, set server.allow_plaintext (TOOLHUB_SERVER_ALLOW_PLAINTEXT=true)."
        )
    # SO_REUSEPORT shares ports; two processes cannot bind one path.
    if settings.server.workers > 1 and address.startswith("unix"):
        raise ListenRefused(
            f"several workers cannot share {address}: each would take the socket away from the others. "
            "Use one worker (server.workers: 1), or listen on a port."
        )
    if _is_by_certificate(settings):
        _check_certificates(settings)
    if settings.server.tls.keys_listen:
        _check_keys(settings)
    if settings.server.mcp.enabled:
        check_mcp(settings)
    certificates = certificates or open_certificates(settings)
    return Listening(
        address=address,
        credentials=certificates.grpc_credentials(),
        keys_address=settings.server.tls.keys_listen,
        keys_credentials=certificates.grpc_credentials(asks=False),
        share_port=settings.server.workers > 1,
        max_connection_age_s=connection_age_s(settings),
        max_call_s=settings.budget.max_timeout_s,
        max_connection_idle_s=settings.server.max_connection_idle_s,
        max_connections=_connections_of_a_port(settings),
        reflection=settings.server.reflection,
    )


def _connections_of_a_port(settings: Settings) -> int:
    wanted = settings.server.max_connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft - soft // 8 - 64)  # an eighth of the open files is reserved for the hub itself
    if settings.server.tls.keys_listen:
        wanted //= 2  # gRPC counts those of each port separately
    return max(1, wanted)


def _is_by_certificate(settings: Settings) -> bool:
    return not {"spiffe", "xfcc"}.isdisjoint(settings.auth.modes)


def connection_age_s(settings: Settings) -> float:
    """Return the age after which gRPC clients have to reconnect; 0: never."""
    return settings.server.max_connection_age_s or (_SVID_CONNECTION_S if _is_by_certificate(settings) else 0.0)


def _check_certificates(settings: Settings) -> None:
    if not settings.has_tls:
        raise ListenRefused(
            "auth.modes has spiffe or xfcc, which go by certificates, and there is no TLS: set "
            "server.tls.certificate_file and server.tls.key_file, or auth.spiffe.workload_api."
        )
    if not settings.asks_clients:
        raise ListenRefused(
            "auth.modes has xfcc, and no CA vouches for the proxies: set server.tls.client_ca_file, or "
            "auth.spiffe.trust_domains for proxies that are known by their SPIFFE id."
        )


def _check_keys(settings: Settings) -> None:
    address = settings.server.tls.keys_listen
    host_and_port("server.tls.keys_listen", address)
    if not settings.has_tls or not settings.asks_clients:
        raise ListenRefused(
            f"server.tls.keys_listen {address} is for clients without a certificate, and server.listen asks for none: "
            "leave it out."
        )
    if {"api-key", "jwt"}.isdisjoint(settings.auth.modes):
        raise ListenRefused(
            f"nobody could call at server.tls.keys_listen {address}: add api-key or jwt to auth.modes, or leave it out."
        )
    if "insecure-local" in settings.auth.modes and not is_local(address):
        raise ListenRefused(
            "auth mode insecure-local lets whoever connects act as `local`, and server.tls.keys_listen "
            f"{address} is open to others. Take it out of auth.modes."
        )


def check_mcp(settings: Settings) -> tuple[str, int]:
    """Return host and port of the MCP endpoint. Raises ListenRefused like `listening_of`."""
    address = settings.server.mcp.listen
    host, port = host_and_port("server.mcp.listen", address)
    _check_public_url(settings.server.mcp.public_url)
    if not is_local(address):
        if "insecure-local" in settings.auth.modes:
            raise ListenRefused(
                f"auth mode insecure-local lets whoever connects act as `local`, and server.mcp.listen {address} is "
                "open to others. Set auth.modes to [api-key] (TOOLHUB_AUTH_MODES=api-key), or listen on 127.0.0.1."
            )
        if not settings.has_tls and not settings.server.allow_plaintext:
            raise ListenRefused(
                f"credentials would cross the network in the clear: server.mcp.listen {address} is open to others "
                "and there is no TLS. Set server.tls.certificate_file and server.tls.key_file, or listen on 127.0.0.1; "
                "where a mesh or a proxy encrypts, set server.allow_plaintext "
                "(TOOLHUB_SERVER_ALLOW_PLAINTEXT=true)."
            )
    return host, port


def _check_public_url(url: str) -> None:
    parts = urlsplit(url)
    is_web = parts.scheme == "https" or (parts.scheme == "http" and is_local(f"{parts.hostname}:0"))
    if url and (not is_web or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc):
        raise ListenRefused(
            f"server.mcp.public_url is {url!r}: write the URL of the endpoint, such as https://hub.example.com/mcp "
            "without query and fragment; http only for this machine."
        )


def is_local(address: str) -> bool:
    """Return whether only this machine can connect: a Unix socket, a loopback literal or `localhost`."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rsplit(":", 1)[0].strip("[]")
    # By name, without DNS: its answer must not decide whether callers need a credential.
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_addresses(settings: Settings) -> None:
    """Raise ListenRefused for an invalid address in the settings. Opens nothing, and reads no file."""
    server = settings.server
    if not server.listen.startswith("unix"):
        host_and_port("server.listen", server.listen)
    if server.tls.keys_listen:
        host_and_port("server.tls.keys_listen", server.tls.keys_listen)
    if server.mcp.enabled:
        host_and_port("server.mcp.listen", server.mcp.listen)
    if settings.metrics.listen:
        host_and_port("metrics.listen", settings.metrics.listen)


def host_and_port(setting: str, address: str) -> tuple[str, int]:
    """Return the parts of `host:port`, an IPv6 host without brackets. Raises ListenRefused, naming the setting."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > _PORT_MAX:
        wanted = "host:port, such as 127.0.0.1:50051" + (", or unix:/path" if setting == "server.listen" else "")
        wanted += ", or server.mcp.enabled: false to serve no MCP" if setting == "server.mcp.listen" else ""
        raise ListenRefused(f"{setting} is {address!r}, which is no address: write {wanted}.")
    return host.strip("[]"), int(port)


def tls_certificate_of(host: str, port: int, timeout_s: float) -> bytes | None:
    """Return the certificate (DER) of the TLS listener there, trusted or not; None when there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent: only the certificate is read
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            return encrypted.getpeercert(binary_form=True)
    except (OSError, ValueError):  # ValueError: a name that TLS cannot send
        return None
