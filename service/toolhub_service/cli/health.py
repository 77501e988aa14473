"""`toolhub health`: whether the hub serves, for container probes, which want a quick start."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from toolhub_service.cli.client import EXIT_REFUSED, connected, connection_options, status_of
from toolhub_service.cli.output import json_option, print_json


@click.command()
@click.option("--service", default="", help="Full name of one service; default: the hub as a whole.")
@json_option
@connection_options
def health(
    service: str, as_json: bool, address: str, api_key: str | None, ca_file: Path | None, timeout_s: float
) -> None:
    """Exit 0 when the hub is serving, 1 when it answers that it is not, 3 when it cannot be reached.

    \b
    Examples:
      toolhub health
      toolhub health --service toolhub.v1.ToolService
    """
    with connected(address, api_key, ca_file, min(timeout_s, 5.0)) as connection:
        stub = health_pb2_grpc.HealthStub(connection.channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = stub.Check(request, timeout=connection.timeout_s, metadata=connection.metadata)
        except grpc.RpcError as error:
            if status_of(error)[0] is grpc.StatusCode.NOT_FOUND:
                raise click.ClickException(
                    f"The hub has no service {service}. One that it has: toolhub.v1.ToolService"
                ) from error
            raise
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if as_json:  # only when asked for: in a pipe, probes and scripts expect the plain word
        print_json({"status": name})
    else:
        click.echo(name)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(EXIT_REFUSED)
