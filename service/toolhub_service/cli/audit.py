"""`toolhub audit …`: what happened, and whether the record can be trusted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.cli.connection import EXIT_REFUSED, Connection, connected, connection_options
from toolhub_service.cli.output import json_option, message_as_json, print_json, wants_json

_PAGE = 1_000


@click.group()
def audit() -> None:
    """Read, follow, verify and export the audit log."""


def _filter_options(command: Any) -> Any:
    for option in (
        click.option("--principal", default="", help="Only events of this principal."),
        click.option("--tool", default="", help="Only events of this tool."),
        click.option("--call-id", default="", help="Only events of this call."),
        click.option("--request-id", default="", help="Only events of this request."),
        click.option("--type", "types", multiple=True, help="Only events of this type, such as POLICY_DENIED."),
    ):
        command = option(command)
    return command


@audit.command()
@click.option("-n", "count", default=20, show_default=True, help="Events to show before following.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until interrupted.")
@_filter_options
@json_option
@connection_options
def tail(count: int, follow: bool, as_json: bool, **options: Any) -> None:
    """The newest events, oldest first."""
    with _connect(options) as connection:
        where = _filter(options)
        newest = list(_events(connection, where))[-count:] if count else []
        _print_events(newest, as_json)
        if follow:
            request = pb.TailEventsRequest(filter=where)
            answers = connection.audit.TailEvents(request, metadata=connection.metadata)
            _print_events((answer.event for answer in answers), as_json)


@audit.command()
@_filter_options
@connection_options
def export(**options: Any) -> None:
    """Every event as one JSON line, with sequence and MAC, oldest first."""
    with _connect(options) as connection:
        for event in _events(connection, _filter(options)):
            click.echo(json.dumps(message_as_json(event), ensure_ascii=False))


@audit.command()
@click.option("--data-dir", type=click.Path(path_type=Path), help="Verify the files of a hub that need not be running.")
@json_option
@connection_options
def verify(data_dir: Path | None, as_json: bool, **options: Any) -> None:
    """Check the hash chains and checkpoints. Exit 1 and the first bad sequence when something was changed."""
    if data_dir is not None:
        answer = _verify_files(data_dir)
    else:
        with _connect(options) as connection:
            request = pb.VerifyAuditRequest()
            answer = connection.audit.VerifyAudit(request, timeout=options["timeout_s"], metadata=connection.metadata)
    if wants_json(as_json):
        print_json({"ok": answer.ok, **message_as_json(answer)})
    else:
        _show_verification(answer)
    if not answer.ok:
        sys.exit(EXIT_REFUSED)


def _verify_files(data_dir: Path) -> pb.VerifyAuditResponse:
    from toolhub_service.app.offline import verify_audit_files
    from toolhub_service.transport.convert.event import from_verification

    return from_verification(asyncio.run(verify_audit_files(data_dir)))


def _show_verification(answer: pb.VerifyAuditResponse) -> None:
    if answer.ok:
        click.secho(
            f"✓ {answer.events_checked} events of {answer.writers_checked} writers, none changed, removed or moved",
            fg="green",
        )
        return
    for fault in answer.faults:
        click.secho(f"✗ writer {fault.writer}, sequence {fault.sequence}: {fault.reason}", fg="red")
    click.echo(f"{answer.events_checked} events were checked; nothing after a fault of its writer can be trusted.")


def _connect(options: dict[str, Any]) -> Any:
    return connected(options["address"], options["api_key"], options["ca_file"], options["timeout_s"])


def _filter(options: dict[str, Any]) -> event_pb2.EventFilter:
    try:
        types = [event_pb2.EventType.Value(f"EVENT_TYPE_{name.upper()}") for name in options["types"]]
    except ValueError as unknown:
        known = ", ".join(name.removeprefix("EVENT_TYPE_") for name in event_pb2.EventType.keys()[1:])
        raise click.UsageError(f"--type takes one of {known}") from unknown
    return event_pb2.EventFilter(
        principal=options["principal"],
        tool=options["tool"],
        call_id=options["call_id"],
        request_id=options["request_id"],
        types=types,
    )


def _events(connection: Connection, where: event_pb2.EventFilter) -> Iterator[event_pb2.Event]:
    token = ""
    while True:
        request = pb.ListEventsRequest(filter=where, page_size=_PAGE, page_token=token)
        page = connection.audit.ListEvents(request, timeout=connection.timeout_s, metadata=connection.metadata)
        yield from page.events
        token = page.next_page_token
        if not token:
            return


def _print_events(events: Iterable[event_pb2.Event], as_json: bool) -> None:
    for event in events:
        if wants_json(as_json):
            click.echo(json.dumps(message_as_json(event), ensure_ascii=False))
        else:
            click.echo(_line(event))


def _line(event: event_pb2.Event) -> str:
    kind = event_pb2.EventType.Name(event.type).removeprefix("EVENT_TYPE_")
    refused = event.error_kind != error_pb2.ERROR_KIND_UNSPECIFIED
    outcome = click.style(event.outcome, fg="red" if refused else "green") if event.outcome else ""
    took = f" {event.duration.ToMilliseconds()} ms" if event.outcome else ""
    rule = f" [{event.rule_id}]" if event.rule_id else ""
    parts = (
        f"{event.at.ToDatetime():%H:%M:%S}",
        f"#{event.sequence}".rjust(6),
        kind.ljust(13),
        event.principal,
        event.tool,
        outcome + took + rule,
        event.args_summary[:80],
    )
    return "  ".join(part for part in parts if part)
