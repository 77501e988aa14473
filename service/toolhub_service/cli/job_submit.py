"""`toolhub jobs submit`: a call that goes on without its caller."""

from __future__ import annotations

import sys
from typing import Any

import click

from toolhub.v1 import call_pb2, job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub_service.cli.arguments import read_arguments
from toolhub_service.cli.call import input_schema
from toolhub_service.cli.call_completion import complete_tool
from toolhub_service.cli.connection import EXIT_REFUSED, Connection, address_options, connected_by
from toolhub_service.cli.job_view import how_to_approve, styled_state
from toolhub_service.cli.job_watching import watch_to_the_end
from toolhub_service.cli.output import json_option, message_as_json, note, print_json, wants_json
from toolhub_service.cli.show_answer import show_error
from toolhub_service.cli.typed_context import typed_context


@click.command()
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1)
@click.option("--watch", "is_watched", is_flag=True, help="Follow it to its end, as `toolhub jobs watch` does.")
@click.option(
    "--timeout",
    "job_timeout_s",
    type=click.FloatRange(0, min_open=True),
    help="Seconds after which the job is given up; default: the hub's jobs.default_timeout_s.",
)
@click.option(
    "--key",
    "--idempotency-key",
    "idempotency_key",
    default="",
    help="Names the effect: submitting it twice gives the same job.",
)
@click.option("--purpose", default="submitted by hand", show_default=True, help="Why; goes into the audit log.")
@click.option("--plan", "plan_digest", default="", help="Commit exactly the plan with this digest.")
@click.option("--approval", "approval_id", default="", help="Use this granted approval.")
@click.option(
    "--request-id", envvar="TOOLHUB_REQUEST_ID", default="cli", show_default=True, help="Names the workspace."
)
@json_option
@address_options
def submit(tool: str, arguments: tuple[str, ...], is_watched: bool, as_json: bool, **options: Any) -> None:
    """Have TOOL called with ARGUMENTS as a job, which goes on when this command has ended.

    ARGUMENTS are those of `toolhub call`. The hub checks them and the policy before it answers; a call that a
    person must approve waits and goes on by itself. With --watch lines without a terminal, JSON lines with --json.

    \b
    Examples:
      toolhub jobs submit core/fs.copy source=big.iso destination=copy.iso --watch
      toolhub jobs submit core/fs.copy source=a.txt destination=b.txt --key copy-1 --timeout 600
      id=$(toolhub jobs submit core/util.time.now | jq -r .jobId)
    """
    with connected_by(options) as connection:
        job = _submitted(connection, tool, arguments, options)
        if is_watched:
            click.echo(job.job_id, err=True)
            watch_to_the_end(connection, job, as_json=as_json)
            return
    if wants_json(as_json):
        print_json(message_as_json(job))
    else:
        click.echo(f"{job.job_id}  {styled_state(job.status)}")
        _show_next(job)
    if job.status.HasField("error"):
        sys.exit(EXIT_REFUSED)


def _submitted(connection: Connection, tool: str, arguments: tuple[str, ...], options: dict[str, Any]) -> job_pb2.Job:
    schema = input_schema(connection, tool) if arguments else {}
    context = typed_context(options["request_id"])
    if options["job_timeout_s"] is not None:
        context.budget.timeout.FromMilliseconds(round(options["job_timeout_s"] * 1_000))
    request = pb.SubmitJobRequest(
        intent=call_pb2.ToolIntent(
            tool=tool,
            args_json=read_arguments(arguments, schema) if arguments else b"",
            purpose=options["purpose"],
            idempotency_key=options["idempotency_key"],
        ),
        context=context,
        plan_digest=options["plan_digest"],
        approval_id=options["approval_id"],
        result_encoding=call_pb2.RESULT_ENCODING_JSON,
    )
    stub = JobServiceStub(connection.channel)
    return stub.SubmitJob(request, timeout=connection.timeout_s, metadata=connection.metadata).job


def _show_next(job: job_pb2.Job) -> None:
    """What whoever has submitted it can do now."""
    if job.status.HasField("error"):
        show_error(job.status.error)
        return
    if job.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
        click.echo(how_to_approve(job.approval_id))
    note("It goes on by itself; this follows it:")
    click.echo(f"toolhub jobs watch {job.job_id}")
