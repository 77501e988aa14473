"""Selects the audit events that a command reads: by filters, the newest few, and new ones."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.cli.connection.client import PAGE_MAX, Connection, reopened
from toolhub_service.cli.terminal.output import enum_name
from toolhub_service.reports.activity import REFUSED, refusal_kind

# Reading a hub's audit events: all of them from the oldest, or the newest few without reading what is before them.
#
# The log is listed in the order of time, from any moment on. So the newest N are asked for in windows that reach back
# from now, each 16 times as long as the one before, until one holds enough: at most a few listings, of which only the
# last can hold many events more than asked for.

_FIRST_WINDOW_S = 4.0
_GROWTH = 16
_LAST_WINDOW_S = 64 * 86_400.0


def events(connection: Connection, where: event_pb2.EventFilter) -> Iterator[event_pb2.Event]:
    """Yield every event that matches, oldest first."""
    for page in connection.pages(connection.audit.ListEvents, pb.ListEventsRequest(filter=where, page_size=PAGE_MAX)):
        yield from page.events


def newest(connection: Connection, where: event_pb2.EventFilter, count: int) -> list[event_pb2.Event]:
    """Return the last `count` events that match, oldest first; the filter's times bound them."""
    found: deque[event_pb2.Event] = deque(maxlen=count)
    if count == 0:
        return []
    end_ns = where.until.ToNanoseconds() if where.HasField("until") else time.time_ns()
    window_s = _FIRST_WINDOW_S
    while window_s <= _LAST_WINDOW_S:
        begin_ns = end_ns - int(window_s * 1e9)
        if begin_ns <= where.since.ToNanoseconds():
            break
        windowed = event_pb2.EventFilter()
        windowed.CopyFrom(where)
        windowed.since.FromNanoseconds(begin_ns)
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
    """Yield new events without end, across restarts of the hub.

    `disconnected` is called with the seconds until the next try.

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
FILTERS = {
    "principal": "this principal",
    "tool": "this tool, or of tools that match a glob such as 'core/fs.*'",
    "call_id": "this call",
    "request_id": "this request",
    "user_id": "calls for this user",
    "agent_id": "calls by this agent",
    "task_id": "this task",
    "session_id": "this session",
    "outcome": "this outcome, such as ok or APPROVED",
    "rule_id": "this rule of the policy",
    "tenant": "principals of this tenant, by the policy in force",
}
# The option of a field that is not named as its field.
_FLAGS = {"rule_id": "--rule"}
REFUSED_TYPE = "REFUSED"
"""What the three types of refusals are called here: what counts for a reader is the kind."""
_DAYS_BACK = {"today": 0, "yesterday": 1}
_SPAN = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601, in UTC without a zone; a span of time back from now; or the begin of a day: `today`,
    `yesterday` (UTC)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        try:
            if (days := _DAYS_BACK.get(str(value))) is not None:
                return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
            if span := _SPAN.fullmatch(str(value)):
                return now - timedelta(seconds=int(span[1]) * _UNITS_S[span[2]])
            found = datetime.fromisoformat(str(value))
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(
                f"{str(value)!r} is no time: write yesterday, 30m, 24h or 7d, 2026-01-31, or 2026-01-31T12:00:00Z."
            )


def filter_options(command: Any) -> Any:
    for name, whose in FILTERS.items():
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        command = click.option(flag, name, default="", help=f"Only events of {whose}.")(command)
    labels = click.option(
        "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only calls with this label; repeatable."
    )
    kinds = click.option(
        "--kind", "kinds", multiple=True, help="Only failures of this kind, such as APPROVAL_REQUIRED; repeatable."
    )
    types = click.option(
        "--type", "types", multiple=True, help="Only events of this type, such as REFUSED or RETRY; repeatable."
    )
    return types(kinds(labels(command)))


def filter_of(options: dict[str, Any]) -> event_pb2.EventFilter:
    named = [name for name in options["types"] if name.upper() != REFUSED_TYPE]
    types = _numbers("--type", event_pb2.EventType, "EVENT_TYPE_", named, also=(REFUSED_TYPE,))
    if len(named) < len(options["types"]):
        types = [*types, *REFUSED]
    where = event_pb2.EventFilter(
        types=sorted(set(types)),
        error_kinds=_numbers("--kind", error_pb2.ErrorKind, "ERROR_KIND_", options["kinds"]),
        labels=dict(map(_label, options["labels"])),
        **{name: options[name] for name in FILTERS},
    )
    for name in ("since", "until"):
        if options.get(name) is not None:
            getattr(where, name).FromDatetime(options[name])
    return where


def _numbers(option: str, enum: Any, prefix: str, names: Iterable[str], also: Sequence[str] = ()) -> list[Any]:
    try:
        return [enum.Value(f"{prefix}{name.upper()}") for name in names]
    except ValueError as unknown:
        known = ", ".join((*also, *(name.removeprefix(prefix) for name in enum.keys()[1:])))
        raise click.UsageError(f"{option} takes one of: {known}") from unknown


def _label(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise click.UsageError(f"--label takes NAME=VALUE, not {word!r}.")
    return name, value


def type_of(event: event_pb2.Event) -> str:
    """Return the type for a reader, such as `TOOL_RESULT`; every refusal is `REFUSED`."""
    return REFUSED_TYPE if event.type in REFUSED else enum_name(event, "type")


def outcome_of(event: event_pb2.Event) -> str:
    """Return how it ended; of a refusal its kind."""
    return refusal_kind(event) if event.type in REFUSED else event.outcome
