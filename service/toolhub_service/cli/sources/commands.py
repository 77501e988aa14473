"""`toolhub sources …`: where tools come from, and the state of each source."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import click
import grpc

from toolhub.v1 import credential_service_pb2, source_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.cli.completion import complete_source
from toolhub_service.cli.connection.client import Connection, HubRefused, connect_by_options, connection_options
from toolhub_service.cli.credentials import granted_scopes, log_in, login_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.sources.adding import add
from toolhub_service.cli.sources.files import check, remove
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    enum_name,
    footnote,
    is_wide,
    json_option,
    message_as_json,
    note,
    print_answer,
    print_json,
    print_line,
    print_pairs,
    print_table,
    seconds_since,
    span,
    style,
    text_option,
    wants_json,
)
from toolhub_service.registry.names import CORE_NAMESPACE

# A source's own texts and its process's output are untrusted, and escaped for the terminal.

Status = source_pb2.SourceStatus

_COLOURS = {"READY": "green", "PARTIAL": "yellow", "PENDING": "yellow", "NEEDS_LOGIN": "yellow", "DOWN": "red"}
_HEADINGS = ("SOURCE", "KIND", "STATE", "TOOLS", "PROTOCOL", "READ", "TOOK", "NEXT", "BREAKER")
# Prefixes of diagnostics that a source's process wrote; all others come from the hub.
_PROCESS_OUTPUT = ("stderr: ", "stdout: ")
_NEXT_TRY = "next try: "
_WIDE = ("TRUST", "SERVER", "ENDPOINT", "WHY")


def is_down(status: Status) -> bool:
    return status.state == source_pb2.SOURCE_STATE_DOWN


def is_unread(status: Status) -> bool:
    """Return whether the last attempt to read it has failed, for whatever reason."""
    return is_down(status) or status.state == source_pb2.SOURCE_STATE_NEEDS_LOGIN


def is_remote(status: Status) -> bool:
    """Return whether it can be refreshed."""
    return status.kind != tool_pb2.TOOL_KIND_CORE


def print_sources(statuses: Iterable[Status], *, wide: bool) -> None:
    """Print a line for each, then why some are not READY: the reason, the last output, when it is retried.

    In a pipe standard output has only the lines, and standard error the rest.
    """
    shown, is_pipe = list(statuses), not sys.stdout.isatty()
    headings = _HEADINGS + (_WIDE if wide else ())
    print_table(headings, (_row(status, wide=wide) for status in shown), is_cut=not wide)
    for status in shown:
        if status.message:
            colour = _COLOURS.get(enum_name(status, "state"))
            print_line(style(f"{status.source}: {status.message}", fg=colour), err=is_pipe)
        if is_down(status):
            output = [line for line in status.diagnostics if line.startswith(_PROCESS_OUTPUT)]
            tries = [line.removeprefix(_NEXT_TRY) for line in status.diagnostics if line.startswith(_NEXT_TRY)]
            tries = [f"next connection attempt: {when}" for when in tries]
            for line in (*output[-1:], *tries):
                print_line(f"  {line}", err=is_pipe)


def print_source(status: Status) -> None:
    """Print one source in full."""
    state = enum_name(status, "state")
    print_line(style(f"{status.source}  ", bold=True), nl=False)
    print_line(style(state, fg=_COLOURS.get(state), bold=True))
    print_pairs((name, value) for name, value in _facts(status) if value)
    output = [line for line in status.diagnostics if line.startswith(_PROCESS_OUTPUT)]
    own = [line for line in status.diagnostics if not line.startswith(_PROCESS_OUTPUT)]
    for heading, lines in (("connection:", own), ("last output of its process (untrusted):", output)):
        if lines:
            note(f"\n{heading}")
        for line in lines:
            print_line(f"  {line}")


def line(status: Status) -> str:
    """The outcome of one refresh."""
    took = f"  in {_took(status)}" if status.HasField("refresh_duration") else ""
    shown = f"{status.source}  {enum_name(status, 'state')}  {_tool_counts(status)}{took}"
    return f"{shown}  {status.message}".rstrip()


def _row(status: Status, *, wide: bool) -> tuple[str, ...]:
    quarantined = f" ({status.quarantined} quarantined)" if status.quarantined else ""
    row = (
        status.source,
        enum_name(status, "kind").lower(),
        enum_name(status, "state"),
        f"{status.tools}{quarantined}",
        status.protocol or "–",
        _ago(status),
        _took(status),
        _until(status),
        _breaker(status) or "–",
    )
    texts = (status.server, status.endpoint, status.message)
    return (*row, _trust(status), *(text or "–" for text in texts)) if wide else row


def _facts(status: Status) -> Iterator[tuple[str, str]]:
    yield "why", status.message
    yield from (("type" if not at else "or", command) for at, command in enumerate(status.login_commands))
    yield "kind", enum_name(status, "kind").lower()
    yield from _tool_facts(status)
    yield "trust", _trust(status)
    yield "endpoint", status.endpoint
    yield "server", f"{status.server} (as it calls itself)" if status.server else ""
    yield "protocol", status.protocol
    yield "last read", f"{_ago(status)}, took {_took(status)}" if status.HasField("refreshed_at") else "never"
    yield "next read", _until(status) if status.HasField("next_refresh_at") else _when_asked(status)
    yield "breaker", _breaker(status)


def _tool_counts(status: Status) -> str:
    quarantined = f", {status.quarantined} quarantined" if status.quarantined else ""
    return count_text(status.tools, "tool") + quarantined


def _tool_facts(status: Status) -> Iterator[tuple[str, str]]:
    """Yield how many, and the commands that list them: `tools list` omits quarantined tools by default."""
    listing = f"`toolhub tools list --source {status.source}"
    counts = _tool_counts(status)
    yield "tools", f"{counts}; {listing}` lists them" if status.tools > status.quarantined else counts
    if status.quarantined:
        yield "", f"{listing} --state quarantined` says why each is quarantined"
        yield "", f"`toolhub pins list --source {status.source}` shows what waits for a decision"


def _when_asked(status: Status) -> str:
    """Return when a source is read that is not refreshed on a schedule."""
    if not is_remote(status):
        return ""
    if status.state == source_pb2.SOURCE_STATE_DISABLED:
        return "not while it is disabled"
    return f"on `toolhub sources refresh {status.source}`" if is_down(status) else ""


def _trust(status: Status) -> str:
    return enum_name(status, "trust").lower().replace("_", "-")


def _breaker(status: Status) -> str:
    if status.breaker == source_pb2.BREAKER_STATE_UNSPECIFIED:
        return ""
    return enum_name(status, "breaker").lower().replace("_", "-")


def _took(status: Status) -> str:
    if not status.HasField("refresh_duration"):
        return "–"
    took_ms = status.refresh_duration.ToMicroseconds() / 1_000
    return f"{took_ms / 1_000:.1f} s" if took_ms >= 1_000 else f"{took_ms:.0f} ms"


def _ago(status: Status) -> str:
    if not status.HasField("refreshed_at"):
        return "never" if is_remote(status) else "–"
    return f"{span(seconds_since(status.refreshed_at))} ago"


def _until(status: Status) -> str:
    return f"in {span(-seconds_since(status.next_refresh_at))}" if status.HasField("next_refresh_at") else "–"


# Sources that are refreshed at the same time.
_AT_ONCE = 8


@click.group(cls=SuggestingGroup)
def sources() -> None:
    """List, show, add, check, refresh and remove sources: servers and programs that tools come from."""


@sources.command("list")
@click.option("--wide", is_flag=True, help="Show trust, server, endpoint and why one is not ready as well.")
@text_option
@connection_options
def list_sources(wide: bool, as_json: bool, **options: Any) -> None:
    """List the sources: state, tools, last and next refresh, circuit breaker, and why one is not ready.

    \b
    Examples:
      toolhub sources list
      toolhub sources list -o json | jq -r '.sources[] | select(.state == "SOURCE_STATE_DOWN") | .source'
    """
    with connect_by_options(options) as connection:
        found = _list_sources(connection)
    if wants_json(as_json):
        print_json({"sources": [message_as_json(status) for status in found]})
        return
    print_sources(found, wide=wide or is_wide())
    if not any(is_remote(status) for status in found):
        footnote("No source is configured. `toolhub sources add --help` shows how to add one.")
    else:
        footnote("`toolhub sources show NAME` shows one in full.")


@sources.command()
@click.argument("name", shell_complete=complete_source)
@json_option
@connection_options
def show(name: str, as_json: bool, **options: Any) -> None:
    """Show one source: its state, its connection, and the last output of its process.

    \b
    Example:
      toolhub sources show github
    """
    with connect_by_options(options) as connection:
        status = _find_status(_list_sources(connection), name)
    print_answer(status, as_json, print_source)


@sources.command()
@click.argument("names", nargs=-1, metavar="[NAME…]", shell_complete=complete_source)
@text_option
@connection_options
def refresh(names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Read the tools of the named sources again, or of all sources; exit 1 when one cannot be read.

    The hub reloads sources.yaml first, so it finds sources that were just added.

    \b
    Examples:
      toolhub sources refresh
      toolhub sources refresh github files --timeout 120
    """
    with connect_by_options(options) as connection:
        found: list[Status] = []
        for status in _refresh_sources(connection, list(dict.fromkeys(names)) or _configured_names(connection)):
            found.append(status)
            if not wants_json(as_json):
                print_line(style(line(status), fg="red" if is_unread(status) else None))
    if wants_json(as_json):
        found.sort(key=lambda status: status.source)
        print_json({"sources": [message_as_json(status) for status in found]})
    elif not found:
        footnote("No source is configured. `toolhub sources add --help` shows how to add one.")
    if any(is_unread(status) for status in found):
        sys.exit(EXIT_REFUSED)


