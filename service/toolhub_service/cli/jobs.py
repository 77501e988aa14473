"""`toolhub jobs …`: long work, submitted, followed, looked at and stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub_service.cli.connection import EXIT_REFUSED, Connection, HubRefused, connected_by, connection_options
from toolhub_service.cli.job_completion import complete_job
from toolhub_service.cli.job_following import FINAL_STATES, get_job
from toolhub_service.cli.job_screen import WaitingBar
from toolhub_service.cli.job_submit import submit
from toolhub_service.cli.job_view import line, print_job, print_jobs, state_of
from toolhub_service.cli.job_watching import follow, watch_to_the_end
from toolhub_service.cli.output import json_option, message_as_json, note, print_json, wants_json
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.show_answer import show_result

_PAGE = 1_000
_OPEN = "open"
_STATES = (
    *("queued", "awaiting_approval", "running", "cancelling"),
    *("succeeded", "failed", "cancelled", "timed_out", "lost"),
)

job_argument = click.argument("job_id", metavar="JOB", shell_complete=complete_job)


@click.group(cls=SuggestingGroup)
def jobs() -> None:
    """Submit long work, follow it to its end, stop it.

    A job goes on when the command that submitted or watches it has ended, and when the hub is started again.
    """


jobs.add_command(submit)


@jobs.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((_OPEN, *_STATES), case_sensitive=False),
    help="Only jobs in this state, open: those that are not over; may be given several times.",
)
@click.option("--tool", default="", help="Only this tool; a glob such as 'core/fs.*' is welcome.")
@click.option("--request", "request_id", default="", help="Only this request id.")
@click.option("--principal", default="", help="Only this principal's; operators and auditors see everybody's.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=30, show_default=True, help="How many at most.")
@click.option("--all", "is_all", is_flag=True, help="All there are, whatever --limit says.")
@json_option
@connection_options
def list_jobs(limit: int, is_all: bool, as_json: bool, **options: Any) -> None:
    """Jobs, newest first.

    \b
    Examples:
      toolhub jobs list
      toolhub jobs list --state open --tool 'core/fs.*'
      toolhub jobs list --state failed --state lost --all --json
    """
    with connected_by(options) as connection:
        found, total = _listed(connection, _filter(options), None if is_all else limit)
    if wants_json(as_json):
        print_json({"jobs": [message_as_json(job) for job in found], "totalSize": total})
        return
    if not found:
        note("No job fits; `toolhub jobs submit --help` shows how to begin one")
        return
    print_jobs(found)
    shown = f"the newest {len(found)} of {total}; --all lists all" if total > len(found) else str(total)
    note(f"{shown}; `toolhub jobs show JOB` tells all about one")


@jobs.command()
@job_argument
@json_option
@connection_options
def show(job_id: str, as_json: bool, **options: Any) -> None:
    """One job: what it runs, for whom and why, how far it is, and its result.

    \b
    Example:
      toolhub jobs show job_019a7c41d2e05b7a3d41c6e0
    """
    with connected_by(options) as connection:
        job = get_job(connection, job_id)
    if wants_json(as_json):
        print_json(message_as_json(job))
    else:
        print_job(job)


@jobs.command()
@job_argument
@click.option("--json", "as_json", is_flag=True, help="Print every status as one JSON object a line.")
@connection_options
def watch(job_id: str, as_json: bool, **options: Any) -> None:
    """Follow JOB to its end: state, progress, rate and time left, then its result as `toolhub call` prints it.

    Goes on where it was when the hub was started again. Ctrl-C ends the watching, not the job (exit code 130). Without
    a terminal it prints lines, about one a second.

    \b
    Examples:
      toolhub jobs watch job_019a7c41d2e05b7a3d41c6e0
      toolhub jobs watch job_019a7c41d2e05b7a3d41c6e0 --json | jq -r .state
    """
    with connected_by(options) as connection:
        watch_to_the_end(connection, get_job(connection, job_id), as_json=as_json)


@jobs.command()
@job_argument
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for its end.")
@json_option
@connection_options
def result(job_id: str, is_waiting: bool, as_json: bool, **options: Any) -> None:
    """What came of JOB, as `toolhub call` prints it; exits 1 when that is an error.

    \b
    Examples:
      toolhub jobs result job_019a7c41d2e05b7a3d41c6e0
      toolhub jobs result job_019a7c41d2e05b7a3d41c6e0 --wait | jq .result
    """
    with connected_by(options) as connection:
        job = get_job(connection, job_id)
        status = job.status
        if status.state not in FINAL_STATES:
            if not is_waiting:
                raise HubRefused(f"{job_id} is {state_of(status)}; `toolhub jobs result {job_id} --wait` waits for it")
            status = follow(connection, job, WaitingBar(job.tool))
    if wants_json(as_json):
        print_json(message_as_json(status.result))
    else:
        show_result(status.result)
    if not status.result.ok:
        sys.exit(EXIT_REFUSED)


@jobs.command()
@job_argument
@click.option("-m", "--reason", default="", help="Why; kept in the audit log.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until it has stopped.")
@json_option
@connection_options
def cancel(job_id: str, reason: str, is_waiting: bool, as_json: bool, **options: Any) -> None:
    """Ask JOB to stop. What it has done by then stays; exits 1 when it ended otherwise.

    \b
    Examples:
      toolhub jobs cancel job_019a7c41d2e05b7a3d41c6e0 --reason "the wrong file"
      toolhub jobs cancel job_019a7c41d2e05b7a3d41c6e0 --wait
    """
    with connected_by(options) as connection:
        status = _cancelled(connection, job_id, reason)
        if is_waiting and status.state not in FINAL_STATES:
            status = follow(connection, get_job(connection, job_id), WaitingBar(job_id))
    if wants_json(as_json):
        print_json(message_as_json(status))
    else:
        click.echo(line(status, job_id))
        _explain(status)
    if status.state in FINAL_STATES and status.state != job_state_pb2.JOB_STATE_CANCELLED:
        sys.exit(EXIT_REFUSED)


def _explain(status: job_pb2.JobStatus) -> None:
    if status.state not in FINAL_STATES:
        note(f"it is asked to stop; `toolhub jobs watch {status.job_id}` shows when it has")
    elif status.state != job_state_pb2.JOB_STATE_CANCELLED:
        note(f"it was over before it could be stopped; `toolhub jobs result {status.job_id}` shows what came of it")


def _cancelled(connection: Connection, job_id: str, reason: str) -> job_pb2.JobStatus:
    request = pb.CancelJobRequest(job_id=job_id, reason=reason)
    return _stub(connection).CancelJob(request, timeout=connection.timeout_s, metadata=connection.metadata).status


def _filter(options: dict[str, Any]) -> pb.ListJobsRequest:
    names = set(options["states"]) - {_OPEN}
    states = {job_state_pb2.JobState.Value(f"JOB_STATE_{name.upper()}") for name in names}
    if _OPEN in options["states"]:
        states |= set(job_state_pb2.JobState.values()) - FINAL_STATES - {job_state_pb2.JOB_STATE_UNSPECIFIED}
    return pb.ListJobsRequest(
        states=sorted(states),
        tool=options["tool"],
        request_id=options["request_id"],
        principal=options["principal"],
    )


def _listed(connection: Connection, where: pb.ListJobsRequest, limit: int | None) -> tuple[list[job_pb2.Job], int]:
    """(the newest `limit` that fit, how many fit)."""
    found: list[job_pb2.Job] = []
    total = 0
    for page in _pages(connection, where, limit):
        found.extend(page.jobs)
        total = page.total_size
        if limit is not None and len(found) >= limit:
            return found[:limit], total
    return found, max(total, len(found))


def _pages(connection: Connection, where: pb.ListJobsRequest, limit: int | None) -> Iterator[pb.ListJobsResponse]:
    where.page_size = min(limit or _PAGE, _PAGE)
    while True:
        page = _stub(connection).ListJobs(where, timeout=connection.timeout_s, metadata=connection.metadata)
        yield page
        if not page.next_page_token:
            return
        where.page_token = page.next_page_token


def _stub(connection: Connection) -> JobServiceStub:
    return JobServiceStub(connection.channel)
