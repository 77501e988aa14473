"""Approvals for people: what is asked, by whom, why, and how much time is left.

Arguments, purpose and comment come from models and people; they are marked as theirs and drive no terminal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import click
from google.protobuf import timestamp_pb2

from toolhub.v1 import approval_pb2
from toolhub_service.cli.approval_answers import describe_field, fields_of, schema_of
from toolhub_service.cli.output import note, print_pairs, print_prose, print_table, revealed

Approval = approval_pb2.Approval

_COLOURS = {"PENDING": "yellow", "APPROVED": "green", "REJECTED": "red", "EXPIRED": "red", "USED": "blue"}
_OPEN = ("PENDING", "APPROVED")
_ARGUMENT_LINES_MAX = 200
HEADINGS = ("APPROVAL", "STATE", "LEFT", "WHO", "TOOL", "ARGUMENTS")


def state_of(approval: Approval) -> str:
    return approval_pb2.ApprovalState.Name(approval.state).removeprefix("APPROVAL_STATE_")


def is_pending(approval: Approval) -> bool:
    return approval.state == approval_pb2.APPROVAL_STATE_PENDING


def is_open(approval: Approval) -> bool:
    """Whether it can still change."""
    return state_of(approval) in _OPEN


def time_left(approval: Approval) -> str:
    """Such as `42 min`; `–` when its time does not matter any more."""
    if not is_open(approval):
        return "–"
    left_s = approval.expires_at.ToMilliseconds() / 1_000 - time.time()
    if left_s <= 0:
        return "over"
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if left_s >= 2 * size_s:
            return f"{left_s / size_s:.0f} {unit}"
    return f"{left_s:.0f} s"


def row(approval: Approval) -> tuple[str, ...]:
    """Cells under `HEADINGS`; what its tool asks is told before the arguments."""
    args = " ".join(approval.args_summary_json.decode().split())
    if approval.HasField("question"):
        args = f"asks {' '.join(approval.question.message.split())!r} for {args}"
    id, who, tool = approval.approval_id, revealed(approval.principal), revealed(approval.tool)
    return id, state_of(approval), time_left(approval), who, tool, revealed(args)


def print_approvals(approvals: Iterable[Approval]) -> None:
    print_table(HEADINGS, (row(approval) for approval in approvals), is_cut=True)


def print_approval(approval: Approval, revealed_args_json: bytes = b"") -> None:
    """All of one; with the arguments as they were sent where these were revealed."""
    state = state_of(approval)
    click.secho(f"{approval.approval_id}  ", bold=True, nl=False)
    click.secho(state, fg=_COLOURS.get(state), bold=True)
    print_pairs(_facts(approval))
    if revealed_args_json:
        note("\nthe arguments as they were sent, known secrets told by their length; written by the caller:")
        click.echo("\n".join(_lines(revealed_args_json)))
    else:
        note("\nthe arguments, secrets told by their length; written by the caller:")
        click.echo(_arguments(approval))
    if approval.purpose:
        note("\nthe purpose, in the caller's own words; untrusted:")
        print_prose(revealed(approval.purpose))
    if approval.HasField("question"):
        _print_question(approval)


def line(approval: Approval) -> str:
    """One change of one approval."""
    state = state_of(approval)
    by = f"  by {approval.decided_by}" if approval.decided_by and state in ("APPROVED", "REJECTED") else ""
    said = f"  {approval.comment!r}" if approval.comment and (by or state == "EXPIRED") else ""
    mark = click.style(state.ljust(8), fg=_COLOURS.get(state))
    what = revealed(f"{approval.approval_id}  {approval.principal}  {approval.tool}{by}{said}")
    return f"{_latest(approval):%H:%M:%S}  {mark}  {what}"


def _print_question(approval: Approval) -> None:
    note("\nwhat the tool asks, in the tool's own words; untrusted:")
    print_prose(revealed(approval.question.message))
    schema = schema_of(approval)
    required = schema.get("required", ())
    for name, declared in fields_of(schema).items():
        click.echo("  " + describe_field(name, declared, is_required=name in required))
    if is_pending(approval):
        note("`approve ID --answer name=value` answers it, `deny ID` declines")


def _facts(approval: Approval) -> Iterator[tuple[str, str]]:
    yield "who asks", revealed(approval.principal)
    for name, whom in (("for agent", approval.agent_id), ("for user", approval.user_id)):
        if whom:
            yield name, revealed(whom)
    yield "tool", f"{approval.tool} {approval.tool_version}"
    yield "rule", f"{approval.rule_id}: {approval.reason}"
    if approval.covers_rule_id:
        yield "covers", f"rule {approval.covers_rule_id}, whose own approval this call has used up"
    yield "asked at", _at(approval.requested_at.ToDatetime())
    if is_open(approval):
        yield "time left", f"{time_left(approval)}, until {_at(approval.expires_at.ToDatetime())}"
    if approval.decided_by:
        yield "decided by", f"{approval.decided_by} at {_at(approval.decided_at.ToDatetime())}"
    if approval.comment:
        yield "comment" if approval.decided_by else "withdrawn", revealed(approval.comment)
    if approval.HasField("used_at"):
        yield "used at", _at(approval.used_at.ToDatetime())
    if approval.job_id:
        yield "job", f"{approval.job_id} waits for it" if is_open(approval) else approval.job_id
    yield "call", revealed(f"{approval.call_id} of request {approval.request_id}")
    yield "arguments", f"sha256 {approval.args_digest}"


def _arguments(approval: Approval) -> str:
    lines = _lines(approval.args_summary_json or b"{}")
    if len(lines) <= _ARGUMENT_LINES_MAX:
        return "\n".join(lines)
    left_out = f"… {len(lines) - _ARGUMENT_LINES_MAX:,} more lines (use --json)"
    return "\n".join([*lines[:_ARGUMENT_LINES_MAX], left_out])


def _lines(args_json: bytes) -> list[str]:
    return revealed(json.dumps(json.loads(args_json), ensure_ascii=False, indent=2)).splitlines()


def _latest(approval: Approval) -> datetime:
    """When it became what it is."""
    if state_of(approval) == "EXPIRED":
        return approval.expires_at.ToDatetime()
    for name in ("used_at", "decided_at"):
        if approval.HasField(name):
            stamp: timestamp_pb2.Timestamp = getattr(approval, name)
            return stamp.ToDatetime()
    return approval.requested_at.ToDatetime()


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
