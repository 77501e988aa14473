"""Sources for people: how they fare, what they gave, when they are read next.

What a source says of itself and what its process writes are strangers' words; they drive no terminal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import click

from toolhub.v1 import source_pb2, tool_pb2
from toolhub_service.cli.output import counted, note, print_pairs, print_table, revealed

Status = source_pb2.SourceStatus

_COLOURS = {"READY": "green", "PARTIAL": "yellow", "PENDING": "yellow", "DOWN": "red"}
_HEADINGS = ("SOURCE", "KIND", "STATE", "TOOLS", "PROTOCOL", "READ", "TOOK", "NEXT", "BREAKER")
_SAID = ("stderr: ", "stdout: ")
"""How lines of diagnostics begin that a process wrote; the others are the hub's own."""
_WIDE = ("TRUST", "SERVER", "ENDPOINT")


def state_of(status: Status) -> str:
    return source_pb2.SourceState.Name(status.state).removeprefix("SOURCE_STATE_")


def is_down(status: Status) -> bool:
    return status.state == source_pb2.SOURCE_STATE_DOWN


def is_remote(status: Status) -> bool:
    """Whether it can be read anew."""
    return status.kind != tool_pb2.TOOL_KIND_CORE


def print_sources(statuses: Iterable[Status], *, wide: bool) -> None:
    """A line each, then why some are not READY."""
    shown = list(statuses)
    now_s = time.time()
    headings = _HEADINGS + (_WIDE if wide else ())
    print_table(headings, (_row(status, now_s) + (_wide(status) if wide else ()) for status in shown), is_cut=not wide)
    for status in shown:
        if status.message:
            click.secho(f"{status.source}: {revealed(status.message)}", fg=_COLOURS.get(state_of(status)))


def print_source(status: Status) -> None:
    """All of one."""
    state = state_of(status)
    click.secho(f"{status.source}  ", bold=True, nl=False)
    click.secho(state, fg=_COLOURS.get(state), bold=True)
    print_pairs((name, revealed(value)) for name, value in _facts(status) if value)
    said = [line for line in status.diagnostics if line.startswith(_SAID)]
    own = [line for line in status.diagnostics if not line.startswith(_SAID)]
    for heading, lines in (("its connection:", own), ("what its process last wrote; untrusted:", said)):
        if lines:
            note(f"\n{heading}")
        for line in lines:
            click.echo(f"  {revealed(line)}")


def line(status: Status) -> str:
    """What one reading gave."""
    told = f"{status.source}  {state_of(status)}  {_told_tools(status)}"
    if status.HasField("refresh_duration"):
        told += f"  in {_took(status)}"
    return f"{told}  {revealed(status.message)}".rstrip()


def kind_of(status: Status) -> str:
    return tool_pb2.ToolKind.Name(status.kind).removeprefix("TOOL_KIND_").lower()


def _row(status: Status, now_s: float) -> tuple[str, ...]:
    return (
        status.source,
        kind_of(status),
        state_of(status),
        _tools(status),
        revealed(status.protocol) or "–",
        _ago(status, now_s),
        _took(status),
        _until(status, now_s),
        _breaker(status) or "–",
    )


def _wide(status: Status) -> tuple[str, ...]:
    return _trust(status), revealed(status.server) or "–", revealed(status.endpoint) or "–"


def _facts(status: Status) -> Iterator[tuple[str, str]]:
    now_s = time.time()
    yield "why", status.message
    yield "kind", kind_of(status)
    yield from _advised_tools(status)
    yield "trust", _trust(status)
    yield "endpoint", status.endpoint
    yield "server", f"{status.server} (its own words)" if status.server else ""
    yield "protocol", status.protocol
    yield "read", f"{_ago(status, now_s)}, took {_took(status)}" if status.HasField("refreshed_at") else "never"
    yield "read next", _until(status, now_s) if status.HasField("next_refresh_at") else _when_asked(status)
    yield "breaker", _breaker(status)


def _tools(status: Status) -> str:
    return f"{status.tools} ({status.quarantined} quarantined)" if status.quarantined else str(status.tools)


def _told_tools(status: Status) -> str:
    told = counted(status.tools, "tool")
    return f"{told}, {status.quarantined} quarantined" if status.quarantined else told


def _advised_tools(status: Status) -> Iterator[tuple[str, str]]:
    """How many, and the commands that show them: what a list leaves out unless it is asked is not looked for there."""
    listing = f"`toolhub tools list --source {status.source}"
    told = _told_tools(status)
    yield "tools", f"{told}; {listing}` names them" if status.tools > status.quarantined else told
    if status.quarantined:
        yield "", f"{listing} --state quarantined` says why of each that is quarantined"
        yield "", f"`toolhub pins list --source {status.source}` shows what waits for a decision"


def _when_asked(status: Status) -> str:
    """Of a source that is not read by itself."""
    if not is_remote(status):
        return ""
    if status.state == source_pb2.SOURCE_STATE_DISABLED:
        return "not while it is switched off"
    return f"on `toolhub sources refresh {status.source}`" if is_down(status) else ""


def _trust(status: Status) -> str:
    return source_pb2.SourceTrust.Name(status.trust).removeprefix("SOURCE_TRUST_").lower().replace("_", "-")


def _breaker(status: Status) -> str:
    if status.breaker == source_pb2.BREAKER_STATE_UNSPECIFIED:
        return ""
    return source_pb2.BreakerState.Name(status.breaker).removeprefix("BREAKER_STATE_").lower().replace("_", "-")


def _took(status: Status) -> str:
    if not status.HasField("refresh_duration"):
        return "–"
    took_ms = status.refresh_duration.ToMicroseconds() / 1_000
    return f"{took_ms / 1_000:.1f} s" if took_ms >= 1_000 else f"{took_ms:.0f} ms"


def _ago(status: Status, now_s: float) -> str:
    if not status.HasField("refreshed_at"):
        return "never" if is_remote(status) else "–"
    return f"{_span(now_s - status.refreshed_at.ToMilliseconds() / 1_000)} ago"


def _until(status: Status, now_s: float) -> str:
    if not status.HasField("next_refresh_at"):
        return "–"
    return f"in {_span(status.next_refresh_at.ToMilliseconds() / 1_000 - now_s)}"


def _span(seconds: float) -> str:
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
