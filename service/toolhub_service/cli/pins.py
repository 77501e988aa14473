"""`toolhub pins …`: which remote definitions were seen, how they changed, and what is decided about them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from toolhub.v1 import approval_pb2, pin_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.cli.connection import Connection, HubRefused, connected_by, connection_options
from toolhub_service.cli.output import json_option, message_as_json, note, print_json, wants_json
from toolhub_service.cli.pin_asking import decide, is_pending, listed, the_one, whole
from toolhub_service.cli.pin_view import line, print_pin, print_pins, state_of
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.source_completion import complete_pinned, complete_source

_EVERY = "all"
_STATES = ("pending", "approved", "rejected", "superseded")

digest_option = click.option("--digest", default="", help="Of the definition meant, 8 characters of it at least.")
comment_option = click.option("-m", "--comment", default="", help="Why; kept with the pin and in the audit log.")
source_option = click.option("--source", default="", shell_complete=complete_source, help="Only this source.")


@click.group(cls=SuggestingGroup)
def pins() -> None:
    """Definitions of remote tools: see which changed since they were approved, and accept or reject them."""


@pins.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*_STATES, _EVERY), case_sensitive=False),
    default=("pending",),
    show_default=True,
    help="Only pins in this state; may be given several times.",
)
@source_option
@click.option("--tool", default="", help="Only this tool; a glob such as 'github/get_*' is welcome.")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@json_option
@connection_options
def list_pins(states: tuple[str, ...], source: str, tool: str, count: int, as_json: bool, **options: Any) -> None:
    """What waits for a decision, newest first; with --state all, everything that was seen.

    \b
    Examples:
      toolhub pins list
      toolhub pins list --state all --source github --json
    """
    where = pb.ListPinsRequest(source=source, tool=tool, states=_numbers(states))
    with connected_by(options) as connection:
        found, total = listed(connection, where, count)
    if wants_json(as_json):
        print_json({"pins": [message_as_json(pin) for pin in found], "totalSize": total})
        return
    if not found:
        note("Nothing waits for a decision" if states == ("pending",) else "No pin fits")
        return
    print_pins(found)
    shown = f"{len(found)} of {total}" if total > len(found) else str(total)
    note(f"{shown}; `toolhub pins diff TOOL` shows what changed")


@pins.command()
@click.argument("tool", shell_complete=complete_pinned)
@digest_option
@json_option
@connection_options
def diff(tool: str, digest: str, as_json: bool, **options: Any) -> None:
    """What looks wrong with a definition of TOOL, and how it differs from the approved one.

    Without --digest it is the newest that waits for a decision, else the newest there is.

    \b
    Example:
      toolhub pins diff github/create_issue
    """
    with connected_by(options) as connection:
        pin = the_one(connection, tool, digest)
    if wants_json(as_json):
        print_json(message_as_json(pin))
    else:
        print_pin(pin)


@pins.command()
@click.argument("tool", required=False, default="", shell_complete=complete_pinned)
@digest_option
@comment_option
@click.option("--all", "is_all", is_flag=True, help="Every definition of --source that waits for a decision.")
@source_option
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask on the terminal.")
@json_option
@connection_options
def accept(
    tool: str, digest: str, comment: str, is_all: bool, source: str, is_sure: bool, as_json: bool, **options: Any
) -> None:
    """Let TOOL be called as it is defined now. The definition approved before is superseded.

    Without --digest the difference is shown and you are asked; where there is no terminal, --yes says that you have
    looked. Exactly the definition that was shown is accepted: one that changed meanwhile waits on.

    \b
    Examples:
      toolhub pins accept github/create_issue
      toolhub pins accept github/create_issue --digest 3f9a51c07be2 -m "reviewed in the change of Tuesday"
      toolhub pins accept --all --source github
    """
    with connected_by(options) as connection:
        found = _newest_of_each(_meant(connection, tool, digest, source, is_all=is_all))
        if not is_sure and not digest and found:
            _confirm(found, can_ask=sys.stdin.isatty() and not wants_json(as_json))
        _decide(connection, found, approval_pb2.DECISION_APPROVE, comment, as_json)


@pins.command()
@click.argument("tool", required=False, default="", shell_complete=complete_pinned)
@digest_option
@comment_option
@click.option("--all", "is_all", is_flag=True, help="Every definition of --source that waits for a decision.")
@source_option
@json_option
@connection_options
def reject(tool: str, digest: str, comment: str, is_all: bool, source: str, as_json: bool, **options: Any) -> None:
    """Keep TOOL from being called as it is defined now; one that was accepted is taken back by its --digest.

    \b
    Examples:
      toolhub pins reject github/create_issue -m "it asks for the whole conversation"
      toolhub pins reject --all --source github
    """
    with connected_by(options) as connection:
        found = _meant(connection, tool, digest, source, is_all=is_all)
        _decide(connection, found, approval_pb2.DECISION_REJECT, comment, as_json)


def _numbers(states: tuple[str, ...]) -> list[pin_pb2.PinState.ValueType]:
    names = [] if _EVERY in states else states
    return [pin_pb2.PinState.Value(f"PIN_STATE_{name.upper()}") for name in names]


def _meant(connection: Connection, tool: str, digest: str, source: str, *, is_all: bool) -> list[pin_pb2.Pin]:
    """What is to be decided, whole. Raises click.UsageError, or HubRefused when a tool has nothing that waits."""
    if is_all == bool(tool):
        raise click.UsageError("Name a TOOL, or give --all --source SOURCE.")
    if is_all:
        if not source or digest:
            raise click.UsageError("--all goes with --source, and without --digest.")
        return whole(connection, pb.ListPinsRequest(source=source, states=[pin_pb2.PIN_STATE_PENDING]))
    pin = the_one(connection, tool, digest)
    if not digest and not is_pending(pin):
        told = state_of(pin).lower()
        raise HubRefused(f"{tool} has nothing that waits: it is {told} as {pin.digest[:12]}; --digest decides anew")
    return [pin]


def _newest_of_each(found: Sequence[pin_pb2.Pin]) -> list[pin_pb2.Pin]:
    """One for each tool, of pins newest first: accepting an older one afterwards would take the newest back."""
    return list({pin.tool: pin for pin in reversed(found)}.values())


def _confirm(found: Sequence[pin_pb2.Pin], *, can_ask: bool) -> None:
    """Shows what would be accepted and asks. A no is no decision: the pins stay as they are."""
    if not can_ask:
        raise click.UsageError("There is no terminal to ask on: look with `toolhub pins diff`, then --digest or --yes.")
    for pin in found:
        print_pin(pin)
        click.echo()
    asked = "Let it be called so?" if len(found) == 1 else f"Let these {len(found)} be called so?"
    if not click.confirm(asked, default=False, err=True):
        raise click.ClickException("Nothing was decided; `toolhub pins reject TOOL` says no.")


def _decide(
    connection: Connection,
    found: Sequence[pin_pb2.Pin],
    decision: approval_pb2.Decision.ValueType,
    comment: str,
    as_json: bool,
) -> None:
    decided = []
    for pin in found:
        decided.append(decide(connection, pin, decision, comment))
        if not wants_json(as_json):
            click.echo(line(decided[-1]))
    if wants_json(as_json):
        print_json({"pins": [message_as_json(pin) for pin in decided]})
    elif not decided:
        note("Nothing waits for a decision")