@sources.command()
@click.argument("name", shell_complete=complete_source)
@login_options
@connection_options
def login(name: str, no_browser: bool, paste: bool, **options: Any) -> None:
    """Log the source NAME in at its server's authorization server, in a browser.

    The hub keeps the tokens, reads the tools with them, and sends them with calls of callers without a credential of
    their own: the server sees these as calls of the account that logged in. It needs the role operator.

    \b
    Example:
      toolhub sources login crm
    """
    with connect_by_options(options) as connection:
        _refresh(connection, CORE_NAMESPACE)  # a source that was just added is in the hub's file only
        kept = log_in(connection, name, opens_browser=not (no_browser or paste), paste=paste, for_source=True)
        note(f"Logged in{granted_scopes(kept)}. The tools of {name} are read with this login.")
        for status in _refresh(connection, name):
            print_line(style(line(status), fg=_COLOURS.get(enum_name(status, "state"))))


@sources.command()
@click.argument("name", shell_complete=complete_source)
@connection_options
def logout(name: str, **options: Any) -> None:
    """Remove the login of the source NAME, and revoke it at its authorization server if the server supports that.

    \b
    Example:
      toolhub sources logout crm
    """
    with connect_by_options(options) as connection:
        request = credential_service_pb2.RevokeCredentialRequest(source=name, of_source=True)
        answer = connection.call(connection.credentials.RevokeCredential, request)
    note(f"Removed{' and revoked at its authorization server' if answer.revoked_upstream else ''}.")


