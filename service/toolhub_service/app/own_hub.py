"""How a client on this machine reaches the hub of given settings: for commands, probes and what `serve` prints."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolhub_service.app.listening import host_and_port
from toolhub_service.settings.document import Settings

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
# Most turns of the two peers in one handshake.
_FLIGHTS_MAX = 8
_WAIT_S = 3.0


def own_address(settings: Settings) -> str:
    """Return where the hub listens, as a client on this machine writes it.

    Raises ListenRefused for an invalid address.
    """
    listen = settings.server.listen
    return listen if listen.startswith("unix") else reachable("server.listen", listen)


def certified_names(settings: Settings) -> tuple[str, ...]:
    """Return host names and addresses in the hub's certificate; empty when there is none, or it is unusable or
    expired."""
    tls = settings.server.tls
    try:
        certificate = _parse_certificate(tls.certificate_file, tls.key_file)
    except (OSError, ValueError):
        return ()
    return tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))


def is_ready(settings: Settings) -> bool | None:
    """Return whether the hub is ready, asked at its metrics port in plaintext; None without a port or an answer.

    Raises ListenRefused.
    """
    if not settings.metrics.listen:
        return None
    host, port = host_and_port("metrics.listen", reachable("metrics.listen", settings.metrics.listen))
    connection = http.client.HTTPConnection(host, port, timeout=_WAIT_S)
    try:
        connection.request("GET", "/readyz")
        # Any other status does not come from a hub.
        return {200: True, 503: False}.get(connection.getresponse().status)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def reachable(setting: str, listen: str) -> str:
    """Return the address with this machine's own in place of a wildcard. Raises ListenRefused."""
    host, port = host_and_port(setting, listen)
    host = _WILDCARDS.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse_certificate(certificate_file: str, key_file: str) -> Mapping[str, Any]:
    """Return the certificate as the standard library parses it. Raises OSError and ValueError.

    The library parses only the certificate of a trusted peer, so both peers of a handshake in memory are here.
    """
    if not certificate_file:
        return {}
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # With an empty password: without one OpenSSL would ask at the terminal.
    serving.load_cert_chain(Path(certificate_file).expanduser(), Path(key_file).expanduser(), password=lambda: "")
    asking.check_hostname = False  # the name is what is to be found out
    asking.load_verify_locations(Path(certificate_file).expanduser())
    # The file may not contain a root.
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_hub, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    peers = asking.wrap_bio(to_client, to_hub), serving.wrap_bio(to_hub, to_client, server_side=True)
    for turn in range(_FLIGHTS_MAX):
        try:
            peers[turn % 2].do_handshake()
        except ssl.SSLWantReadError:
            continue  # the other peer continues
    return peers[0].getpeercert() or {}
