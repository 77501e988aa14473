"""How client commands reach a hub: address and credential from options or the environment, errors as advice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
from google.rpc import error_details_pb2, status_pb2

from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3

DEFAULT_ADDRESS = "127.0.0.1:50051"

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
    def audit(self) -> AuditServiceStub:
        return AuditServiceStub(self.channel)


def connection_options(command: Command) -> Command:
    """--address, --api-key, --ca-file and --timeout, each with its environment variable."""
    for option in (
        click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait for the answer."),
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
    """A connection whose RPC errors become one message and exit code 3."""
    metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
    channel = _channel(address, ca_file)
    try:
        yield Connection(address, channel, metadata, timeout_s)
    except grpc.RpcError as error:
        raise HubError(address, error) from error
    finally:
        channel.close()


class HubError(click.ClickException):
    """The RPC itself failed: say why, and what to do."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, address: str, error: grpc.RpcError) -> None:
        code, details, reason = status_of(error)
        if code is grpc.StatusCode.UNAVAILABLE and not reason:
            text = f"no hub answers at {address}. Start one with `toolhub serve`, or name another with --address."
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED and not reason:
            text = f"{address} did not answer in time; allow more with --timeout."
        else:
            text = f"{reason or code.name}: {details}"
        super().__init__(text)


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, str]:
    """(code, message, ErrorInfo reason or empty) of a failed RPC."""
    call: Any = error  # what a stub raises is an RpcError and a Call at once, which the stubs' types cannot say
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return call.code(), call.details(), str(info.reason)
    return call.code(), call.details(), ""


def _channel(address: str, ca_file: Path | None) -> grpc.Channel:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its connection noise is told in our own words
    options = [("grpc.max_receive_message_length", -1)]
    if ca_file is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca_file.read_bytes()), options)
