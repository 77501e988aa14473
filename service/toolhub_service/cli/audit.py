"""`toolhub audit …`: read, follow, export and verify the audit log."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.cli.audit_verify import verify
from toolhub_service.cli.client import (
    PAGE_MAX,
    Connection,
    connected_by,
    connection_options,
    note_outage,
    reopened,
)
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.output import (
    enum_name,
    explaining,
    footnote,
    is_whole,
    legible,
    message_as_json,
    print_json_line,
    print_next,
    text_option,
    wants_json,
)
from toolhub_service.cli.root import SuggestingGroup

# Reading a hub's audit events: all of them from the oldest, or the newest few without reading what is before them.
#
# The log is listed in the order of time, from any moment on. So the newest N are asked for in windows that reach back
# from now, each 16 times as long as the one before, until one holds enough: at most a few listings, of which only the
# last can hold many events more than asked for.

_FIRST_WINDOW_S = 4.0
_GROWTH = 16
_LAST_WINDOW_S = 64 * 86_400.0


def events(connection: Connection, where: event_pb2.EventFilter) -> Iterator[event_pb2.Event]:
    """Every event that matches, oldest first."""
    for page in connection.pages(connection.audit.ListEvents, pb.ListEventsRequest(filter=where, page_size=PAGE_MAX)):
        yield from page.events


def newest(connection: Connection, where: event_pb2.EventFilter, count: int) -> list[event_pb2.Event]:
    """The last `count` events that match, oldest first."""
    found: deque[event_pb2.Event] = deque(maxlen=count)
    if count == 0:
        return []
    window_s = _FIRST_WINDOW_S
    while window_s <= _LAST_WINDOW_S:
        windowed = event_pb2.EventFilter()
        windowed.CopyFrom(where)
        windowed.since.FromNanoseconds(time.time_ns() - int(window_s * 1e9))
        found.extend(events(connection, windowed))
        if len(found) == count:
            return list(found)
        found.clear()
        window_s *= _GROWTH
    found.extend(events(connection, where))
    return list(found)


# Following the audit log across restarts of the hub: from the last event seen, what was missed first.

_PAUSE_MAX_S = 5.0


def followed_events(
    connection: Connection,
    where: event_pb2.EventFilter,
    *,
    disconnected: Callable[[float], object] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[event_pb2.Event]:
    """New events without end, across restarts of the hub. `disconnected` is called with the seconds until the next try.

    Raises grpc.RpcError when the hub refuses, and when it cannot be reached at the beginning.
    """
    asked = pb.ListEventsRequest(filter=where, page_size=1)
    connection.call(connection.audit.ListEvents, asked)
    token = ""

    def tail() -> Iterator[event_pb2.Event]:
        nonlocal token
        request = pb.TailEventsRequest(filter=where, resume_token=token)
        answers = connection.audit.TailEvents(request, metadata=connection.metadata)
        try:
            for answer in answers:
                token = answer.resume_token
                yield answer.event
        finally:
            answers.cancel()

    yield from reopened(tail, _PAUSE_MAX_S, disconnected, pause)


# Fields of EventFilter with an option each.
_FILTERS = {
    "principal": "this principal",
    "tool": "this tool",
    "call_id": "this call",
    "request_id": "this request",
    "user_id": "calls for this user",
    "agent_id": "calls by this agent",
    "task_id": "this task",
    "session_id": "this session",
}
_SUMMARY_CHARS = 80
_FACTS_CHARS = 300
_WITHOUT_ARGUMENTS = frozenset(
    {
        event_pb2.EVENT_TYPE_JOB_SUBMITTED,
        event_pb2.EVENT_TYPE_JOB_STATE,
        event_pb2.EVENT_TYPE_APPROVAL_DECIDED,
        event_pb2.EVENT_TYPE_APPROVAL_EXPIRED,
        event_pb2.EVENT_TYPE_APPROVAL_REVEALED,
        event_pb2.EVENT_TYPE_ARTIFACT_DELETED,
        event_pb2.EVENT_TYPE_CREDENTIAL_SET,
        event_pb2.EVENT_TYPE_CREDENTIAL_REVOKED,
    }
)


@click.group(cls=SuggestingGroup)
def audit() -> None:
    """Read, follow, verify and export the audit log."""


audit.add_command(verify)


def _filter_options(command: Any) -> Any:
    for name, whose in _FILTERS.items():
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, default="", help=f"Only events of {whose}.")(command)
    types = click.option(
        "--type", "types", multiple=True, help="Only events of this type, such as POLICY_DENIED; repeatable."
    )
    return types(command)


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
@_filter_options
@text_option
@connection_options
def tail(count: int, follow: bool, as_json: bool, **options: Any) -> None:
    """Show the newest events, oldest first.

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
            footnote("No event matches.")
        if follow:
            _print_events(followed_events(connection, where, disconnected=note_outage), as_json)


