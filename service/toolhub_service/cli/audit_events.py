"""Selects the audit events that a command reads: by filters, the newest few, and new ones."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.cli.client import PAGE_MAX, Connection, reopened

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
    """Return the last `count` events that match, oldest first."""
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
    "tool": "this tool",
    "call_id": "this call",
    "request_id": "this request",
    "user_id": "calls for this user",
    "agent_id": "calls by this agent",
    "task_id": "this task",
    "session_id": "this session",
    "tenant": "principals of this tenant, by the policy in force",
}
_SPAN = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601, in UTC without a zone, or a span of time back from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        try:
            if span := _SPAN.fullmatch(str(value)):
                return now - timedelta(seconds=int(span[1]) * _UNITS_S[span[2]])
            found = datetime.fromisoformat(str(value))
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{str(value)!r} is no time: write 30m, 24h or 7d, or 2026-01-31T12:00:00Z.")


def filter_options(command: Any) -> Any:
    for name, whose in FILTERS.items():
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, default="", help=f"Only events of {whose}.")(command)
    types = click.option(
        "--type", "types", multiple=True, help="Only events of this type, such as POLICY_DENIED; repeatable."
    )
    return types(command)


def filter_of(options: dict[str, Any]) -> event_pb2.EventFilter:
    try:
        types = [event_pb2.EventType.Value(f"EVENT_TYPE_{name.upper()}") for name in options["types"]]
    except ValueError as unknown:
        known = ", ".join(name.removeprefix("EVENT_TYPE_") for name in event_pb2.EventType.keys()[1:])
        raise click.UsageError(f"--type takes one of: {known}") from unknown
    where = event_pb2.EventFilter(types=types, **{name: options[name] for name in FILTERS})
    for name in ("since", "until"):
        if options.get(name) is not None:
            getattr(where, name).FromDatetime(options[name])
    return where
