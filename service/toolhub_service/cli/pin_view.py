"""Pins for people: what changed in a remote definition, what looks wrong with it, and what was decided.

All of a definition is a stranger's words, written to be read by a model: characters that show nothing are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime

import click

from toolhub.v1 import pin_pb2
from toolhub_service.cli.output import note, print_pairs, print_prose, print_table, revealed

Pin = pin_pb2.Pin

_COLOURS = {"PENDING": "yellow", "APPROVED": "green", "REJECTED": "red", "SUPERSEDED": "blue"}
_HEADINGS = ("TOOL", "STATE", "CHANGE", "DIGEST", "SEEN", "FINDINGS")
_LINE_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_DIGEST_CHARS = 12
_DEFINITION_LINES_MAX = 400
_LINE_MAX_CHARS = 2_000


def state_of(pin: Pin) -> str:
    return pin_pb2.PinState.Name(pin.state).removeprefix("PIN_STATE_")


def change_of(pin: Pin) -> str:
    if pin.change == pin_pb2.PIN_CHANGE_UNSPECIFIED:
        return "–"
    told = pin_pb2.PinChange.Name(pin.change).removeprefix("PIN_CHANGE_").lower()
    return f"{told} from {revealed(pin.renamed_from)}" if pin.renamed_from else told


def print_pins(pins: Iterable[Pin]) -> None:
    print_table(_HEADINGS, (_row(pin) for pin in pins), is_cut=True)


def print_pin(pin: Pin) -> None:
    """All of one: findings first, then the difference, or the definition when there is nothing to compare it with."""
    state = state_of(pin)
    click.secho(f"{revealed(pin.tool)}  ", bold=True, nl=False)
    click.secho(state, fg=_COLOURS.get(state), bold=True)
    for finding in pin.findings:
        print_prose(revealed(finding), "  ", "!", "red")
    print_pairs(_facts(pin))
    if pin.diff:
        note("\nwhat has changed; both sides are the source's own words, untrusted:")
        _print_diff(pin.diff)
    elif pin.definition_json:
        same = "" if not pin.previous_digest else ", which equals the approved one"
        note(f"\nthe definition{same}; the source's own words, untrusted:")
        _print_definition(pin)
    else:
        note("\nthe definition is too large to be shown")


def line(pin: Pin) -> str:
    """What has become of one."""
    return f"{revealed(pin.tool)}  {state_of(pin)}  {pin.digest[:_DIGEST_CHARS]}"


def _row(pin: Pin) -> tuple[str, ...]:
    seen = f"{pin.seen_at.ToDatetime():%Y-%m-%d %H:%M}"
    findings = "; ".join(revealed(finding) for finding in pin.findings) or "–"
    return revealed(pin.tool), state_of(pin), change_of(pin), pin.digest[:_DIGEST_CHARS], seen, findings


def _facts(pin: Pin) -> Iterator[tuple[str, str]]:
    yield "source", revealed(pin.source)
    if pin.change:
        yield "change", change_of(pin)
    yield "digest", pin.digest
    if pin.previous_digest:
        yield "approved", pin.previous_digest
    yield "first seen", _at(pin.seen_at.ToDatetime())
    if pin.decided_by:
        yield "decided by", f"{revealed(pin.decided_by)} at {_at(pin.decided_at.ToDatetime())}"
    if pin.comment:
        yield "comment", revealed(pin.comment)


def _print_diff(diff: str) -> None:
    for text in revealed(diff).split("\n"):
        is_heading = text.startswith(("+++", "---"))
        click.secho(_short(text), fg=None if is_heading else _LINE_COLOURS.get(text[:1]), bold=is_heading)


def _print_definition(pin: Pin) -> None:
    text = json.dumps(json.loads(pin.definition_json), indent=2, sort_keys=True, ensure_ascii=False)
    lines = revealed(text).splitlines()
    for told in lines[:_DEFINITION_LINES_MAX]:
        click.echo(_short(told))
    if len(lines) > _DEFINITION_LINES_MAX:
        note(f"… {len(lines) - _DEFINITION_LINES_MAX:,} more lines (use --json)")


def _short(text: str) -> str:
    if len(text) <= _LINE_MAX_CHARS:
        return text
    return f"{text[:_LINE_MAX_CHARS]}… {len(text) - _LINE_MAX_CHARS:,} more characters"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
