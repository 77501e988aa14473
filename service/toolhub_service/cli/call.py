"""`toolhub call`: one governed call, its progress, its answer, or the plan of what it would do."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click
import grpc
from google.protobuf.json_format import MessageToDict

from toolhub.v1 import call_pb2, error_pb2, job_state_pb2, plan_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.completion import complete_argument, complete_tool
from toolhub_service.cli.connection.client import Connection, connect_by_options, connection_options, status_of
from toolhub_service.cli.plans import remember_plan, whole_digest
from toolhub_service.cli.terminal.arguments import read_arguments
from toolhub_service.cli.terminal.output import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    Command,
    enum_name,
    json_option,
    note,
    print_answer,
    print_line,
    print_pairs,
    print_prose,
    print_text,
    style,
)
from toolhub_service.cli.terminal.progress import ProgressBar

# Display of results and plans: the value, its evidence, and for a refusal what would help.

_TEXT_LINES_MAX = 200
_BLOCK_CHARS = 100
# Shorter texts, such as PENDING, may occur in the message by chance.
_REPEATED_CHARS = 16
# Details that repeat the message or belong in the audit log.
_NOT_SHOWN = ("remedy", "policy_revision", "did_you_mean", "approval", "args_digest")


def show_result(result: result_pb2.ToolResult, streamed: Mapping[str, str] | None = None, again: str = "") -> None:
    """Print the answer without the fields that were `streamed` to the terminal already; `again`: as of `show_error`."""
    if result.ok and result.HasField("job"):
        _show_job(result.job)
    elif result.ok:
        _show_value(_without(json.loads(result.result_json or b"null"), streamed or {}))
        for evidence in result.evidence:
            note(f"  {enum_name(evidence, 'type').lower()}: {evidence.ref} — {evidence.summary}")
    else:
        show_error(result.error, again)
    note("  " + " · ".join(_facts(result)))


def show_error(error: error_pb2.ToolError, again: str = "") -> None:
    """Print what went wrong and what to do; `again`: the command that makes the same call."""
    print_line(style(f"✗ {enum_name(error, 'kind')}", fg="red", bold=True))
    if error.violations:
        print_line(error.message.partition(": ")[0] + ":")
    else:
        print_prose(error.message)
    for violation in error.violations:
        hint = f" {violation.hint}" if violation.hint else ""
        print_prose(f"  {violation.path or '/'}  {violation.message}{hint}", indent="    ")
    details = MessageToDict(error.details)
    print_pairs(
        (f"  {key}", _short(value))
        for key, value in sorted(details.items())
        if key not in _NOT_SHOWN and not _is_in(error.message, value)
    )
    if error.kind == error_pb2.ERROR_KIND_PLAN_REQUIRED:
        print_prose("  Run the same command with --dry-run: it shows the plan and the command that runs it.", "  ")
    approval_id = details.get("approval_id")
    if again and error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED and approval_id:
        note("Next, an approver runs the first command, then you run the second:")
        print_line(f"toolhub approvals approve {approval_id}")
        print_line(f"{again} --approval {approval_id}")
    if error.retryable:
        wait = f" after {error.retry_after.ToMilliseconds() / 1_000:.1f} s" if error.HasField("retry_after") else ""
        print_line(f"  Retry{wait}; the failure may be temporary.")


def _is_in(message: str, value: Any) -> bool:
    """Return whether a text of the details, a sentence, an ID or a time, is in the message already."""
    return isinstance(value, str) and len(value) >= _REPEATED_CHARS and value.rstrip(".") in message


def show_plan(plan: plan_pb2.Plan, again: str) -> None:
    """Print what would happen and the command that runs it; `again`: the command that makes the same call."""
    for step in plan.steps:
        name = enum_name(step, "step").lower()
        mark, colour = ("✓", "green") if step.ok else ("✗", "red")
        rule = f" [{step.rule_id}]" if step.rule_id else ""
        print_prose(f"{name.ljust(15)} {step.reason}{rule}".rstrip(), " " * 18, mark, colour)
        if not step.ok and step.remedy:
            print_prose(f"  {step.remedy}")
    for effect in plan.effects:
        print_prose(effect, "  ", "→")
    if plan.plan_digest:
        note(f"Nothing was changed. To run exactly this plan, until {plan.expires_at.ToDatetime():%H:%M:%S} UTC:")
        print_line(f"{again} --plan {remember_plan(plan.plan_digest, plan.expires_at.ToMilliseconds() / 1_000)}")


def _show_job(job: job_state_pb2.JobRef) -> None:
    """Print that the call continues as a job."""
    print_line(f"{job.job_id}  {enum_name(job, 'state')}")
    note("Running in the background. Follow with:")
    print_line(f"toolhub jobs watch {job.job_id}")


def _facts(result: result_pb2.ToolResult) -> Iterator[str]:
    yield result.call_id
    yield f"{sum(step.duration_us for step in result.durations) / 1_000:.1f} ms"
    if result.attempts > 1:
        yield f"{result.attempts} attempts"
    if result.replayed:
        yield "replayed"
    if result.truncated:
        yield "truncated"


def _show_value(value: Any) -> None:
    """Print an object as name and value lines, long text as it is, everything else as JSON."""
    if not isinstance(value, dict):
        print_text(json.dumps(value, ensure_ascii=False, indent=2))
        return
    print_pairs((key, _short(item)) for key, item in value.items() if not _is_block(item))
    for key, item in value.items():
        if _is_block(item):
            note(f"{key}:")
            print_text(_block(item))


def _without(value: Any, streamed: Mapping[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    # Output that was already shown while it arrived is not printed again.
    return {key: item for key, item in value.items() if not item or streamed.get(key) != item}


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a Struct knows only floating numbers
    return json.dumps(value, ensure_ascii=False)


def _is_block(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value
    return isinstance(value, dict | list) and len(json.dumps(value)) > _BLOCK_CHARS


def _block(value: Any) -> str:
    text = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)).rstrip("\n")
    lines = text.splitlines()
    if len(lines) <= _TEXT_LINES_MAX:
        return text
    return "\n".join(lines[:_TEXT_LINES_MAX]) + f"\n… {len(lines) - _TEXT_LINES_MAX:,} more lines (use --json)"


def command_context(request_id: str) -> call_pb2.ExecContext:
    """Return the context of a call from the command line: a shared workspace and its own task."""
    # A repeated command is a new request: with its own task ID, a key derived by the hub (tools of kind n8n) does not
    # return the first result again.
    return call_pb2.ExecContext(request_id=request_id, task_id=f"cli-{secrets.token_hex(6)}")


# Metadata of the hub's answer, sent before the first event.
_CALL_ID = "toolhub-call-id"
_PURPOSE = "called by hand"
# Calls from the command line share one workspace; another TOOLHUB_REQUEST_ID is another workspace.
_REQUEST_ID = "cli"


def request_id_option(command: Command) -> Command:
    """Add --request-id."""
    return click.option(
        "--request-id",
        envvar="TOOLHUB_REQUEST_ID",
        default=_REQUEST_ID,
        show_default=True,
        help="Workspace: calls with the same request ID share their files.",
    )(command)


def request_options(purpose: str) -> Callable[[Command], Command]:
    """Add the options that `call` and `jobs submit` share; `purpose`: the default of --purpose."""

    def add(command: Command) -> Command:
        for option in (
            request_id_option,
            click.option("--approval", "approval_id", default="", help="ID of a granted approval to use."),
            click.option(
                "--plan",
                "plan_digest",
                default="",
                callback=whole_digest,
                help="Plan to run: its digest, or the name that `toolhub call --dry-run` printed.",
            ),
            click.option(
                "--purpose", default=purpose, show_default=True, help="Reason for the call, recorded in the audit log."
            ),
        ):
            command = option(command)
        return command

    return add


def request_fields(
    connection: Connection, tool: str, arguments: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request fields that a call and the submission of a job share."""
    schema = _input_schema(connection, tool) if arguments else {}
    return {
        "intent": call_pb2.ToolIntent(
            tool=tool,
            args_json=read_arguments(arguments, schema) if arguments else b"",
            purpose=options["purpose"],
            idempotency_key=options["idempotency_key"],
        ),
        "context": command_context(options["request_id"]),
        "plan_digest": options["plan_digest"],
        "approval_id": options["approval_id"],
        "result_encoding": call_pb2.RESULT_ENCODING_JSON,
    }


