"""How approvals are shown and watched.

Purpose, question and arguments are untrusted: each of their lines has a mark, and the arguments, which are what is
decided, come last.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf import timestamp_pb2

from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub_service.cli.connection.client import Connection, status_of
from toolhub_service.cli.connection.watching import resume_watch
from toolhub_service.cli.terminal.output import (
    Escaped,
    enum_name,
    is_wide,
    join_parts,
    note,
    print_line,
    print_pairs,
    print_quoted,
    print_table,
    seconds_since,
    span,
    style,
    utc,
)
from toolhub_service.guards.foreign_text import on_one_line

Approval = approval_pb2.Approval

_COLOURS = {"PENDING": "yellow", "APPROVED": "green", "REJECTED": "red", "EXPIRED": "red", "USED": "blue"}
_OPEN = ("PENDING", "APPROVED")
_ARGUMENT_LINES_MAX = 200
HEADINGS = ("APPROVAL", "STATE", "LEFT", "DECIDED BY", "WHO", "TOOL", "PURPOSE", "ARGUMENTS")
_PURPOSE_CHARS = 40


def state_of(approval: Approval) -> str:
    return enum_name(approval, "state")


def is_pending(approval: Approval) -> bool:
    return approval.state == approval_pb2.APPROVAL_STATE_PENDING


def is_open(approval: Approval) -> bool:
    """Return whether it can still change."""
    return state_of(approval) in _OPEN


def time_left(approval: Approval) -> str:
    """Return a text such as `42 min`; `–` when it is decided."""
    if not is_open(approval):
        return "–"
    left_s = -seconds_since(approval.expires_at)
    return span(left_s) if left_s > 0 else "expired"


def row(approval: Approval) -> tuple[str, ...]:
    """Return cells under `HEADINGS`."""
    purpose = on_one_line(approval.purpose)
    if len(purpose) > _PURPOSE_CHARS and not is_wide():
        purpose = purpose[: _PURPOSE_CHARS - 1] + "…"
    return (
        approval.approval_id,
        state_of(approval),
        time_left(approval),
        approval.decided_by or "–",
        approval.principal,
        approval.tool,
        purpose,
        request_text(approval),
    )


def request_text(approval: Approval) -> str:
    """Return the arguments as one line; a question of the tool comes before them."""
    args = on_one_line(approval.args_summary_json.decode())
    return f"asks {on_one_line(approval.question.message)!r} for {args}" if approval.HasField("question") else args


def print_approvals(approvals: Iterable[Approval]) -> None:
    print_table(HEADINGS, (row(approval) for approval in approvals), is_cut=True)


def print_approval(approval: Approval, revealed_args_json: bytes = b"") -> None:
    """Print one approval; with the unredacted arguments if these were revealed."""
    state = state_of(approval)
    print_line(style(approval.approval_id, bold=True), "  ", style(state, fg=_COLOURS.get(state), bold=True))
    print_pairs(_facts(approval))
    if approval.purpose:
        note("\npurpose (untrusted text of the caller):")
        print_quoted(approval.purpose)
    if approval.HasField("question"):
        _print_question(approval)
    if revealed_args_json:
        note("\narguments as sent by the caller (known secrets are replaced by their length):")
        print_quoted("\n".join(_lines(revealed_args_json)))
    else:
        note("\narguments sent by the caller (secrets are replaced by their length):")
        print_quoted(_arguments(approval))


def line(approval: Approval) -> Escaped:
    """Return one change of one approval as a line."""
    state = state_of(approval)
    by = f"  by {on_one_line(approval.decided_by)}" if approval.decided_by and state in ("APPROVED", "REJECTED") else ""
    comment = f"  {on_one_line(approval.comment)!r}" if approval.comment and (by or state == "EXPIRED") else ""
    what = f"{approval.approval_id}  {on_one_line(approval.principal)}  {on_one_line(approval.tool)}{by}{comment}"
    mark = style(state.ljust(8), fg=_COLOURS.get(state))
    return join_parts(f"{_latest(approval).ToDatetime():%H:%M:%S}  ", mark, "  ", what)


def _print_question(approval: Approval) -> None:
    note("\nquestion (untrusted text of the tool):")
    schema = schema_of(approval)
    required = schema.get("required", ())
    fields = (
        describe_field(name, declared, is_required=name in required) for name, declared in fields_of(schema).items()
    )
    print_quoted("\n".join((approval.question.message, *fields)))
    if is_pending(approval):
        note(f"To answer: `toolhub approvals approve {approval.approval_id} --answer NAME=VALUE`; to decline: `deny`.")


def _facts(approval: Approval) -> Iterator[tuple[str, str]]:
    yield "caller", approval.principal
    for name, whom in (("for agent", approval.agent_id), ("for user", approval.user_id)):
        if whom:
            yield name, whom
    yield "tool", f"{approval.tool} {approval.tool_version}"
    yield "rule", f"{approval.rule_id}: {approval.reason}"
    if approval.covers_rule_id:
        yield "covers", f"rule {approval.covers_rule_id}, whose approval this call has used"
    yield "requested at", utc(approval.requested_at)
    if is_open(approval):
        yield "time left", f"{time_left(approval)}, until {utc(approval.expires_at)}"
    if approval.decided_by:
        yield "decided by", f"{approval.decided_by} at {utc(approval.decided_at)}"
    if approval.comment:
        yield "comment" if approval.decided_by else "withdrawn", approval.comment
    if approval.HasField("used_at"):
        yield "used at", utc(approval.used_at)
    if approval.job_id:
        yield "job", f"{approval.job_id}, waiting for this approval" if is_open(approval) else approval.job_id
    yield "call", f"{approval.call_id} of request {approval.request_id}"
    yield "arguments", f"SHA-256 {approval.args_digest}"


def _arguments(approval: Approval) -> str:
    lines = _lines(approval.args_summary_json or b"{}")
    if len(lines) <= _ARGUMENT_LINES_MAX:
        return "\n".join(lines)
    left_out = f"… {len(lines) - _ARGUMENT_LINES_MAX:,} more lines (use --json)"
    return "\n".join([*lines[:_ARGUMENT_LINES_MAX], left_out])


def _lines(args_json: bytes) -> list[str]:
    return json.dumps(json.loads(args_json), ensure_ascii=False, indent=2).split("\n")


def _latest(approval: Approval) -> timestamp_pb2.Timestamp:
    """Return when it got its current state."""
    if state_of(approval) == "EXPIRED":
        return approval.expires_at
    if approval.HasField("used_at"):
        return approval.used_at
    return approval.decided_at if approval.HasField("decided_at") else approval.requested_at


def schema_of(approval: approval_pb2.Approval) -> Mapping[str, Any]:
    """Return the JSON Schema of the answer; empty when there is no question."""
    schema = json.loads(approval.question.schema_json or b"{}")
    return schema if isinstance(schema, dict) else {}


def fields_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the fields of the answer, by name."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: declared if isinstance(declared, dict) else {} for name, declared in properties.items()}


def describe_field(name: str, declared: Mapping[str, Any], *, is_required: bool) -> str:
    """Return one line, such as `colour (string, required): red | green`."""
    terms = [field_kind(declared), "required" if is_required and "default" not in declared else "optional"]
    if "default" in declared:
        terms.append(f"default {json.dumps(declared['default'], ensure_ascii=False)}")
    choices = " | ".join(field_choices(declared))
    about = " – ".join(str(part) for part in (declared.get("description"), choices) if part)
    return on_one_line(f"{name} ({', '.join(terms)})" + (f": {about}" if about else ""))


def field_kind(declared: Mapping[str, Any]) -> str:
    """Return the declared type; string when none or several are declared."""
    kind = declared.get("type", "string")
    if isinstance(kind, list):
        return "string" if "string" in kind else "/".join(str(each) for each in kind)
    return str(kind)


def field_choices(declared: Mapping[str, Any]) -> list[str]:
    enum = declared.get("enum")
    return [each if isinstance(each, str) else json.dumps(each) for each in enum] if isinstance(enum, list) else []


# Watching approvals across restarts of the hub, from the resume token of the last message; nothing is repeated.

_PAUSE_MAX_S = 5.0
_REMEMBERED_MAX = 10_000


class ApprovalWatch:
    """Every pending approval, then each change, without end; iterate over it. Raises grpc.RpcError when refused."""

    def __init__(
        self,
        connection: Connection,
        tool: str,
        *,
        disconnected: Callable[[float], object] = lambda _: None,
        reconnected: Callable[[], object] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`disconnected` is called with the seconds until the next try, `reconnected` when the hub answers again."""
        self._connection = connection
        self._tool = tool
        self._token = ""
        self._disconnected = disconnected
        self._reconnected = reconnected
        self._pause = pause
        self._shown: dict[str, approval_pb2.Approval] = {}

    def __iter__(self) -> Generator[approval_pb2.Approval, None, None]:
        # Asked first, because the command only waits for a hub that is lost later.
        self._connection.call(self._connection.approvals.ListApprovals, pb.ListApprovalsRequest(page_size=1))
        yield from resume_watch(self._watch, _PAUSE_MAX_S, self._disconnected, self._pause)

    def _watch(self) -> Iterator[approval_pb2.Approval]:
        """Run one stream. It begins with the changes since the last one;

        without a token, as from an older hub, the shown approvals are looked up.
        """
        request = pb.WatchApprovalsRequest(tool=self._tool, resume_token=self._token)
        answers = self._connection.approvals.WatchApprovals(request, metadata=self._connection.metadata)
        try:
            answers.initial_metadata()  # the hub sends every change after this one
            for approval in () if self._token else self._changed_meanwhile():
                yield from self._new(approval)
            self._reconnected()
            for answer in answers:
                self._token = answer.resume_token or self._token
                yield from self._new(answer.approval)
        finally:
            answers.cancel()

    def _changed_meanwhile(self) -> Iterator[approval_pb2.Approval]:
        for shown in [shown for shown in self._shown.values() if is_open(shown)]:
            try:
                request = pb.GetApprovalRequest(approval_id=shown.approval_id)
                answer = self._connection.call(self._connection.approvals.GetApproval, request)
            except grpc.RpcError as error:
                if status_of(error)[0] is not grpc.StatusCode.NOT_FOUND:
                    raise
                del self._shown[shown.approval_id]  # it has expired, or this is another hub
            else:
                yield answer.approval

    def _new(self, approval: approval_pb2.Approval) -> Iterator[approval_pb2.Approval]:
        """Yield the approval, unless this state of it was yielded already."""
        shown = self._shown.pop(approval.approval_id, None)
        self._shown[approval.approval_id] = approval
        if len(self._shown) > _REMEMBERED_MAX:
            # A watch may run for weeks; the oldest is the least likely to be reported again.
            del self._shown[next(iter(self._shown))]
        # After an outage the hub repeats the current states: only changes are printed.
        if shown is None or shown.state != approval.state:
            yield approval
