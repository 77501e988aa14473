"""`toolhub audit …`: read, follow, export and verify the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.cli.audit.events import Moment, filter_of, filter_options, outcome_of, type_of
from toolhub_service.cli.audit.following import follow_events
from toolhub_service.cli.audit.opened_log import check_without_tenant, is_offline, log_options, opened_log
from toolhub_service.cli.audit.reading import newest
from toolhub_service.cli.audit.report import report
from toolhub_service.cli.audit.verify import verify
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.connection.client import connect_by_options, connection_options
from toolhub_service.cli.connection.watching import note_outage
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    Escaped,
    binary_output,
    explaining,
    footnote,
    is_whole,
    join_parts,
    message_as_json,
    print_json_line,
    print_line,
    print_next,
    print_table,
    style,
    text_option,
    wants_json,
)
from toolhub_service.guards.foreign_text import on_one_line

_SUMMARY_CHARS = 80
_GAP = "  "
_FACTS_CHARS = 300
_HEADINGS = ("TIME", "EVENT", "WHO", "TOOL", "OUTCOME", "RULE", "WHAT")
_OF_CALLS = frozenset(
    {
        event_pb2.EVENT_TYPE_TOOL_CALLED,
        event_pb2.EVENT_TYPE_TOOL_RESULT,
        event_pb2.EVENT_TYPE_POLICY_DENIED,
        event_pb2.EVENT_TYPE_RETRY,
        event_pb2.EVENT_TYPE_APPROVAL_ASKED,
        event_pb2.EVENT_TYPE_APPROVAL_USED,
    }
)


@click.group(cls=SuggestingGroup)
def audit() -> None:
    """Read, follow, verify and export the audit log."""


audit.add_command(verify)
audit.add_command(report)


@audit.command()
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Number of events to show before following.",
)
@click.option("-f", "--follow", is_flag=True, help="Show new events until interrupted.")
@filter_options
@text_option
@log_options
@connection_options
def tail(count: int, follow: bool, as_json: bool, **options: Any) -> None:
    """Show the newest events, oldest first.

    \b
    Examples:
      toolhub audit tail
      toolhub audit tail -f --type REFUSED
      toolhub audit tail --data-dir /var/lib/toolhub
    """
    if follow and is_offline(options):
        raise click.UsageError("--follow needs a running hub: leave out --data-dir and --config.")
    where = filter_of(options)
    # Ctrl-C is how following ends, also between what was there and what is new.
    with suppress(*([KeyboardInterrupt] if follow else [])):
        with opened_log(options) as read:
            found = newest(read, where, count)
        _print_events(found, as_json)
        if not found and not follow and not wants_json(as_json):
            footnote("No event matches.")
        if follow:
            with connect_by_options(options) as connection:
                _print_events(follow_events(connection, where, disconnected=note_outage), as_json)


@audit.command()
@click.option(
    "--since",
    type=Moment(),
    help="Only events from this time on: yesterday, 12h, 09:00 (today, UTC), 2026-11-01, or a date with a time.",
)
@click.option("--until", type=Moment(), help="Only events before this time, written as for --since.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum number of events to show, newest first.",
)
@filter_options
@text_option
@log_options
@connection_options
def query(count: int, as_json: bool, **options: Any) -> None:
    """List events of a time, newest first.

    \b
    Examples:
      toolhub audit query --since yesterday --type REFUSED
      toolhub audit query --kind APPROVAL_REQUIRED --rule ask-before-delete --label team=ops
      toolhub audit query --tenant acme --since 24h
      toolhub audit query --since 07:00 --until 09:00 --data-dir /var/lib/toolhub
      toolhub audit query --tool core/fs.deletePath --since 2026-01-31 --until 2026-02-01 -n 1000
    """
    with opened_log(options) as read:
        found = newest(read, filter_of(options), count + 1)[::-1]
    shown = found[:count]
    if wants_json(as_json):
        _print_events(shown, as_json)
        return
    if not shown:
        footnote("No event matches.")
        return
    print_table(_HEADINGS, map(_row, shown), is_cut=True)
    if len(found) > count:
        footnote(f"There are more. Repeat with -n, or with --until {_exactly(shown[-1])}.")


@audit.command()
@click.option(
    "--as",
    "form",
    type=click.Choice(["countbot", "lines"]),
    help="countbot: one line per call, with the fields of CountBot's log. lines (with --data-dir): events as they are "
    "sealed, for `toolhub audit verify --file`.",
)
@filter_options
@log_options
@connection_options
def export(form: str | None, **options: Any) -> None:
    """Print every event as one line of JSON, with sequence and MAC, oldest first.

    \b
    Examples:
      toolhub audit export --principal research-agent > events.jsonl
      toolhub audit export --data-dir /var/lib/toolhub > events.jsonl
      toolhub audit export --as countbot --session-id s1
    """
    if form == "lines":
        _print_lines(options)
        return
    with opened_log(options) as read:
        for record in _records(read(filter_of(options)), form):
            print_json_line(record)


def _print_lines(options: Mapping[str, Any]) -> None:
    """Print the sealed texts exactly, which the contract does not carry."""
    from toolhub_service.app.offline import OfflineRefused, audit_events
    from toolhub_service.stores.audit.events import export_line
    from toolhub_service.transport.convert.records import to_filter

    if not is_offline(options):
        raise click.UsageError("--as lines reads the files of a hub: name its folder with --data-dir.")
    check_without_tenant(options)
    settings, output = read_settings(options["config_file"], options["data_dir"]), binary_output()
    with explaining(OfflineRefused):
        for each in audit_events(settings, to_filter(filter_of(dict(options)))):
            output.write(export_line(each))


def _records(found: Iterable[event_pb2.Event], form: str | None) -> Iterator[dict[str, Any]]:
    return map(message_as_json, found) if form is None else _as_countbot(found)


# The fields of CountBot's log for a call, from its first and its last event.

_BEGUN_MAX = 10_000
_COUNTBOT = "countbot:"


def _as_countbot(found: Iterable[event_pb2.Event]) -> Iterator[dict[str, Any]]:
    begun: dict[str, str] = {}
    for event in found:
        if event.type == event_pb2.EVENT_TYPE_TOOL_CALLED:
            begun[event.call_id] = event.args_summary
            if len(begun) > _BEGUN_MAX:  # calls whose end is not in the log
                del begun[next(iter(begun))]
        elif event.outcome and event.type in (event_pb2.EVENT_TYPE_TOOL_RESULT, event_pb2.EVENT_TYPE_POLICY_DENIED):
            face = event.labels.get("face", "")
            name = face.removeprefix(_COUNTBOT) if face.startswith(_COUNTBOT) else event.tool
            yield {
                "call_id": event.call_id,
                "tool_name": name,
                "arguments": _arguments(name, event.args_summary or begun.pop(event.call_id, "")),
                "session_id": event.session_id,
                "timestamp": event.at.ToDatetime().isoformat(timespec="seconds"),
                "status": "success" if event.outcome == "ok" else "error",
                "duration_ms": event.duration.ToMilliseconds(),
                "result": event.result_summary or event.outcome,
            }


def _arguments(name: str, summary: str) -> Any:
    """Return arguments under CountBot's names if the tool is one of its; a text when the log kept only the
    beginning."""
    from toolhub_service.faces.countbot import countbot

    try:
        args = json.loads(summary)
    except ValueError:
        return summary
    row = countbot().tools.get(name)
    if row is None or not isinstance(args, dict):
        return args
    return row.rename_arguments(args)


@audit.command("rotate-key")
@settings_options
def rotate_key(**options: Any) -> None:
    """Add a signing key to the audit log, used from the next start of the hub; old keys still verify.

    \b
    Example:
      toolhub audit rotate-key --data-dir /var/lib/toolhub
    """
    from toolhub_service.app.offline import OfflineRefused, rotate_audit_key

    with explaining(OfflineRefused):
        key_id = rotate_audit_key(read_settings(**options))
    print_line(f"Added key {key_id}. Restart the hub to sign new events with it.")


@audit.command()
@click.option("--reason", required=True, help="Why the old log is gone, recorded in the first event of the new one.")
@settings_options
def begin(reason: str, **options: Any) -> None:
    """Start a new audit log with the existing key, after the old log was moved away or lost.

    A hub whose audit log is missing does not start. Only this command starts a new log, whose first event says so.

    \b
    Example:
      toolhub audit begin --data-dir /var/lib/toolhub --reason "moved to the archive of 2026"
    """
    from toolhub_service.app.offline import OfflineRefused, begin_audit

    with explaining(OfflineRefused):
        asyncio.run(begin_audit(read_settings(**options), reason))
    print_line("Started a new audit log. Its first event records the reason.")


def _print_events(found: Iterable[event_pb2.Event], as_json: bool) -> None:
    for event in found:
        if wants_json(as_json):
            print_next(message_as_json(event))
        else:
            print_line(_line(event))


def _row(event: event_pb2.Event) -> tuple[str, ...]:
    """Return cells under `_HEADINGS`."""
    who = f"{event.tenant}/{event.principal}" if event.tenant else event.principal
    return _time(event), type_of(event), who, event.tool, outcome_of(event), event.rule_id, _summary(event)


def _line(event: event_pb2.Event) -> Escaped:
    refused = event.error_kind != error_pb2.ERROR_KIND_UNSPECIFIED
    ended = outcome_of(event)
    outcome = style(ended, fg="red" if refused or ended != event.outcome else "green") if ended else ""
    took = f" {event.duration.ToMicroseconds() / 1_000:.1f} ms" if event.outcome and event.call_id else ""
    rule = f"[{on_one_line(event.rule_id)}]" if event.rule_id else ""
    cells = (
        _time(event),
        type_of(event).ljust(13),
        on_one_line(event.tenant),
        on_one_line(event.principal),
        on_one_line(event.tool),
        join_parts(outcome, took, " " if outcome and rule else "", rule) if outcome or rule else "",
        on_one_line(_summary(event)),
    )
    shown = [cell for cell in cells if cell]
    return join_parts(shown[0], *(part for cell in shown[1:] for part in (_GAP, cell)))


def _time(event: event_pb2.Event) -> str:
    return f"{event.at.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"


def _exactly(event: event_pb2.Event) -> str:
    return f"{event.at.ToDatetime().isoformat(timespec='milliseconds')}Z"


def _summary(event: event_pb2.Event) -> str:
    """Return the arguments; for events that are not of a call, such as a restore or those of jobs, their attributes."""
    if event.args_summary or event.type in _OF_CALLS:
        return event.args_summary if is_whole() else event.args_summary[:_SUMMARY_CHARS]
    facts = dict(event.attributes)
    states = [facts.pop(name) for name in ("from", "state") if name in facts]
    words = [facts.pop("job_id", ""), " → ".join(states), *(f"{name}={facts[name]}" for name in sorted(facts))]
    line = " ".join(word for word in words if word)
    return line if is_whole() else line[:_FACTS_CHARS]
