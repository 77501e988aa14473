"""`toolhub approvals …`: what waits for a person, and the person's answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.cli.approval_answers import asked_answer, given_answer, schema_of
from toolhub_service.cli.approval_following import Following
from toolhub_service.cli.approval_view import (
    is_pending,
    line,
    print_approval,
    print_approvals,
    state_of,
)
from toolhub_service.cli.call_completion import complete_approval
from toolhub_service.cli.connection import Connection, connected_by, connection_options
from toolhub_service.cli.output import (
    json_option,
    message_as_json,
    note,
    print_json,
    print_json_line,
    revealed,
    wants_json,
)
from toolhub_service.cli.root import SuggestingGroup

_PAGE = 1_000
_STATES = ("pending", "approved", "rejected", "expired", "used")
_EVERY = "all"


@click.group(cls=SuggestingGroup)
def approvals() -> None:
    """See what waits for a person, and approve or deny it."""


@approvals.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*_STATES, _EVERY), case_sensitive=False),
    default=("pending",),
    show_default=True,
    help="Only approvals in this state; may be given several times.",
)
@click.option("--principal", default="", help="Only what this principal has asked for.")
@click.option("--tool", default="", help="Only this tool; a glob such as 'core/fs.*' is welcome.")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@json_option
@connection_options
def list_approvals(count: int, as_json: bool, **options: Any) -> None:
    """What waits for a decision, newest first; with --state all, everything there was.

    Who is no approver sees what was asked for under its own name.

    \b
    Examples:
      toolhub approvals list
      toolhub approvals list --state approved --state used --tool 'core/fs.*'
      toolhub approvals list --state all --principal research-agent --json
    """
    with connected_by(options) as connection:
        found, total = _listed(connection, _filter(options), count)
    if wants_json(as_json):
        print_json({"approvals": [message_as_json(approval) for approval in found], "totalSize": total})
        return
    if not found:
        note("Nothing waits for a decision" if options["states"] == ("pending",) else "No approval fits")
        return
    print_approvals(found)
    shown = f"{len(found)} of {total}" if total > len(found) else str(total)
    note(f"{shown}; `toolhub approvals show ID` tells all about one")


@approvals.command()
@click.argument("approval_id", metavar="ID", shell_complete=complete_approval)
@click.option("--reveal", is_flag=True, help="Show the whole arguments, but for known secrets; it is put on record.")
@json_option
@connection_options
def show(approval_id: str, reveal: bool, as_json: bool, **options: Any) -> None:
    """Who asks for what: the arguments (but for secrets), the rule, the reason, the caller's purpose, the time left.

    Characters that look like a credential are told by their length. Who may decide reads them with --reveal, while the
    approval is open; who has done so stands in the audit log.

    \b
    Examples:
      toolhub approvals show apr_018f2c9e5b7a3d41c6e0
      toolhub approvals show apr_018f2c9e5b7a3d41c6e0 --reveal
    """
    with connected_by(options) as connection:
        answer = _got(connection, approval_id, reveal=reveal)
    if reveal and not answer.revealed_args_json:
        raise click.ClickException("This hub reveals nothing: its version is older than this command's.")
    if not wants_json(as_json):
        print_approval(answer.approval, answer.revealed_args_json)
    elif reveal:
        click.echo(revealed(json.dumps(message_as_json(answer), ensure_ascii=False)))
    else:
        print_json(message_as_json(answer.approval))


@approvals.command()
@click.argument("approval_id", metavar="ID", shell_complete=complete_approval)
@click.option("-m", "--comment", default="", help="Why; kept in the audit log.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask on the terminal.")
@click.option("--answer", "words", multiple=True, metavar="NAME=VALUE", help="To what the tool asks; for each field.")
@click.option("--answer-json", "document", default="", metavar="JSON", help="The whole answer: JSON, @file or - .")
@json_option
@connection_options
def approve(
    approval_id: str, comment: str, is_sure: bool, words: tuple[str, ...], document: str, as_json: bool, **options: Any
) -> None:
    """Let the call run, once, exactly as it was shown; or answer what its tool asks.

    On a terminal the call is shown and you are asked first, field by field where the tool asks for more than a yes.
    What is left out of an answer is what the tool has declared as default.

    \b
    Examples:
      toolhub approvals approve apr_018f2c9e5b7a3d41c6e0
      toolhub approvals approve apr_018f2c9e5b7a3d41c6e0 --yes -m "agreed in the morning round"
      toolhub approvals approve apr_018f2c9e5b7a3d41c6e0 --answer colour=red --answer coats=2
    """
    with connected_by(options) as connection:
        asked = _get(connection, approval_id)
        answer = given_answer(words, document, schema_of(asked))
        if is_pending(asked) and not is_sure and sys.stdin.isatty():
            answer = _confirm(asked, as_json, answer)
        after = _decide(connection, asked, approval_pb2.DECISION_APPROVE, comment, answer)
    _print_decision(after, as_json)


@approvals.command()
@click.argument("approval_id", metavar="ID", shell_complete=complete_approval)
@click.option("-m", "--comment", default="", help="Why; the caller is told, and it is kept in the audit log.")
@json_option
@connection_options
def deny(approval_id: str, comment: str, as_json: bool, **options: Any) -> None:
    """Refuse the call; say why with -m, for the caller is told.

    \b
    Example:
      toolhub approvals deny apr_018f2c9e5b7a3d41c6e0 -m "not this folder; use reports/"
    """
    with connected_by(options) as connection:
        asked = _get(connection, approval_id)
        after = _decide(connection, asked, approval_pb2.DECISION_REJECT, comment)
    _print_decision(after, as_json)


@approvals.command()
@click.option("--tool", default="", help="Only this tool; a glob such as 'core/fs.*' is welcome.")
@json_option
@connection_options
def watch(tool: str, as_json: bool, **options: Any) -> None:
    """What waits, then each change as it happens, until interrupted. Goes on when the hub was started again.

    With --json one line a change; on a terminal a board with the time that is left.

    \b
    Examples:
      toolhub approvals watch
      toolhub approvals watch --json | while read -r line; do notify-send "$line"; done
    """
    with connected_by(options) as connection, suppress(KeyboardInterrupt):
        if wants_json(as_json):
            for approval in Following(connection, tool, lost=_told_lost):
                print_json_line(message_as_json(approval))
        else:
            _watch_board(connection, tool)


def _watch_board(connection: Connection, tool: str) -> None:
    from toolhub_service.cli.approval_board import Board

    with Board() as board:
        for approval in Following(connection, tool, lost=board.lost, found=board.found):
            board.show(approval)


def _told_lost(pause_s: float) -> None:
    note(f"the hub does not answer; asking again in {pause_s:.1f} s", err=True)


def _filter(options: dict[str, Any]) -> pb.ListApprovalsRequest:
    names = [] if _EVERY in options["states"] else options["states"]
    states = [approval_pb2.ApprovalState.Value(f"APPROVAL_STATE_{name.upper()}") for name in names]
    return pb.ListApprovalsRequest(states=states, principal=options["principal"], tool=options["tool"])


def _listed(
    connection: Connection, where: pb.ListApprovalsRequest, count: int
) -> tuple[list[approval_pb2.Approval], int]:
    """(the newest `count` that fit, how many fit)."""
    found: list[approval_pb2.Approval] = []
    for page in _pages(connection, where, count):
        found.extend(page.approvals)
        if len(found) >= count or not page.next_page_token:
            return found[:count], page.total_size
    return found, len(found)


def _pages(connection: Connection, where: pb.ListApprovalsRequest, count: int) -> Iterator[pb.ListApprovalsResponse]:
    where.page_size = min(count, _PAGE)
    while True:
        page = _stub(connection).ListApprovals(where, timeout=connection.timeout_s, metadata=connection.metadata)
        yield page
        where.page_token = page.next_page_token


def _get(connection: Connection, approval_id: str) -> approval_pb2.Approval:
    return _got(connection, approval_id).approval


def _got(connection: Connection, approval_id: str, *, reveal: bool = False) -> pb.GetApprovalResponse:
    request = pb.GetApprovalRequest(approval_id=approval_id, reveal=reveal)
    return _stub(connection).GetApproval(request, timeout=connection.timeout_s, metadata=connection.metadata)


def _decide(
    connection: Connection,
    asked: approval_pb2.Approval,
    decision: approval_pb2.Decision.ValueType,
    comment: str,
    answer_json: bytes = b"",
) -> approval_pb2.Approval:
    """The digest of what was shown goes with it: nobody agrees to anything else."""
    request = pb.DecideApprovalRequest(
        approval_id=asked.approval_id,
        decision=decision,
        comment=comment,
        args_digest=asked.args_digest,
        answer_json=answer_json,
    )
    answer = _stub(connection).DecideApproval(request, timeout=connection.timeout_s, metadata=connection.metadata)
    return answer.approval


def _confirm(asked: approval_pb2.Approval, as_json: bool, answer: bytes) -> bytes:
    """Shows the call and asks, also for the answer where none was given; the answer. A no is no decision: the approval
    stays as it is."""
    if wants_json(as_json):
        click.echo(line(asked), err=True)
    else:
        print_approval(asked)
        click.echo()
    if asked.HasField("question") and not answer:
        answer = asked_answer(schema_of(asked))
    if not click.confirm("Let it run, once?", default=False, err=True):
        raise click.ClickException("Nothing was decided; `toolhub approvals deny ID` says no.")
    return answer


def _stub(connection: Connection) -> ApprovalServiceStub:
    return ApprovalServiceStub(connection.channel)


def _print_decision(approval: approval_pb2.Approval, as_json: bool) -> None:
    if wants_json(as_json):
        print_json(message_as_json(approval))
        return
    click.echo(line(approval))
    if state_of(approval) == "APPROVED":
        note("the job goes on" if approval.job_id else "the caller invokes again with this approval_id")
