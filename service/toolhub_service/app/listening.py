"""Where the server may listen: without credentials only where nobody else can reach it."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import grpc

from toolhub_service.settings.document import Settings, Tls
from toolhub_service.transport.server import Listening


class ListenRefused(ValueError):
    """The address does not go together with the auth modes or the workers; the message says what to change."""


def listening_of(settings: Settings) -> Listening:
    """Raises OSError for unreadable files.

    Raises ListenRefused when `insecure-local` would be served beyond this machine, or one socket by several workers.
    """
    address = settings.server.listen
    if "insecure-local" in settings.auth.modes and not is_local(address):
        raise ListenRefused(
            f"auth mode insecure-local lets whoever connects act as `local`, and {address} is open to others. "
            "Set auth.modes to [api-key] (TOOLHUB_AUTH_MODES=api-key), or listen on 127.0.0.1 or a unix: socket."
        )
    if settings.server.workers > 1 and address.startswith("unix"):
        raise ListenRefused(
            f"several workers cannot share {address}: each would take the socket away from the others. "
            "Use one worker (server.workers: 1), or listen on a port."
        )
    return Listening(
        address=address,
        credentials=_credentials(settings.server.tls),
        share_port=settings.server.workers > 1,
        max_connection_age_s=settings.server.max_connection_age_s,
        reflection=settings.server.reflection,
    )


def is_local(address: str) -> bool:
    """Whether only this machine can connect: a Unix socket, a loopback literal or `localhost`."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rsplit(":", 1)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _credentials(tls: Tls) -> grpc.ServerCredentials | None:
    if not tls.certificate_file:
        return None
    pair = (Path(tls.key_file).read_bytes(), Path(tls.certificate_file).read_bytes())
    ca = Path(tls.client_ca_file).read_bytes() if tls.client_ca_file else None
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)
