"""`toolhub approvals …`: list, show, approve, deny and watch approvals."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

import click
import grpc

from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub_service.cli.approvals.board import Keyboard, LiveTable
from toolhub_service.cli.approvals.view import (
    ApprovalWatch,
    describe_field,
    field_choices,
    field_kind,
    fields_of,
    is_pending,
    line,
    print_approval,
    print_approvals,
    schema_of,
    state_of,
)
from toolhub_service.cli.completion import complete_approval
from toolhub_service.cli.connection.client import (
    Connection,
    connect_by_options,
    connection_options,
    explain_error,
)
from toolhub_service.cli.connection.watching import note_outage
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.arguments import read_arguments
from toolhub_service.cli.terminal.output import (
    can_redraw,
    count_of_total,
    footnote,
    json_option,
    message_as_json,
    note,
    print_answer,
    print_failure,
    print_json,
    print_json_line,
    print_line,
    print_next,
    text_option,
    wants_json,
)
from toolhub_service.cli.terminal.questions import ask, confirm

# Answers to a question that a tool asks during a call. The hub validates the answer; here its fields only get their
# types.

_NOTHING: Final = ""


def parse_answer(words: Sequence[str], document: str, schema: Mapping[str, Any]) -> bytes:
    """Return the answer given by options, as JSON; empty when there is none. Raises click.UsageError."""
    if words and document:
        raise click.UsageError("Give either --answer or --answer-json, not both.")
    if document:
        return read_arguments([document], schema)
    return read_arguments(words, schema) if words else b""


def ask_answer(schema: Mapping[str, Any]) -> bytes:
    """Return the answer typed at the terminal, field by field; an empty line leaves an optional field out."""
    answer: dict[str, Any] = {}
    required = schema.get("required", ())
    for name, declared in fields_of(schema).items():
        typed = _ask(name, declared, is_required=name in required)
        if typed != _NOTHING:
            answer[name] = _parse_field(typed, declared)
    return json.dumps(answer).encode() if answer else b""


def _ask(name: str, declared: Mapping[str, Any], *, is_required: bool) -> str:
    """Return what was typed; empty leaves the field out, so that the hub uses its default."""
    choices = field_choices(declared)
    may_be_left_out = not is_required or "default" in declared
    label = describe_field(name, declared, is_required=is_required)
    is_hidden = declared.get("format") == "password"
    while True:
        typed: str = ask(label, is_hidden=is_hidden)
        if typed == _NOTHING and not may_be_left_out:
            print_line("This field is required.", err=True)
        elif typed != _NOTHING and choices and typed not in choices:
            print_line(f"Choose one of: {', '.join(choices)}", err=True)
        else:
            return typed


def _parse_field(typed: str, declared: Mapping[str, Any]) -> Any:
    if field_kind(declared) == "string":
        return typed
    try:
        return json.loads(typed)
    except ValueError:
        return typed  # the hub's own message is better


_STATES = ("pending", "approved", "rejected", "expired", "used")
_DECISIONS = {"a": approval_pb2.DECISION_APPROVE, "d": approval_pb2.DECISION_REJECT}
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
_WHY = "Deny this call. Reason for the caller (Enter: none, Esc: go back)"
_EVERY = "all"


@click.group(cls=SuggestingGroup)
def approvals() -> None:
    """List, show, approve, deny and watch approvals: calls that wait for a person.

    An ID may be shortened to a prefix that matches only one of the newest 1,000 approvals.
    """


@approvals.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*_STATES, _EVERY), case_sensitive=False),
    default=("pending",),
    show_default=True,
    help="Only approvals in this state; repeatable.",
)
@click.option("--principal", default="", help="Only approvals requested by this principal.")
@click.option("--tool", default="", help="Only this tool, or a glob such as 'core/fs.*'.")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number to show.")
@text_option
@connection_options
def list_approvals(count: int, as_json: bool, **options: Any) -> None:
    """List pending approvals, newest first; with --state all, every approval.

    Without the role approver you see only the approvals that you requested.

    \b
    Examples:
      toolhub approvals list
      toolhub approvals list --state approved --state used --tool 'core/fs.*'
      toolhub approvals list --state all --principal research-agent -o json
    """
    with connect_by_options(options) as connection:
        found, total = connection.newest(connection.approvals.ListApprovals, _filter(options), "approvals", count)
    if wants_json(as_json):
        print_json({"approvals": [message_as_json(approval) for approval in found], "totalSize": total})
        return
    if not found:
        footnote("No approval is pending." if options["states"] == ("pending",) else "No approval matches.")
        return
    print_approvals(found)
    footnote(f"{count_of_total(len(found), total, 'approval')}. To see one in full: toolhub approvals show ID")


@approvals.command()
@click.argument("approval_id", metavar="ID", shell_complete=complete_approval)
@click.option("--reveal", is_flag=True, help="Show the full arguments except known secrets; the audit log records it.")
@json_option
@connection_options
def show(approval_id: str, reveal: bool, as_json: bool, **options: Any) -> None:
    """Show one approval: caller, tool, arguments, rule, reason, purpose and time left.

    Text that looks like a credential is replaced by its length. An approver can read it with --reveal while the
    approval is open; the audit log records who did.

    \b
    Examples:
      toolhub approvals show apr_018f2c9e5b7a3d41c6e0
      toolhub approvals show apr_018f2c9e5b7a3d41c6e0 --reveal
    """
    with connect_by_options(options) as connection:
        answer = _get(connection, approval_id, reveal=reveal)
    if reveal and not answer.revealed_args_json:
        raise click.ClickException("This hub is older than this command and cannot reveal arguments. Upgrade the hub.")
    if not wants_json(as_json):
        print_approval(answer.approval, answer.revealed_args_json)
    elif reveal:
        print_json_line(message_as_json(answer))
    else:
        print_json(message_as_json(answer.approval))


@approvals.command()
@click.argument("approval_id", metavar="ID", shell_complete=complete_approval)
@click.option("-m", "--comment", default="", help="Reason, recorded in the audit log.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--answer",
    "words",
    multiple=True,
    metavar="NAME=VALUE",
    help="One field of the answer to the tool's question; repeatable.",
)
@click.option(
    "--answer-json",
    "document",
    default="",
    metavar="JSON",
    help="The whole answer: JSON, @FILE, or - for standard input.",
)
@json_option
@connection_options
def approve(
    approval_id: str, comment: str, is_sure: bool, words: tuple[str, ...], document: str, as_json: bool, **options: Any
) -> None:
    """Approve the call, which may then run once, exactly as shown; or answer its tool's question.

    On a terminal the command shows the call, asks for each field of the tool's question, and asks for confirmation. A
    field left out gets its default.

    \b
    Examples:
      toolhub approvals approve apr_018f2c9e5b7a3d41c6e0
      toolhub approvals approve apr_018f2c9e5b7a3d41c6e0 --yes -m "agreed in the morning round"
      toolhub approvals approve apr_018f2c9e5b7a3d41c6e0 --answer colour=red --answer coats=2
    """
    with connect_by_options(options) as connection:
        asked = _get(connection, approval_id).approval
        answer = parse_answer(words, document, schema_of(asked))
        # Without a terminal the command itself is the decision, as scripts need it.
        if is_pending(asked) and not is_sure and sys.stdin.isatty():
            answer = _confirm(asked, as_json, answer)
        after = _decide(connection, asked, approval_pb2.DECISION_APPROVE, comment, answer)
    print_answer(after, as_json, _show_decision)


@approvals.command()
@click.argument("approval_id", metavar="ID", shell_complete=complete_approval)
@click.option("-m", "--comment", default="", help="Reason, shown to the caller and recorded in the audit log.")
@json_option
@connection_options
def deny(approval_id: str, comment: str, as_json: bool, **options: Any) -> None:
    """Deny the call. The caller is shown the reason given with -m.

    \b
    Example:
      toolhub approvals deny apr_018f2c9e5b7a3d41c6e0 -m "not this folder; use reports/"
    """
    with connect_by_options(options) as connection:
        asked = _get(connection, approval_id).approval
        after = _decide(connection, asked, approval_pb2.DECISION_REJECT, comment)
    print_answer(after, as_json, _show_decision)


@approvals.command()
@click.option("--tool", default="", help="Only this tool, or a glob such as 'core/fs.*'.")
@text_option
@connection_options
def watch(tool: str, as_json: bool, **options: Any) -> None:
    """Show pending approvals, then every change, until interrupted.

    It reconnects after a restart of the hub. On a terminal it shows a live table with the time left, and purpose and
    arguments of the selected approval, which the keys a and d decide as `approve` and `deny` do (Escape goes back);
    without one it prints a line for each change, and
    with -o json a line of JSON.

    \b
    Examples:
      toolhub approvals watch
      toolhub approvals watch -o json | while read -r line; do notify-send "$line"; done
    """
    with connect_by_options(options) as connection, suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
        if wants_json(as_json):
            for approval in ApprovalWatch(connection, tool, disconnected=note_outage):
                print_next(message_as_json(approval))
            return
        if not can_redraw():
            for approval in ApprovalWatch(connection, tool, disconnected=note_outage):
                print_line(line(approval))
        else:
            _run_board(connection, tool)


# The board: the main thread handles keys and news in turn, so that nothing is drawn into a question.


def _run_board(connection: Connection, tool: str) -> None:
    """Show the table and take its keys, until q. Raises grpc.RpcError when the hub refuses the watch."""
    news: SimpleQueue[Callable[[], object]] = SimpleQueue()
    wakes, wake = os.pipe()  # closed by the end of the process: the thread may write until then

    def post(do: Callable[[], object]) -> None:
        news.put(do)
        os.write(wake, b".")

    def fail(error: Exception) -> None:
        raise error

    def follow() -> None:
        try:
            for approval in ApprovalWatch(
                connection,
                tool,
                disconnected=lambda pause_s: post(partial(table.show_outage, pause_s)),
                reconnected=lambda: post(table.end_outage),
            ):
                post(partial(table.show, approval))
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits for it
            post(partial(fail, error))

    with Keyboard() as keyboard, LiveTable(has_keys=keyboard.is_there) as table:
        # A daemon: it waits in a stream that does not end with the keys.
        Thread(target=follow, daemon=True).start()
        while (key := keyboard.next(wakes)) not in ("q", "Q"):
            if key in _DECISIONS and table.selected_id:
                with table.pause(), keyboard.pause():
                    _decide_selected(connection, table.selected_id, _DECISIONS[key])
            elif key in _STEPS:
                table.select(_STEPS[key])
            while not key and not news.empty():
                # One byte for each news, so that the pipe is never readable without any.
                os.read(wakes, 1)
                news.get()()


def _decide_selected(connection: Connection, approval_id: str, decision: approval_pb2.Decision.ValueType) -> None:
    """Do what `approve` and `deny` do; errors are shown, and the board goes on."""
    try:
        asked, comment, answer = _get(connection, approval_id).approval, "", b""
        if decision == approval_pb2.DECISION_APPROVE:
            answer = _confirm(asked, False, b"")
        else:
            print_approval(asked)
            print_line()
            comment = ask(_WHY)
        _decide(connection, asked, decision, comment, answer)
    except click.ClickException as refused:
        print_failure(refused)
    except click.Abort:
        note("Nothing was decided.", err=True)
    except grpc.RpcError as error:
        print_failure(explain_error(connection, error))


def _filter(options: dict[str, Any]) -> pb.ListApprovalsRequest:
    names = [] if _EVERY in options["states"] else options["states"]
    states = [approval_pb2.ApprovalState.Value(f"APPROVAL_STATE_{name.upper()}") for name in names]
    return pb.ListApprovalsRequest(states=states, principal=options["principal"], tool=options["tool"])


def _get(connection: Connection, approval_id: str, *, reveal: bool = False) -> pb.GetApprovalResponse:
    every = pb.ListApprovalsRequest()
    whole = connection.full_id(approval_id, connection.approvals.ListApprovals, every, "approvals", "approval_id")
    request = pb.GetApprovalRequest(approval_id=whole, reveal=reveal)
    return connection.call(connection.approvals.GetApproval, request)


def _decide(
    connection: Connection,
    asked: approval_pb2.Approval,
    decision: approval_pb2.Decision.ValueType,
    comment: str,
    answer_json: bytes = b"",
) -> approval_pb2.Approval:
    """Send the decision with the digest of what was shown, so that it applies to exactly that."""
    request = pb.DecideApprovalRequest(
        approval_id=asked.approval_id,
        decision=decision,
        comment=comment,
        # What was shown: the hub refuses when the approval's arguments have changed.
        args_digest=asked.args_digest,
        answer_json=answer_json,
    )
    return connection.call(connection.approvals.DecideApproval, request).approval


def _confirm(asked: approval_pb2.Approval, as_json: bool, answer: bytes) -> bytes:
    """Show the call and ask for confirmation, and for the answer if none was given; return the answer. Answering no
    decides nothing: the approval stays pending."""
    if wants_json(as_json):
        print_line(line(asked), err=True)
    else:
        print_approval(asked)
        print_line()
    if asked.HasField("question") and not answer:
        answer = ask_answer(schema_of(asked))
    if not confirm("Approve this call, once?"):
        raise click.ClickException(
            f"Nothing was decided. To deny the call: `toolhub approvals deny {asked.approval_id}`."
        )
    return answer


def _show_decision(approval: approval_pb2.Approval) -> None:
    print_line(line(approval))
    if state_of(approval) == "APPROVED":
        note("The job continues." if approval.job_id else "The caller can now call again with this approval ID.")
