"""Options that select audit events, and the filter that they make; an event's type and outcome as words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any

import click

from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.cli.terminal.output import enum_name
from toolhub_service.reports.activity import REFUSED, refusal_kind

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
_TIME_OF_DAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601, in UTC without a zone; a time of today, such as 09:00; a span of time back from now; or the
    begin of a day: `today`, `yesterday` (UTC)."""

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
            if _TIME_OF_DAY.fullmatch(str(value)):
                return datetime.combine(now.date(), time_of_day.fromisoformat(str(value)), UTC)
            found = datetime.fromisoformat(str(value))
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(
                f"{str(value)!r} is no time: write yesterday, 30m, 24h or 7d, 09:00 (today, UTC), 2026-01-31, or "
                "2026-01-31T12:00:00Z."
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