@click.command()
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, shell_complete=complete_argument)
@click.option("--dry-run", is_flag=True, help="Show what each step would do; change nothing.")
@click.option(
    "--idempotency-key",
    default="",
    help="A second call with the same key returns the first result and has no second effect.",
)
@request_options(_PURPOSE)
@json_option
@connection_options
def call(tool: str, arguments: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Call TOOL with ARGUMENTS: a JSON object, @file, - for standard input, or key=value pairs.

    The value in key=value is text where the tool takes text (text=@file reads it from a file), and JSON elsewhere.
    Ctrl-C cancels the call (exit code 130) and prints how to see what it did.

    \b
    Examples:
      toolhub call core/fs.writeText path=notes.txt text='hello'
      toolhub call core/fs.writeText '{"path": "notes.txt", "text": "hello", "overwrite": true}'
      toolhub call core/fs.deletePath path=notes.txt confirm=true --dry-run
    """
    with connect_by_options(options) as connection:
        fields = request_fields(connection, tool, arguments, options)
        fields["mode"] = call_pb2.INVOKE_MODE_DRY_RUN if options["dry_run"] else call_pb2.INVOKE_MODE_EXECUTE
        streamed: dict[str, str] = {}
        answer = _stream(connection, pb.InvokeStreamRequest(**fields), streamed)
    again = shlex.join(_same_call(tool, arguments, options))
    if answer.HasField("plan"):
        print_answer(answer.plan, as_json, partial(show_plan, again=again))
        if not answer.plan.plan_digest:
            sys.exit(EXIT_REFUSED)
        return
    print_answer(answer.result, as_json, partial(show_result, streamed=streamed, again=again))
    if not answer.result.ok:
        sys.exit(EXIT_REFUSED)


def _same_call(tool: str, arguments: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return a command that makes the same call; the hub's address and key are left to the environment."""
    changed = {
        "--request-id": (options["request_id"], _REQUEST_ID),
        "--purpose": (options["purpose"], _PURPOSE),
        "--idempotency-key": (options["idempotency_key"], ""),
    }
    repeated = [word for name, (value, usual) in changed.items() if value != usual for word in (name, value)]
    return ["toolhub", "call", tool, *arguments, *repeated]


def _stream(connection: Connection, request: pb.InvokeStreamRequest, shown: dict[str, str]) -> pb.InvokeStreamResponse:
    """Return the answer. Progress and output go to standard error as they arrive, if that is a terminal.

    `shown` is filled with the output that was shown, by stream. Ctrl-C ends the command and says which call it was.
    """
    running: Any = connection.call(connection.tools.InvokeStream, request)
    call_id = ""
    try:
        call_id = next((str(value) for key, value in running.initial_metadata() or () if key == _CALL_ID), "")
        return _show_events(running, request.intent.tool, shown)
    except KeyboardInterrupt:
        # Ctrl-C ends the call at the hub, too, not only this command's wait for it.
        running.cancel()
        print_line(err=True)
        where = f"--call-id {call_id}" if call_id else f"--task-id {request.context.task_id}"
        print_line(
            f"Interrupted. The hub cancels {call_id or 'the call'}; what it has done is not undone. "
            "To see what that is (needs the role auditor):",
            err=True,
        )
        print_line(f"toolhub audit tail {where}", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _show_events(
    events: Iterable[pb.InvokeStreamResponse], tool: str, shown: dict[str, str]
) -> pb.InvokeStreamResponse:
    is_watched = sys.stderr.isatty()
    with ProgressBar(tool) as bar:
        for event in events:
            if event.HasField("progress"):
                bar.show(event.progress)
            elif not event.HasField("chunk"):
                return event
            elif is_watched:
                text = event.chunk.data.decode(errors="replace")
                shown[event.chunk.stream] = shown.get(event.chunk.stream, "") + text
                print_text(text, nl=False, err=True)
    raise click.ClickException(
        "The hub ended the stream without an answer. `toolhub audit tail` shows whether the call ran."
    )


def _input_schema(connection: Connection, tool: str) -> dict[str, Any]:
    """Return the schema that tells text from JSON in key=value; empty for an unknown tool, which the call will
    report."""
    try:
        request = pb.GetToolRequest(name=tool)
        answer = connection.call(connection.tools.GetTool, request)
    except grpc.RpcError as error:
        if status_of(error)[0] not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
            raise
        # The hub validates the tool and the call, and records errors.
        return {}
    schema: dict[str, Any] = json.loads(answer.tool.input_schema_json or b"{}")
    return schema
