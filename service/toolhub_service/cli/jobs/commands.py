"""`toolhub jobs …`: submit, list, show, watch and cancel jobs."""

from __future__ import annotations

import sys
from typing import Any

import click

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub_service.cli.call import request_fields, request_options, show_error, show_result
from toolhub_service.cli.completion import complete_argument, complete_job, complete_tool
from toolhub_service.cli.connection.client import HubRefused, address_options, connect_by_options, connection_options
from toolhub_service.cli.jobs.job_watch import FINAL_STATES, full_job_id, get_job
from toolhub_service.cli.jobs.listing import how_to_approve, line, print_job, print_jobs, state_of, style_state
from toolhub_service.cli.jobs.watch import WaitingBar, follow, watch_to_the_end
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    asks_for_data,
    count_of_total,
    footnote,
    json_option,
    message_as_json,
    note,
    print_answer,
    print_json,
    print_line,
    text_option,
    wants_json,
)


@click.command()
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, shell_complete=complete_argument)
@click.option("--watch", "is_watched", is_flag=True, help="Follow the job to its end, as `toolhub jobs watch` does.")
@click.option(
    "--timeout",
    "job_timeout_s",
    type=click.FloatRange(0, min_open=True),
    help="Seconds after which the hub stops the job; default: its setting jobs.default_timeout_s.",
)
@click.option(
    "--key",
    "--idempotency-key",
    "idempotency_key",
    default="",
    help="Idempotency key: submitting twice with the same key returns the same job.",
)
@request_options("submitted by hand")
@json_option
@address_options
def submit(tool: str, arguments: tuple[str, ...], is_watched: bool, as_json: bool, **options: Any) -> None:
    """Submit a call of TOOL with ARGUMENTS as a job, which continues when this command ends.

    ARGUMENTS are those of `toolhub call`. The hub checks them and the policy before it answers. A call that needs an
    approval waits for it, then runs by itself. Without a terminal it prints JSON; with --watch lines, or
    with -o json every status as one line of JSON.

    \b
    Examples:
      toolhub jobs submit core/fs.copy source=big.iso destination=copy.iso --watch
      toolhub jobs submit core/fs.copy source=a.txt destination=b.txt --key copy-1 --timeout 600
      id=$(toolhub jobs submit core/util.time.now -o name)
    """
    with connect_by_options(options) as connection:
        request = pb.SubmitJobRequest(**request_fields(connection, tool, arguments, options))
        if options["job_timeout_s"] is not None:
            request.context.budget.timeout.FromMilliseconds(round(options["job_timeout_s"] * 1_000))
        job = connection.call(connection.jobs.SubmitJob, request).job
        if is_watched:
            # First, so that the ID is known when the watch is interrupted; standard output is for the result.
            print_line(job.job_id, err=True)
            watch_to_the_end(connection, job, as_json=asks_for_data(as_json))
            return
    print_answer(job, as_json, _show_submitted)
    if job.status.HasField("error"):
        sys.exit(EXIT_REFUSED)


def _show_submitted(job: job_pb2.Job) -> None:
    """Print the job and what the submitter can do next."""
    print_line(job.job_id, "  ", style_state(job.status))
    if job.status.HasField("error"):
        show_error(job.status.error)
        return
    if job.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
        for words in how_to_approve(job.approval_id):
            print_line(words)
        note("It then runs in the background. Follow with:")
    else:
        note("Running in the background. Follow with:")
    print_line(f"toolhub jobs watch {job.job_id}")


_OPEN, _EVERY = "open", "all"
_STATES = (
    *("queued", "awaiting_approval", "running", "cancelling"),
    *("succeeded", "failed", "cancelled", "timed_out", "lost"),
)

job_argument = click.argument("job_id", metavar="JOB", shell_complete=complete_job)


@click.group(cls=SuggestingGroup)
def jobs() -> None:
    """Submit, list, watch and cancel jobs: long-running calls.

    A job continues when the command that submitted or watches it ends, and after a restart of the hub. A JOB is an ID
    or a prefix of one that matches only one of the newest 1,000 jobs.
    """


jobs.add_command(submit)


@jobs.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((_OPEN, *_STATES, _EVERY), case_sensitive=False),
    default=(_EVERY,),
    show_default=True,
    help="Only jobs in this state; `open` means every state that is not final; repeatable.",
)
@click.option("--tool", default="", help="Only this tool, or a glob such as 'core/fs.*'.")
@click.option("--request", "request_id", default="", help="Only jobs of this request ID.")
@click.option("--principal", default="", help="Only jobs of this principal; needs the role operator or auditor.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=30, show_default=True, help="Maximum number to show."
)
@click.option("--all", "is_all", is_flag=True, help="Show all; --limit is ignored.")
@text_option
@connection_options
def list_jobs(limit: int, is_all: bool, as_json: bool, **options: Any) -> None:
    """List jobs, newest first.

    \b
    Examples:
      toolhub jobs list
      toolhub jobs list --state open --tool 'core/fs.*'
      toolhub jobs list --state failed --state lost --all -o json
    """
    with connect_by_options(options) as connection:
        found, total = connection.newest(connection.jobs.ListJobs, _filter(options), "jobs", None if is_all else limit)
    if wants_json(as_json):
        print_json({"jobs": [message_as_json(job) for job in found], "totalSize": total})
        return
    if not found:
        footnote("No job matches. `toolhub jobs submit --help` shows how to submit one.")
        return
    print_jobs(found)
    footnote(
        f"{count_of_total(len(found), total, 'job', '--all lists all')}. To see one in full: toolhub jobs show JOB"
    )


