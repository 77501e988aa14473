"""`toolhub pins …`: review the definitions of remote tools that changed; accept or reject them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from toolhub.v1 import approval_pb2, pin_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.cli.completion import complete_pinned, complete_source
from toolhub_service.cli.connection.client import Connection, HubRefused, connect_by_options, connection_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    count_of_total,
    enum_name,
    footnote,
    json_option,
    message_as_json,
    note,
    print_answer,
    print_json,
    print_line,
    print_pairs,
    print_prose,
    print_table,
    style,
    text_option,
    utc,
    wants_json,
)
from toolhub_service.cli.terminal.questions import confirm

# A remote definition is untrusted text, written for a model to read: its invisible characters are named.

Pin = pin_pb2.Pin

_COLOURS = {"PENDING": "yellow", "APPROVED": "green", "REJECTED": "red", "SUPERSEDED": "blue"}
_HEADINGS = ("TOOL", "STATE", "CHANGE", "DIGEST", "SEEN", "FINDINGS")
_LINE_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_DIGEST_CHARS = 12
_DEFINITION_LINES_MAX = 400
_LINE_MAX_CHARS = 2_000


def state_of(pin: Pin) -> str:
    return enum_name(pin, "state")


def change_of(pin: Pin) -> str:
    if pin.change == pin_pb2.PIN_CHANGE_UNSPECIFIED:
        return "–"
    change = enum_name(pin, "change").lower()
    return f"{change} from {pin.renamed_from}" if pin.renamed_from else change


def print_pin(pin: Pin) -> None:
    """Print one pin: findings, facts, then the difference, or the definition when there is nothing to compare."""
    state = state_of(pin)
    print_line(style(f"{pin.tool}  ", bold=True), nl=False)
    print_line(style(state, fg=_COLOURS.get(state), bold=True))
    for finding in pin.findings:
        print_prose(finding, "  ", "!", "red")
    print_pairs(_facts(pin))
    if pin.diff:
        note("\nchanges (both sides are untrusted text of the source):")
        _print_diff(pin.diff)
    elif pin.definition_json:
        same = "" if not pin.previous_digest else ", equal to the approved one"
        note(f"\ndefinition{same} (untrusted text of the source):")
        _print_definition(pin)
    else:
        note("\nThe definition is too large to be shown.")


def _row(pin: Pin) -> tuple[str, ...]:
    seen = f"{pin.seen_at.ToDatetime():%Y-%m-%d %H:%M}"
    findings = "; ".join(finding for finding in pin.findings) or "–"
    return pin.tool, state_of(pin), change_of(pin), pin.digest[:_DIGEST_CHARS], seen, findings


def _facts(pin: Pin) -> Iterator[tuple[str, str]]:
    yield "source", pin.source
    if pin.change:
        yield "change", change_of(pin)
    yield "digest", pin.digest
    if pin.previous_digest:
        yield "approved", pin.previous_digest
    yield "first seen", utc(pin.seen_at)
    if pin.decided_by:
        yield "decided by", f"{pin.decided_by} at {utc(pin.decided_at)}"
    if pin.comment:
        yield "comment", pin.comment


def _print_diff(diff: str) -> None:
    for text in diff.split("\n"):
        is_heading = text.startswith(("+++", "---"))
        print_line(style(_short(text), fg=None if is_heading else _LINE_COLOURS.get(text[:1]), bold=is_heading))


def _print_definition(pin: Pin) -> None:
    text = json.dumps(json.loads(pin.definition_json), indent=2, sort_keys=True, ensure_ascii=False)
    # By every line break of Unicode: a definition must not imitate a line of the command itself.
    lines = text.splitlines()
    for shown in lines[:_DEFINITION_LINES_MAX]:
        print_line(_short(shown))
    if len(lines) > _DEFINITION_LINES_MAX:
        note(f"… {len(lines) - _DEFINITION_LINES_MAX:,} more lines (use --json)")


def _short(text: str) -> str:
    if len(text) <= _LINE_MAX_CHARS:
        return text
    return f"{text[:_LINE_MAX_CHARS]}… {len(text) - _LINE_MAX_CHARS:,} more characters"


_DIGEST_MIN_CHARS = 8


def in_full(connection: Connection, where: pb.ListPinsRequest) -> list[pin_pb2.Pin]:
    """Return all that match, newest first, with definition and difference."""
    where.view = tool_pb2.TOOL_VIEW_FULL
    return connection.newest(connection.registry.ListPins, where, "pins", None)[0]


def pin_of(connection: Connection, tool: str, digest: str) -> pin_pb2.Pin:
    """Return the tool's pin with this digest prefix; without one the newest pending pin, else the newest.

    Raises HubRefused.
    """
    if digest and len(digest) < _DIGEST_MIN_CHARS:
        raise HubRefused(f"--digest needs at least {_DIGEST_MIN_CHARS} characters.")
    pins = [pin for pin in in_full(connection, pb.ListPinsRequest(tool=tool)) if pin.tool == tool]
    fitting = [pin for pin in pins if pin.digest.startswith(digest)]
    if not pins:
        raise HubRefused(f"{tool!r} has no pin. `toolhub pins list --state all` lists all pins.")
    if not fitting:
        raise HubRefused(
            f"{tool} has no definition {digest}. Its digests: {', '.join(pin.digest[:12] for pin in pins)}"
        )
    if digest and len(fitting) > 1:
        raise HubRefused(f"{digest} matches several digests. Give more characters.")
    return next((pin for pin in fitting if is_pending(pin)), fitting[0])


def is_pending(pin: pin_pb2.Pin) -> bool:
    return pin.state == pin_pb2.PIN_STATE_PENDING


_EVERY = "all"
_STATES = ("pending", "approved", "rejected", "superseded")

digest_option = click.option("--digest", default="", help="Digest of the definition, at least its first 8 characters.")
comment_option = click.option("-m", "--comment", default="", help="Reason, stored with the pin and in the audit log.")
all_option = click.option("--all", "is_all", is_flag=True, help="All pending definitions of --source.")
source_option = click.option("--source", default="", shell_complete=complete_source, help="Only this source.")


@click.group(cls=SuggestingGroup)
def pins() -> None:
    """Review definitions of remote tools that changed since they were approved; accept or reject them."""


@pins.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*_STATES, _EVERY), case_sensitive=False),
    default=("pending",),
    show_default=True,
    help="Only pins in this state; repeatable.",
)
@source_option
@click.option("--tool", default="", help="Only this tool, or a glob such as 'github/get_*'.")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number to show.")
@text_option
@connection_options
def list_pins(states: tuple[str, ...], source: str, tool: str, count: int, as_json: bool, **options: Any) -> None:
    """List pending definitions, newest first; with --state all, every definition seen.

    \b
    Examples:
      toolhub pins list
      toolhub pins list --state all --source github -o json
    """
    names = () if _EVERY in states else states
    numbers = [pin_pb2.PinState.Value(f"PIN_STATE_{name.upper()}") for name in names]
    where = pb.ListPinsRequest(source=source, tool=tool, states=numbers)
    with connect_by_options(options) as connection:
        found, total = connection.newest(connection.registry.ListPins, where, "pins", count)
    if wants_json(as_json):
        print_json({"pins": [message_as_json(pin) for pin in found], "totalSize": total})
        return
    if not found:
        footnote("No definition is pending." if states == ("pending",) else "No pin matches.")
        return
    print_table(_HEADINGS, (_row(pin) for pin in found), is_cut=True)
    footnote(f"{count_of_total(len(found), total, 'definition')}. To see what changed: toolhub pins diff TOOL")


@pins.command()
@click.argument("tool", shell_complete=complete_pinned)
@digest_option
@json_option
@connection_options
def diff(tool: str, digest: str, as_json: bool, **options: Any) -> None:
    """Show how the definition of TOOL differs from the approved one, and what in it looks dangerous.

    Without --digest it shows the newest pending definition, else the newest one.

    \b
    Example:
      toolhub pins diff github/create_issue
    """
    with connect_by_options(options) as connection:
        pin = pin_of(connection, tool, digest)
    print_answer(pin, as_json, print_pin)


@pins.command()
@click.argument("tool", required=False, default="", shell_complete=complete_pinned)
@digest_option
@comment_option
@all_option
@source_option
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@json_option
@connection_options
def accept(
    tool: str, digest: str, comment: str, is_all: bool, source: str, is_sure: bool, as_json: bool, **options: Any
) -> None:
    """Accept the current definition of TOOL, so that it may be called; it replaces the approved one.

    Without --digest the command shows the difference and asks for confirmation; without a terminal it needs --yes.
    It accepts exactly the definition shown; one that changed meanwhile stays pending.

    \b
    Examples:
      toolhub pins accept github/create_issue
      toolhub pins accept github/create_issue --digest 3f9a51c07be2 -m "reviewed in the change of Tuesday"
      toolhub pins accept --all --source github
    """
    with connect_by_options(options) as connection:
        pending = _pins_to_decide(connection, tool, digest, source, is_all=is_all)
        # The newest pin of each tool: accepting an older one afterwards would replace the newest.
        found = list({pin.tool: pin for pin in reversed(pending)}.values())
        # With a digest the user names that exact definition, and has seen it.
        if not is_sure and not digest and found:
            _confirm(found, can_ask=sys.stdin.isatty() and not wants_json(as_json))
        _decide(connection, found, approval_pb2.DECISION_APPROVE, comment, as_json)


@pins.command()
@click.argument("tool", required=False, default="", shell_complete=complete_pinned)
@digest_option
@comment_option
@all_option
@source_option
@json_option
@connection_options
def reject(tool: str, digest: str, comment: str, is_all: bool, source: str, as_json: bool, **options: Any) -> None:
    """Reject the current definition of TOOL, so that it cannot be called. To revoke an accepted one, pass --digest.

    \b
    Examples:
      toolhub pins reject github/create_issue -m "it asks for the whole conversation"
      toolhub pins reject --all --source github
    """
    with connect_by_options(options) as connection:
        found = _pins_to_decide(connection, tool, digest, source, is_all=is_all)
        _decide(connection, found, approval_pb2.DECISION_REJECT, comment, as_json)


def _pins_to_decide(connection: Connection, tool: str, digest: str, source: str, *, is_all: bool) -> list[pin_pb2.Pin]:
    """Return the pins to decide, with definitions.

    Raises click.UsageError, or HubRefused when the tool has no pending pin.
    """
    if is_all == bool(tool):
        raise click.UsageError("Give a TOOL, or --all --source SOURCE.")
    if is_all:
        if not source or digest:
            raise click.UsageError("--all needs --source and excludes --digest.")
        return in_full(connection, pb.ListPinsRequest(source=source, states=[pin_pb2.PIN_STATE_PENDING]))
    pin = pin_of(connection, tool, digest)
    if not digest and not is_pending(pin):
        state = state_of(pin).lower()
        raise HubRefused(
            f"{tool} has no pending definition; {pin.digest[:12]} is {state}. To change that decision, pass --digest."
        )
    return [pin]


def _confirm(found: Sequence[pin_pb2.Pin], *, can_ask: bool) -> None:
    """Show what would be accepted and ask. Answering no decides nothing: the pins stay pending."""
    if not can_ask:
        raise click.UsageError(
            "Cannot ask for confirmation without a terminal. See `toolhub pins diff TOOL`, then pass --digest or --yes."
        )
    for pin in found:
        print_pin(pin)
        print_line()
    asked = "Accept this definition?" if len(found) == 1 else f"Accept these {len(found)} definitions?"
    if not confirm(asked):
        raise click.ClickException("Nothing was decided. To reject: `toolhub pins reject TOOL`.")


def _decide(
    connection: Connection,
    found: Sequence[pin_pb2.Pin],
    decision: approval_pb2.Decision.ValueType,
    comment: str,
    as_json: bool,
) -> None:
    decided = []
    for pin in found:
        # With the digest, so that the decision applies to exactly what was shown.
        request = pb.DecidePinRequest(
            source=pin.source, tool=pin.tool, digest=pin.digest, decision=decision, comment=comment
        )
        decided.append(connection.call(connection.registry.DecidePin, request).pin)
        if not wants_json(as_json):
            print_line(f"{pin.tool}  {state_of(decided[-1])}  {pin.digest[:_DIGEST_CHARS]}")
    if wants_json(as_json):
        print_json({"pins": [message_as_json(pin) for pin in decided]})
    elif not decided:
        note("No definition is pending.")