for command in (add, remove, check):
    sources.add_command(command)


def _list_sources(connection: Connection) -> list[Status]:
    return list(connection.call(connection.registry.ListSources, pb.ListSourcesRequest()).sources)


def _find_status(found: Sequence[Status], name: str) -> Status:
    for status in found:
        if status.source == name:
            return status
    known = ", ".join(status.source for status in found)
    raise HubRefused(f"There is no source {name!r}. Sources of this hub: {known}")


def _configured_names(connection: Connection) -> list[str]:
    """Return the names of all configured sources, including those that were just added to the file."""
    _refresh(connection, CORE_NAMESPACE)  # reads no tools, but makes the hub reload its file first
    return [status.source for status in _list_sources(connection) if is_remote(status)]


def _refresh_sources(connection: Connection, names: Sequence[str]) -> Iterator[Status]:
    """Yield the sources in the order in which they finish, so that a slow one does not delay the others.

    Raises the first grpc.RpcError at the end.
    """
    failed: grpc.RpcError | None = None
    # One request each: the state of a quick source is shown while a slow one is still being read.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for done in as_completed([threads.submit(_refresh, connection, name) for name in names]):
            try:
                yield from done.result()
            except grpc.RpcError as error:
                failed = failed or error
    if failed is not None:
        raise failed


def _refresh(connection: Connection, name: str) -> Sequence[Status]:
    request = pb.RefreshSourcesRequest(sources=[name])
    return list(connection.call(connection.registry.RefreshSources, request).sources)
