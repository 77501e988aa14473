"""The connection to a hub: its address, TLS, and the causes of failed connections."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click
import grpc

from toolhub_service.cli.connection.hub_options import DEFAULT_ADDRESS, DEFAULT_PORT

__all__ = ["DEFAULT_ADDRESS", "DEFAULT_PORT", "Endpoint", "endpoint", "is_absent", "tls_options", "unreachable_text"]

# Default port by scheme, and whether the scheme implies TLS.
_SCHEMES: Final = {
    "http": (DEFAULT_PORT, False),
    "https": (443, True),
    "grpc": (DEFAULT_PORT, False),
    "grpcs": (DEFAULT_PORT, True),
}
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_ABSENT: Final = "No hub answers at"
_UNRESOLVED: Final = "Cannot resolve host"
_PROBE_TIMEOUT_S: Final = 2.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),  # a watch should notice quickly that the hub is back
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 30_000),  # a dead network must end a watch, which is then reopened
    ("grpc.keepalive_timeout_ms", 10_000),
)
_HOST_AND_PORT: Final = re.compile(r"[^\s]+:0*(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])")

Command = TypeVar("Command", bound=Callable[..., Any])


def tls_options(command: Command, *key_names: str) -> Command:
    """Add --tls, --ca-file, --cert-file and --key-file; `key_names`: other names of --key-file."""
    for option in (
        click.option(
            *key_names,
            "--key-file",
            "key_file",
            envvar="TOOLHUB_KEY_FILE",
            type=click.Path(path_type=Path),
            help="PEM private key of --cert-file; also TOOLHUB_KEY_FILE.",
        ),
        click.option(
            "--cert",
            "--cert-file",
            "cert_file",
            envvar="TOOLHUB_CERT_FILE",
            type=click.Path(path_type=Path),
            help="PEM client certificate for mutual TLS; also TOOLHUB_CERT_FILE.",
        ),
        click.option(
            "--ca-file",
            envvar="TOOLHUB_CA_FILE",
            type=click.Path(path_type=Path),
            help="PEM file of CA certificates; turns TLS on. Also TOOLHUB_CA_FILE.",
        ),
        click.option(
            "--tls/--no-tls",
            default=None,
            help="Use TLS with the system's CAs, as https:// does; or none, as http:// does.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A hub as the options describe it."""

    address: str
    """In gRPC's form: HOST:PORT, unix:PATH or dns:///HOST:PORT."""
    is_encrypted: bool = False
    ca_file: Path | None = None
    """None: the system's CAs."""
    cert_file: Path | None = None
    key_file: Path | None = None
    certified_name: str = ""
    """A name in the hub's certificate that replaces the address for verification; empty: the address."""

    @property
    def host(self) -> str:
        return self.address.removeprefix("dns:///").rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        port = self.address.rpartition(":")[2]
        return int(port) if port.isdecimal() else DEFAULT_PORT

    def open(self) -> grpc.Channel:
        """Return a channel, which connects with the first RPC. Raises click.UsageError for unusable files."""
        if (credentials := self.credentials()) is None:
            return grpc.insecure_channel(self.address, _OPTIONS)
        return grpc.secure_channel(self.address, credentials, _OPTIONS + self.name_option())

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return those of TLS; None: plaintext. Raises click.UsageError for unusable files."""
        if not self.is_encrypted:
            return None
        ca = _read_pem("--ca-file", self.ca_file)
        # gRPC would only report that the handshake failed.
        if ca is not None and _CERTIFICATE not in ca:
            raise click.UsageError(f"--ca-file {self.ca_file}: the file contains no PEM certificate.")
        key, certificate = _read_pem("--key-file", self.key_file), _read_pem("--cert-file", self.cert_file)
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def name_option(self) -> tuple[tuple[str, str], ...]:
        """Return the option of a channel that verifies the certificate by `certified_name`."""
        return (("grpc.ssl_target_name_override", self.certified_name),) if self.certified_name else ()


def endpoint(
    address: str,
    *,
    tls: bool | None = None,
    ca_file: Path | None = None,
    cert_file: Path | None = None,
    key_file: Path | None = None,
) -> Endpoint:
    """Return the endpoint of an address with or without scheme and port. Raises click.UsageError.

    `tls` None: as address and files imply.
    """
    if (cert_file is None) != (key_file is None):
        raise click.UsageError("--cert-file and --key-file go together.")
    has_files = ca_file is not None or cert_file is not None
    if tls is False and has_files:
        raise click.UsageError("--no-tls means plaintext, and a CA or certificate means TLS: leave out one.")
    is_encrypted = bool(tls) or has_files
    scheme, _, rest = address.partition("://")
    port = DEFAULT_PORT
    if rest and scheme.lower() in _SCHEMES:
        port, is_https = _SCHEMES[scheme.lower()]
        if tls and not is_https:
            raise click.UsageError(f"{address} means plaintext and --tls means TLS. Use https:// or leave out --tls.")
        if tls is False and is_https:
            raise click.UsageError(f"{address} means TLS and --no-tls means plaintext. Leave out one of them.")
        address, is_encrypted = urlsplit(address).netloc, is_https
    # An IPv6 address without brackets, which gRPC would parse as host and port.
    if address.count(":") > 1 and not address.startswith(("[", "unix", "dns:", "ipv4:", "ipv6:")):
        address = f"[{address}]"
    if ":" not in address or address.endswith("]"):
        address = f"{address}:{port}"
    if not address.startswith("unix") and not _HOST_AND_PORT.fullmatch(address):
        raise click.UsageError(f"{address!r} is no address: write HOST, HOST:PORT, https://HOST:PORT or unix:PATH.")
    return Endpoint(address, is_encrypted, ca_file, cert_file, key_file)


def unreachable_text(hub: Endpoint, details: str) -> str:
    """Return the meaning of gRPC's `details` of UNAVAILABLE, and what to do."""
    from toolhub_client.problems import Problem, diagnose  # needed by commands that fail only

    address, found = hub.address, diagnose(details)
    match found.problem:
        case Problem.UNRESOLVED:
            return f"{_UNRESOLVED} {hub.host}. Give the hub's address with --address HOST:PORT."
        case Problem.NO_HUB:
            return (
                f"The server at {address} is not a hub: it speaks HTTP/1. Use the hub's gRPC port (default 50051), not "
                "the port of its metrics."
            )
        case Problem.PLAINTEXT:
            return (
                f"The server at {address} does not use TLS. Leave out https://, --tls, --ca-file and TOOLHUB_CA_FILE; "
                "a context is changed with `toolhub context add NAME --replace --no-tls`."
            )
        case Problem.OUT_OF_DATE:
            return (
                f"The {found.words} at {address}: who runs the hub must renew it. Or the clock of this machine is "
                f"wrong: it says {time.strftime('%Y-%m-%d %H:%M')}."
            )
        case Problem.NOT_TRUSTED:
            why = f" ({found.words})" if found.words else ""
            return (
                f"The certificate of {address} is not trusted{why}. Give the CA that signed it with --ca-file or "
                "TOOLHUB_CA_FILE."
            )
        case Problem.OTHER_NAME:
            return (
                f"The certificate of {address} is for another host name. Use a host name that the certificate contains."
            )
        case Problem.HANDSHAKE:
            return f"The TLS handshake with {address} failed: {found.words}"
    # Tested by a separate handshake, because gRPC reports the same for a hub that requires TLS and for no hub.
    if found.problem is not Problem.REFUSED and not address.startswith("unix") and _speaks_tls(hub):
        return _closed_text(hub)
    return f"{_ABSENT} {address}. Start one with `toolhub serve`, or give its address with --address HOST:PORT."


def _closed_text(hub: Endpoint) -> str:
    """Return the text for a server that speaks TLS and closes the connection."""
    if not hub.is_encrypted:
        return (
            f"The server at {hub.address} uses TLS. Add --ca-file FILE with its CA, or --tls if its CA is a public one."
        )
    if hub.cert_file is None:
        return (
            f"{hub.address} closes TLS connections. It may require a client certificate: --cert-file and --key-file. "
            "Holders of an API key or token may have a port of their own (server.tls.keys_listen of the hub)."
        )
    return (
        f"{hub.address} closes TLS connections with the client certificate {hub.cert_file}. It may have expired, or be "
        "signed by a CA that the hub does not trust (server.tls.client_ca_file)."
    )


def is_absent(text: str) -> bool:
    """Return whether a text of `unreachable_text` says that no server is there at all."""
    return text.startswith((_ABSENT, _UNRESOLVED))


def _speaks_tls(hub: Endpoint) -> bool:
    from toolhub_service.app.listening import tls_certificate_of  # slow to import, and needed only here

    return tls_certificate_of(hub.host, hub.port, _PROBE_TIMEOUT_S) is not None


def _read_pem(option: str, file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as missing:
        raise click.UsageError(f"{option} {file}: {missing.strerror}") from missing
