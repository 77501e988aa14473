"""`toolhub audit …`: what happened, and whether the record can be trusted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.cli.audit_following import follow as follow_on
from toolhub_service.cli.connection import EXIT_REFUSED, connected_by, connection_options
from toolhub_service.cli.events import events, newest
from toolhub_service.cli.output import (
    json_option,
    legible,
    message_as_json,
    note,
    print_json,
    print_json_line,
    wants_json,
)
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.settings_options import read_settings, settings_options

_SUMMARY_CHARS = 80
_FACTS_CHARS = 300
_TOLD_BY_FACTS = frozenset(
    {
        event_pb2.EVENT_TYPE_JOB_SUBMITTED,
        event_pb2.EVENT_TYPE_JOB_STATE,
        event_pb2.EVENT_TYPE_APPROVAL_DECIDED,
        event_pb2.EVENT_TYPE_APPROVAL_EXPIRED,
        event_pb2.EVENT_TYPE_APPROVAL_REVEALED,
    }
)


@click.group(cls=SuggestingGroup)
def audit() -> None:
    """Read, follow, verify and export the audit log."""


def _filter_options(command: Any) -> Any:
    for option in (
        click.option("--principal", default="", help="Only events of this principal."),
        click.option("--tool", default="", help="Only events of this tool."),
        click.option("--call-id", default="", help="Only events of this call."),
        click.option("--request-id", default="", help="Only events of this request."),
        click.option("--user-id", default="", help="Only events of calls for this user."),
        click.option("--agent-id", default="", help="Only events of calls by this agent."),
        click.option("--task-id", default="", help="Only events of this task."),
        click.option("--session-id", default="", help="Only events of this session."),
        click.option("--type", "types", multiple=True, help="Only events of this type, such as POLICY_DENIED."),
    ):
        command = option(command)
    return command


@audit.command()
@click.option(
    "-n", "count", type=click.IntRange(min=0), default=20, show_default=True, help="Events to show before following."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until interrupted.")
@_filter_options
@json_option
@connection_options
def tail(count: int, follow: bool, as_json: bool, **options: Any) -> None:
    """The newest events, oldest first.

    \b
    Examples:
      toolhub audit tail
      toolhub audit tail -f --type POLICY_DENIED
    """
    with connected_by(options) as connection, suppress(KeyboardInterrupt):
        where = _filter(options)
        found = newest(connection, where, count)
        _print_events(found, as_json)
        if not found and not follow and not wants_json(as_json):
            note("No event fits")
        if follow:
            _print_events(follow_on(connection, where, lost=_say_lost), as_json)


@audit.command()
@click.option("--data-dir", type=click.Path(path_type=Path), help="Read the files of a hub that need not be running.")
@_filter_options
@connection_options
def export(data_dir: Path | None, **options: Any) -> None:
    """Every event as one JSON line, with sequence and MAC, oldest first.

    \b
    Examples:
      toolhub audit export --principal research-agent > events.jsonl
      toolhub audit export --data-dir /var/lib/toolhub > events.jsonl
    """
    if data_dir is not None:
        _export_files(data_dir, _filter(options))
        return
    with connected_by(options) as connection:
        for event in events(connection, _filter(options)):
            print_json_line(message_as_json(event))


@audit.command()
@click.option("--data-dir", type=click.Path(path_type=Path), help="Verify the files of a hub that need not be running.")
@json_option
@connection_options
def verify(data_dir: Path | None, as_json: bool, **options: Any) -> None:
    """Check the hash chains and checkpoints. Exit 1 and the first bad sequence when something was changed.

    \b
    Examples:
      toolhub audit verify
      toolhub audit verify --data-dir /var/lib/toolhub
    """
    if data_dir is not None:
        answer = _verify_files(data_dir)
    else:
        with connected_by(options) as connection:
            request = pb.VerifyAuditRequest()
            answer = connection.audit.VerifyAudit(request, timeout=options["timeout_s"], metadata=connection.metadata)
    if wants_json(as_json):
        print_json({"ok": answer.ok, **message_as_json(answer)})
    else:
        _show_verification(answer)
    if not answer.ok:
        sys.exit(EXIT_REFUSED)


def _say_lost(pause_s: float) -> None:
    note(f"the hub does not answer; asking again in {pause_s:.1f} s", err=True)


def _verify_files(data_dir: Path) -> pb.VerifyAuditResponse:
    from toolhub_service.app.offline import CannotLook, verify_audit_files
    from toolhub_service.transport.convert.event import from_verification

    try:
        return from_verification(verify_audit_files(data_dir))
    except CannotLook as reason:
        raise click.ClickException(str(reason)) from reason


def _export_files(data_dir: Path, where: event_pb2.EventFilter) -> None:
    from toolhub_service.app.offline import CannotLook, audit_events
    from toolhub_service.transport.convert.event import from_event, to_filter

    try:
        for event in audit_events(data_dir, to_filter(where)):
            print_json_line(message_as_json(from_event(event)))
    except CannotLook as reason:
        raise click.ClickException(str(reason)) from reason


def _show_verification(answer: pb.VerifyAuditResponse) -> None:
    if answer.ok:
        click.secho(
            f"✓ {_many(answer.events_checked, 'event')} in {_many(answer.writers_checked, 'chain')}: "
            "none changed, removed or moved",
            fg="green",
        )
        return
    for fault in answer.faults:
        click.secho(f"✗ writer {fault.writer}, sequence {fault.sequence}: {fault.reason}", fg="red")
    click.echo(f"{_many(answer.events_checked, 'event')} checked; nothing after a fault of its writer can be trusted.")


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


@audit.command("rotate-key")
@settings_options
def rotate_key(config_file: Path | None, data_dir: Path | None) -> None:
    """Add a key to the audit log, which signs after the hub's next start; the old ones go on verifying.

    \b
    Example:
      toolhub audit rotate-key --data-dir /var/lib/toolhub
    """
    from toolhub_service.app.offline import CannotLook, rotate_audit_key

    try:
        key_id = rotate_audit_key(read_settings(config_file, data_dir))
    except CannotLook as refused:
        raise click.ClickException(str(refused)) from refused
    click.echo(f"key {key_id} is added; it signs what the hub writes after it is started again")


@audit.command()
@click.option("--reason", required=True, help="Why the old log is gone; the first event of the new one tells it.")
@settings_options
def begin(reason: str, config_file: Path | None, data_dir: Path | None) -> None:
    """Begin a new audit log under the key there is, after the old one was moved away or lost.

    A hub whose log has gone refuses to start: only this command begins another, and the new log's first event says so.

    \b
    Example:
      toolhub audit begin --data-dir /var/lib/toolhub --reason "moved to the archive of 2026"
    """
    from toolhub_service.app.offline import CannotLook, begin_audit

    try:
        asyncio.run(begin_audit(read_settings(config_file, data_dir), reason))
    except CannotLook as refused:
        raise click.ClickException(str(refused)) from refused
    click.echo("a new audit log is begun; its first event tells why")


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
        user_id=options["user_id"],
        agent_id=options["agent_id"],
        task_id=options["task_id"],
        session_id=options["session_id"],
        types=types,
    )


def _print_events(found: Iterable[event_pb2.Event], as_json: bool) -> None:
    for event in found:
        if wants_json(as_json):
            print_json_line(message_as_json(event))
        else:
            click.echo(_line(event))


def _line(event: event_pb2.Event) -> str:
    kind = event_pb2.EventType.Name(event.type).removeprefix("EVENT_TYPE_")
    refused = event.error_kind != error_pb2.ERROR_KIND_UNSPECIFIED
    outcome = click.style(event.outcome, fg="red" if refused else "green") if event.outcome else ""
    took = f" {event.duration.ToMicroseconds() / 1_000:.1f} ms" if event.outcome and event.call_id else ""
    rule = f" [{event.rule_id}]" if event.rule_id else ""
    who, tool, summary = legible(event.principal), legible(event.tool), legible(_summary(event))
    parts = (f"{event.at.ToDatetime():%H:%M:%S}", kind.ljust(13), who, tool, (outcome + took + rule).strip(), summary)
    return "  ".join(part for part in parts if part)


def _summary(event: event_pb2.Event) -> str:
    """The arguments; of a job or an approval, which have none, what became of it and why."""
    if event.args_summary or event.type not in _TOLD_BY_FACTS:
        return event.args_summary[:_SUMMARY_CHARS]
    facts = dict(event.attributes)
    states = [facts.pop(name) for name in ("from", "state") if name in facts]
    words = [facts.pop("job_id", ""), " → ".join(states), *(f"{name}={facts[name]}" for name in sorted(facts))]
    return " ".join(word for word in words if word)[:_FACTS_CHARS]
