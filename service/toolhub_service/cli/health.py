"""`toolhub health`: does the hub serve? Container probes run it every few seconds and want a quick start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import grpc
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.connection.channel import is_absent
from toolhub_service.cli.connection.client import (
    Connection,
    HubUnreachable,
    connect,
    connect_by_options,
    connection_options,
    status_of,
)
from toolhub_service.cli.connection.own_endpoint import own_endpoint
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    note,
    print_json,
    print_line,
    print_pairs,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.settings.document import Settings

_ANSWER_MAX_S = 5.0


@click.command()
@click.option("--service", default="", help="Full name of one service; default: the hub as a whole.")
@click.option("--verbose", is_flag=True, help="Also show version, contract, limits and features, and who you are.")
@click.option(
    "--self",
    "of_configuration",
    is_flag=True,
    help="Ask the hub of this machine's configuration: its address, its certificate, and with mutual TLS /readyz.",
)
@text_option
@settings_options
@connection_options
def health(
    service: str,
    verbose: bool,
    of_configuration: bool,
    as_json: bool,
    config_file: Path | None,
    data_dir: Path | None,
    **options: Any,
) -> None:
    """Exit 0 when the hub is serving, 1 when it answers that it is not, 3 when it cannot be reached.

    It needs no credential. With --self it needs no other option, with or without TLS: for the HEALTHCHECK
    of a container and for systemd.

    \b
    Examples:
      toolhub health
      toolhub health --self --config toolhub.yaml
      toolhub health --service toolhub.v1.ToolService
      toolhub health --verbose
    """
    # Probes have their own timeouts, and a later answer is useless.
    timeout_s = min(options["timeout_s"], _ANSWER_MAX_S)
    info = None
    if of_configuration:
        settings = read_settings(config_file, data_dir)
        if options["context_name"]:  # the context is another hub's, and only that hub gets its credential
            options |= dict.fromkeys(("api_key", "ca_file", "cert_file", "key_file"))
        try:
            with connect(own_endpoint(settings, options), options["api_key"], timeout_s) as connection:
                name = _check_service(connection, service)
                info = server_info(connection) if verbose else None
        except (HubUnreachable, click.UsageError) as failed:
            refused = _with_start(failed, config_file, data_dir)
            if service or verbose or not settings.has_tls:
                raise refused from None
            # A hub keeps its certificate while the current files are unusable.
            name = _ready(settings, refused)
    else:
        with connect_by_options({**options, "timeout_s": timeout_s}) as connection:
            name = _check_service(connection, service)
            info = server_info(connection) if verbose else None
    if wants_json(as_json):
        print_json({"status": name} | ({} if info is None else MessageToDict(info)))
    else:
        print_line(name)
        if info is not None:
            _show_server(info)
    if name != "SERVING":
        sys.exit(EXIT_REFUSED)


def _check_service(connection: Connection, service: str) -> str:
    stub = health_pb2_grpc.HealthStub(connection.channel)
    try:
        answer = connection.call(stub.Check, health_pb2.HealthCheckRequest(service=service))
    except grpc.RpcError as error:
        if status_of(error)[0] is grpc.StatusCode.NOT_FOUND:
            raise click.ClickException(
                f"The hub has no service {service}. An example: toolhub.v1.ToolService"
            ) from error
        raise
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _with_start(failed: click.ClickException, config_file: Path | None, data_dir: Path | None) -> click.ClickException:
    """Add how to start the hub when none is there; only for the configured address."""
    nobody, is_so, _ = failed.message.partition(". Start one")
    if not is_so:
        return failed
    options = f" --config {config_file}" * (config_file is not None) + f" --data-dir {data_dir}" * (
        data_dir is not None
    )
    return HubUnreachable(f"{nobody}: no hub runs with this configuration. Start it with `toolhub serve{options}`.")


def _ready(settings: Settings, failed: click.ClickException) -> str:
    """Return what the metrics port reports about a hub whose TLS this command cannot pass."""
    from toolhub_service.app.own_hub import is_ready

    ready = is_ready(settings)
    if ready is None:
        if is_absent(failed.message):
            raise failed
        advice = "Set metrics.listen, whose /readyz needs no TLS, or give --cert-file and --key-file."
        raise HubUnreachable(f"{failed.message} {advice}")
    note(f"/readyz says so; over gRPC: {failed.message}", err=True)
    return "SERVING" if ready else "NOT_SERVING"


def server_info(connection: Connection) -> pb.GetServerInfoResponse:
    """Return the hub's information about itself and the caller. Raises grpc.RpcError."""
    from toolhub.v1 import tool_service_pb2 as pb

    return connection.call(connection.tools.GetServerInfo, pb.GetServerInfoRequest())


def _show_server(info: pb.GetServerInfoResponse) -> None:
    server = info.server
    limits = MessageToDict(server.limits, preserving_proto_field_name=True)
    print_pairs(
        [
            ("version", server.version),
            ("contract", f"{server.contract} {server.contract_digest[:12]}"),
            ("entrances", entrances(server)),
            ("features", ", ".join(server.features)),
            ("you", f"{info.principal} ({', '.join(info.roles) or 'no role'})"),
            *((name, str(value)) for name, value in limits.items()),
        ]
    )


def entrances(server: pb.ServerInfo) -> str:
    """Return its protocols, with their accepted credentials."""
    return ", ".join(f"{way.protocol} ({' or '.join(way.credentials)})" for way in server.entrances)
