"""`toolhub call`: one governed call, its progress, its answer, or the plan of what it would do."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import grpc

from toolhub.v1 import call_pb2, plan_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.arguments import read_arguments
from toolhub_service.cli.call_completion import complete_tool
from toolhub_service.cli.connection import EXIT_REFUSED, Connection, connected_by, connection_options, status_of
from toolhub_service.cli.output import json_option, legible, message_as_json, print_json, wants_json
from toolhub_service.cli.progress_bar import ProgressBar
from toolhub_service.cli.show_answer import show_plan, show_result
from toolhub_service.cli.typed_context import typed_context

_PURPOSE = "called by hand"
_REQUEST_ID = "cli"
"""Calls typed by hand share one workspace; another TOOLHUB_REQUEST_ID is another workspace."""


@click.command()
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1)
@click.option("--purpose", default=_PURPOSE, show_default=True, help="Why; goes into the audit log.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, step by step, and change nothing.")
@click.option("--plan", "plan_digest", default="", help="Commit exactly the plan with this digest.")
@click.option("--approval", "approval_id", default="", help="Use this granted approval.")
@click.option("--idempotency-key", default="", help="Names the effect, so that sending it twice has it once.")
@click.option(
    "--request-id", envvar="TOOLHUB_REQUEST_ID", default=_REQUEST_ID, show_default=True, help="Names the workspace."
)
@json_option
@connection_options
def call(tool: str, arguments: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Call TOOL with ARGUMENTS: a JSON object, @file, - for standard input, or key=value pairs.

    In key=value, text is taken as it stands (text=@file reads it from a file), everything else as JSON.

    \b
    Examples:
      toolhub call core/fs.writeText path=notes.txt text='hello'
      toolhub call core/fs.writeText '{"path": "notes.txt", "text": "hello", "overwrite": true}'
      toolhub call core/fs.deletePath path=notes.txt confirm=true --dry-run
    """
    with connected_by(options) as connection:
        schema = input_schema(connection, tool) if arguments else {}
        request = _request(tool, read_arguments(arguments, schema) if arguments else b"", options)
        streamed: dict[str, str] = {}
        answer = _stream(connection, request, streamed) if sys.stderr.isatty() else _unary(connection, request)
    if answer.HasField("plan"):
        _show_plan(answer.plan, as_json, tool, arguments, options)
        return
    if wants_json(as_json):
        print_json(message_as_json(answer.result))
    else:
        show_result(answer.result, streamed)
    if not answer.result.ok:
        sys.exit(EXIT_REFUSED)


def _show_plan(
    plan: plan_pb2.Plan, as_json: bool, tool: str, arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    if wants_json(as_json):
        print_json(message_as_json(plan))
    else:
        told = {"--request-id": (options["request_id"], _REQUEST_ID), "--purpose": (options["purpose"], _PURPOSE)}
        repeated = [word for name, (value, usual) in told.items() if value != usual for word in (name, value)]
        show_plan(plan, tool, arguments, tuple(repeated))
    if not plan.plan_digest:
        sys.exit(EXIT_REFUSED)


def _request(tool: str, args_json: bytes, options: dict[str, Any]) -> pb.InvokeStreamRequest:
    mode = call_pb2.INVOKE_MODE_DRY_RUN if options["dry_run"] else call_pb2.INVOKE_MODE_EXECUTE
    return pb.InvokeStreamRequest(
        intent=call_pb2.ToolIntent(
            tool=tool,
            args_json=args_json,
            purpose=options["purpose"],
            idempotency_key=options["idempotency_key"],
        ),
        context=typed_context(options["request_id"]),
        mode=mode,
        plan_digest=options["plan_digest"],
        approval_id=options["approval_id"],
        result_encoding=call_pb2.RESULT_ENCODING_JSON,
    )


def _unary(connection: Connection, request: pb.InvokeStreamRequest) -> Any:
    unary = pb.InvokeRequest.FromString(request.SerializeToString())  # the two have the same fields
    return connection.tools.Invoke(unary, timeout=connection.timeout_s, metadata=connection.metadata)


def _stream(connection: Connection, request: pb.InvokeStreamRequest, streamed: dict[str, str]) -> Any:
    """Progress and output go to the terminal as they come; the last message is the answer.

    `streamed` is filled with the output that was shown, by stream.
    """
    with ProgressBar(request.intent.tool) as bar:
        for event in connection.tools.InvokeStream(request, timeout=connection.timeout_s, metadata=connection.metadata):
            if event.HasField("progress"):
                bar.show(event.progress)
            elif event.HasField("chunk"):
                text = event.chunk.data.decode(errors="replace")
                streamed[event.chunk.stream] = streamed.get(event.chunk.stream, "") + text
                click.echo(legible(text), nl=False, err=True)
            else:
                return event
    raise click.ClickException("the hub ended the call without an answer")


def input_schema(connection: Connection, tool: str) -> dict[str, Any]:
    """How key=value values are to be read; empty when the tool is unknown: the call itself tells that best."""
    try:
        request = pb.GetToolRequest(name=tool)
        answer = connection.tools.GetTool(request, timeout=connection.timeout_s, metadata=connection.metadata)
    except grpc.RpcError as error:
        if status_of(error)[0] not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
            raise
        return {}
    schema: dict[str, Any] = json.loads(answer.tool.input_schema_json or b"{}")
    return schema
