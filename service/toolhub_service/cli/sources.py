"""`toolhub sources …`: where tools come from, how that fares, and sources.yaml."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import click
import grpc

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import source_pb2
from toolhub_service.cli.connection import EXIT_REFUSED, Connection, HubRefused, connected_by, connection_options
from toolhub_service.cli.output import json_option, message_as_json, note, print_json, wants_json
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.source_adding import add
from toolhub_service.cli.source_checking import check
from toolhub_service.cli.source_completion import complete_source
from toolhub_service.cli.source_removing import remove
from toolhub_service.cli.source_view import is_down, is_remote, line, print_source, print_sources
from toolhub_service.registry.names import CORE_NAMESPACE

_AT_ONCE = 8
"""Sources that are asked at the same time."""


@click.group(cls=SuggestingGroup)
def sources() -> None:
    """Where tools come from besides the hub itself: look, read anew, add and remove."""


@sources.command("list")
@click.option("--wide", is_flag=True, help="Trust, server and endpoint, too.")
@json_option
@connection_options
def list_sources(wide: bool, as_json: bool, **options: Any) -> None:
    """Every source and how it fares: tools, last and next reading, breaker, and why one is not ready.

    \b
    Examples:
      toolhub sources list
      toolhub sources list --json | jq -r '.sources[] | select(.state == "SOURCE_STATE_DOWN") | .source'
    """
    with connected_by(options) as connection:
        found = _listed(connection)
    if wants_json(as_json):
        print_json({"sources": [message_as_json(status) for status in found]})
        return
    print_sources(found, wide=wide)
    if not any(is_remote(status) for status in found):
        note("Only the hub's own; `toolhub sources add --help` shows how to add some")
    else:
        note("`toolhub sources show NAME` tells all about one")


@sources.command()
@click.argument("name", shell_complete=complete_source)
@json_option
@connection_options
def show(name: str, as_json: bool, **options: Any) -> None:
    """One source: where it stands, what it says of itself, what its process last wrote.

    \b
    Example:
      toolhub sources show github
    """
    with connected_by(options) as connection:
        status = _named(_listed(connection), name)
    if wants_json(as_json):
        print_json(message_as_json(status))
    else:
        print_source(status)


@sources.command()
@click.argument("names", nargs=-1, metavar="[NAME…]", shell_complete=complete_source)
@json_option
@connection_options
def refresh(names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Read sources anew, all when none is named, and tell what each gave; exits 1 when one could not be read.

    The hub looks at sources.yaml first, so what was just written there is found.

    \b
    Examples:
      toolhub sources refresh
      toolhub sources refresh github files --timeout 120
    """
    with connected_by(options) as connection:
        told: list[source_pb2.SourceStatus] = []
        for status in _refreshed(connection, list(dict.fromkeys(names)) or _all_remote(connection)):
            told.append(status)
            if not wants_json(as_json):
                click.secho(line(status), fg="red" if is_down(status) else None)
    if wants_json(as_json):
        told.sort(key=lambda status: status.source)
        print_json({"sources": [message_as_json(status) for status in told]})
    elif not told:
        note("There is nothing to read: the hub has no source but itself")
    if any(is_down(status) for status in told):
        sys.exit(EXIT_REFUSED)


for command in (add, remove, check):
    sources.add_command(command)


def _listed(connection: Connection) -> list[source_pb2.SourceStatus]:
    request = pb.ListSourcesRequest()
    answer = connection.registry.ListSources(request, timeout=connection.timeout_s, metadata=connection.metadata)
    return list(answer.sources)


def _named(found: Sequence[source_pb2.SourceStatus], name: str) -> source_pb2.SourceStatus:
    for status in found:
        if status.source == name:
            return status
    known = ", ".join(status.source for status in found)
    raise HubRefused(f"There is no source {name!r}; there are {known}")


def _all_remote(connection: Connection) -> list[str]:
    """Every source that can be read, with those of the file that the hub has not looked at yet."""
    _refresh(connection, CORE_NAMESPACE)  # nothing is read there, but the hub looks at its file first
    return [status.source for status in _listed(connection) if is_remote(status)]


def _refreshed(connection: Connection, names: Sequence[str]) -> Iterator[source_pb2.SourceStatus]:
    """As each is done: one that is slow keeps none of the others from being told. Raises the first grpc.RpcError."""
    failed: grpc.RpcError | None = None
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for done in as_completed([threads.submit(_refresh, connection, name) for name in names]):
            try:
                yield from done.result()
            except grpc.RpcError as error:
                failed = failed or error
    if failed is not None:
        raise failed


def _refresh(connection: Connection, name: str) -> Sequence[source_pb2.SourceStatus]:
    request = pb.RefreshSourcesRequest(sources=[name])
    answer = connection.registry.RefreshSources(request, timeout=connection.timeout_s, metadata=connection.metadata)
    return list(answer.sources)