@audit.command()
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Read the files in this data folder instead of asking a hub."
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["countbot", "lines"]),
    help="countbot: one line a call, with the fields of CountBot's log. lines (with --data-dir): events as they are "
    "sealed, for `toolhub audit verify --file`.",
)
@_filter_options
@connection_options
def export(data_dir: Path | None, form: str | None, **options: Any) -> None:
    """Print every event as one line of JSON, with sequence and MAC, oldest first.

    \b
    Examples:
      toolhub audit export --principal research-agent > events.jsonl
      toolhub audit export --data-dir /var/lib/toolhub > events.jsonl
      toolhub audit export --as countbot --session-id s1
    """
    if form == "lines":
        _print_lines(data_dir, _filter(options))
        return
    if data_dir is not None:
        from toolhub_service.app.offline import OfflineRefused

        with explaining(OfflineRefused):
            for record in _records(_events_of(data_dir, _filter(options)), form):
                print_json_line(record)
        return
    with connected_by(options) as connection:
        for record in _records(events(connection, _filter(options)), form):
            print_json_line(record)


def _print_lines(data_dir: Path | None, where: event_pb2.EventFilter) -> None:
    """The very texts that were sealed, which the contract does not carry."""
    from toolhub_service.app.offline import OfflineRefused, audit_events
    from toolhub_service.stores.audit.events import export_line
    from toolhub_service.transport.convert.records import to_filter

    if data_dir is None:
        raise click.UsageError("--as lines reads the files of a hub: name its folder with --data-dir.")
    with explaining(OfflineRefused):
        for each in audit_events(data_dir, to_filter(where)):
            click.echo(export_line(each), nl=False)


def _records(found: Iterable[event_pb2.Event], form: str | None) -> Iterator[dict[str, Any]]:
    return map(message_as_json, found) if form is None else _as_countbot(found)


# What CountBot's log has of a call, from the event with which the call began and the one with which it ended.

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
    """Under CountBot's names where the tool is one of its; a text where the log has kept the beginning only."""
    from toolhub_service.faces.countbot import countbot

    try:
        args = json.loads(summary)
    except ValueError:
        return summary
    row = countbot().tools.get(name)
    if row is None or not isinstance(args, dict):
        return args
    return row.renamed(args)


def _events_of(data_dir: Path, where: event_pb2.EventFilter) -> Iterator[event_pb2.Event]:
    """Raises OfflineRefused."""
    from toolhub_service.app.offline import audit_events
    from toolhub_service.transport.convert.records import from_event, to_filter

    return map(from_event, audit_events(data_dir, to_filter(where)))


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
    click.echo(f"Added key {key_id}. Restart the hub to sign new events with it.")


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
    click.echo("Started a new audit log. Its first event records the reason.")


def _filter(options: dict[str, Any]) -> event_pb2.EventFilter:
    try:
        types = [event_pb2.EventType.Value(f"EVENT_TYPE_{name.upper()}") for name in options["types"]]
    except ValueError as unknown:
        known = ", ".join(name.removeprefix("EVENT_TYPE_") for name in event_pb2.EventType.keys()[1:])
        raise click.UsageError(f"--type takes one of: {known}") from unknown
    return event_pb2.EventFilter(types=types, **{name: options[name] for name in _FILTERS})


def _print_events(found: Iterable[event_pb2.Event], as_json: bool) -> None:
    for event in found:
        if wants_json(as_json):
            print_next(message_as_json(event))
        else:
            click.echo(_line(event))


def _line(event: event_pb2.Event) -> str:
    refused = event.error_kind != error_pb2.ERROR_KIND_UNSPECIFIED
    outcome = click.style(event.outcome, fg="red" if refused else "green") if event.outcome else ""
    took = f" {event.duration.ToMicroseconds() / 1_000:.1f} ms" if event.outcome and event.call_id else ""
    rule = f" [{event.rule_id}]" if event.rule_id else ""
    who, tool, summary = legible(event.principal), legible(event.tool), legible(_summary(event))
    parts = (
        f"{event.at.ToDatetime():{'%Y-%m-%dT%H:%M:%SZ' if is_whole() else '%H:%M:%S'}}",
        enum_name(event, "type").ljust(13),
        who,
        tool,
        (outcome + took + rule).strip(),
        summary,
    )
    return "  ".join(part for part in parts if part)


def _summary(event: event_pb2.Event) -> str:
    """The arguments; for events that have none, such as those of jobs, their attributes."""
    if event.args_summary or event.type not in _WITHOUT_ARGUMENTS:
        return event.args_summary if is_whole() else event.args_summary[:_SUMMARY_CHARS]
    facts = dict(event.attributes)
    states = [facts.pop(name) for name in ("from", "state") if name in facts]
    words = [facts.pop("job_id", ""), " → ".join(states), *(f"{name}={facts[name]}" for name in sorted(facts))]
    line = " ".join(word for word in words if word)
    return line if is_whole() else line[:_FACTS_CHARS]