@jobs.command()
@job_argument
@json_option
@connection_options
def show(job_id: str, as_json: bool, **options: Any) -> None:
    """Show one job: tool, caller, purpose, progress and result.

    \b
    Example:
      toolhub jobs show job_019a7c41d2e05b7a3d41c6e0
    """
    with connect_by_options(options) as connection:
        print_answer(get_job(connection, full_job_id(connection, job_id)), as_json, print_job)


@jobs.command()
@job_argument
@text_option
@connection_options
def watch(job_id: str, as_json: bool, **options: Any) -> None:
    """Follow JOB to its end: state, progress, rate and time left, then the result as `toolhub call` prints it.

    It reconnects after a restart of the hub. Ctrl-C stops watching, not the job (exit code 130). Without a terminal it
    prints lines, about one a second; -o json prints every status as one line of JSON.

    \b
    Examples:
      toolhub jobs watch job_019a7c41d2e05b7a3d41c6e0
      toolhub jobs watch job_019a7c41d2e05b7a3d41c6e0 -o json | jq -r .state
    """
    with connect_by_options(options) as connection:
        job = get_job(connection, full_job_id(connection, job_id))
        watch_to_the_end(connection, job, as_json=wants_json(as_json))


@jobs.command()
@job_argument
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until the job has ended.")
@json_option
@connection_options
def result(job_id: str, is_waiting: bool, as_json: bool, **options: Any) -> None:
    """Print the result of JOB as `toolhub call` prints it; exit 1 when it is an error.

    \b
    Examples:
      toolhub jobs result job_019a7c41d2e05b7a3d41c6e0
      toolhub jobs result job_019a7c41d2e05b7a3d41c6e0 --wait -o json | jq .result
    """
    with connect_by_options(options) as connection:
        job_id = full_job_id(connection, job_id)
        job = get_job(connection, job_id)
        status = job.status
        if status.state not in FINAL_STATES:
            if not is_waiting:
                raise HubRefused(
                    f"{job_id} is {state_of(status)}. `toolhub jobs result {job_id} --wait` waits until it ends."
                )
            status = follow(connection, job, WaitingBar(job.tool))
    print_answer(status.result, as_json, show_result)
    if not status.result.ok:
        sys.exit(EXIT_REFUSED)


@jobs.command()
@job_argument
@click.option("-m", "--reason", default="", help="Reason, recorded in the audit log.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until the job has stopped.")
@json_option
@connection_options
def cancel(job_id: str, reason: str, is_waiting: bool, as_json: bool, **options: Any) -> None:
    """Cancel JOB. What it has already done is not undone. Exit 1 when it had already ended otherwise.

    \b
    Examples:
      toolhub jobs cancel job_019a7c41d2e05b7a3d41c6e0 --reason "the wrong file"
      toolhub jobs cancel job_019a7c41d2e05b7a3d41c6e0 --wait
    """
    with connect_by_options(options) as connection:
        job_id = full_job_id(connection, job_id)
        request = pb.CancelJobRequest(job_id=job_id, reason=reason)
        status = connection.call(connection.jobs.CancelJob, request).status
        if is_waiting and status.state not in FINAL_STATES:
            status = follow(connection, get_job(connection, job_id), WaitingBar(job_id))
    print_answer(status, as_json, _show_cancelled)
    # It was too late to cancel it, which a script must be able to detect.
    if status.state in FINAL_STATES and status.state != job_state_pb2.JOB_STATE_CANCELLED:
        sys.exit(EXIT_REFUSED)


def _show_cancelled(status: job_pb2.JobStatus) -> None:
    print_line(line(status, status.job_id))
    if status.state not in FINAL_STATES:
        note(f"The job was asked to stop. `toolhub jobs watch {status.job_id}` shows when it has.")
    elif status.state != job_state_pb2.JOB_STATE_CANCELLED:
        note(f"The job ended before it could be stopped. `toolhub jobs result {status.job_id}` shows its result.")


def _filter(options: dict[str, Any]) -> pb.ListJobsRequest:
    given = set() if _EVERY in options["states"] else set(options["states"])
    names = given - {_OPEN}
    states = {job_state_pb2.JobState.Value(f"JOB_STATE_{name.upper()}") for name in names}
    if _OPEN in given:
        # By exclusion: states that a later contract adds count as open until they are known to be final.
        states |= set(job_state_pb2.JobState.values()) - FINAL_STATES - {job_state_pb2.JOB_STATE_UNSPECIFIED}
    return pb.ListJobsRequest(
        states=sorted(states),
        tool=options["tool"],
        request_id=options["request_id"],
        principal=options["principal"],
    )
