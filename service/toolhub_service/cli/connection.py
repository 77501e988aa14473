"""How client commands reach a hub: address and credential from options or the environment, errors as advice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
from google.rpc import error_details_pb2

from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.cli.output import legible
from toolhub_service.cli.status_details import unpacked

EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3

_REFUSALS = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""The hub was asked and said no; every other status means that it could not be asked."""

DEFAULT_ADDRESS = "127.0.0.1:50051"
ANSWER_TIMEOUT_S = 60.0

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """An open channel and the metadata that every call carries."""

    address: str
    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float

    @property
    def tools(self) -> ToolServiceStub:
        return ToolServiceStub(self.channel)

    @property
    def registry(self) -> RegistryServiceStub:
        return RegistryServiceStub(self.channel)

    @property
    def audit(self) -> AuditServiceStub:
        return AuditServiceStub(self.channel)


def connection_options(command: Command) -> Command:
    """--address, --api-key, --ca-file, each with its environment variable, and --timeout."""
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=ANSWER_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for the answer.",
    )
    return address_options(timeout(command))


def address_options(command: Command) -> Command:
    """As `connection_options`, for a command whose --timeout means something else."""
    for option in (
        click.option("--ca-file", envvar="TOOLHUB_CA_FILE", type=click.Path(path_type=Path), help="PEM CAs: use TLS."),
        click.option("--api-key", envvar="TOOLHUB_API_KEY", help="Credential; better kept in TOOLHUB_API_KEY."),
        click.option(
            "--address",
            envvar="TOOLHUB_ADDRESS",
            default=DEFAULT_ADDRESS,
            show_default=True,
            help="Where the hub listens; also TOOLHUB_ADDRESS.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def connected(address: str, api_key: str | None, ca_file: Path | None, timeout_s: float) -> Iterator[Connection]:
    """A connection whose RPC errors become one message and exit code 1 (the hub said no) or 3 (it was not asked)."""
    metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
    channel = _channel(address, ca_file)
    try:
        yield Connection(address, channel, metadata, timeout_s)
    except grpc.RpcError as error:
        raise _told(address, error) from error
    finally:
        channel.close()


def connected_by(options: Mapping[str, Any]) -> AbstractContextManager[Connection]:
    """The connection that these options ask for; `options` may hold a command's other options too."""
    timeout_s = options.get("timeout_s", ANSWER_TIMEOUT_S)
    return connected(options["address"], options["api_key"], options["ca_file"], timeout_s)


class HubUnreachable(click.ClickException):
    """The hub could not be asked."""

    exit_code = EXIT_UNREACHABLE


class HubRefused(click.ClickException):
    """The hub was asked and said no."""

    exit_code = EXIT_REFUSED


def _told(address: str, error: grpc.RpcError) -> click.ClickException:
    """What a failed RPC means and what to do."""
    code, details, reason = status_of(error)
    if code is grpc.StatusCode.UNAVAILABLE and not reason:
        text = _unanswered(address, details)
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED and not reason:
        text = f"{address} did not answer in time; allow more with --timeout."
    elif code is grpc.StatusCode.UNAUTHENTICATED:
        text = f"{details} Give a key with --api-key or TOOLHUB_API_KEY; `toolhub keys create` makes one."
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED and not reason:
        text = (
            "the hub takes no request that large. `toolhub artifacts put FILE` keeps a large text, and "
            f'{{"$artifact": "ID"}} stands for it in the arguments. ({details})'
        )
    else:
        text = f"{details} [{reason or code.name}]" if details else code.name
    kind = HubRefused if code in _REFUSALS else HubUnreachable
    return kind(legible(text))


def _unanswered(address: str, details: str) -> str:
    """What gRPC's own words (`details`) mean to somebody who wants to reach a hub."""
    if "address lookup failed" in details or "DNS resolution failed" in details:
        return f"no host has the name in {address}. Name the hub with --address host:port."
    if "http1.x" in details:
        return f"what answers at {address} is no hub, but speaks HTTP/1. Is it the port of the metrics?"
    if "andshake failed" in details:
        return (
            f"TLS with {address} fails: the hub's certificate is not from --ca-file or not for this name, or the hub "
            "speaks no TLS, and then leave --ca-file out."
        )
    return f"no hub answers at {address}. Start one with `toolhub serve`, or name another with --address."


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, str]:
    """(code, message, ErrorInfo reason or empty) of a failed RPC."""
    call: Any = error  # what a stub raises is an RpcError and a Call at once, which the stubs' types cannot say
    info = error_details_pb2.ErrorInfo()
    return call.code(), call.details(), str(info.reason) if unpacked(error, info) else ""


def _channel(address: str, ca_file: Path | None) -> grpc.Channel:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # NONE would let TLS speak in its own words
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 200),  # whoever watches wants to see a hub that was started again
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.keepalive_time_ms", 30_000),  # a network that has gone silent ends a watch, which is then begun again
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if ca_file is None:
        return grpc.insecure_channel(address, options)
    try:
        certificates = ca_file.read_bytes()
        if _CERTIFICATE not in certificates:
            raise click.UsageError(f"--ca-file {ca_file}: it holds no PEM certificate")
    except OSError as missing:
        raise click.UsageError(f"--ca-file {ca_file}: {missing.strerror}") from missing
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificates), options)
