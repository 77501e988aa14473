"""A job followed to its end, and what the command then prints and exits with."""

from __future__ import annotations

import sys
from contextlib import suppress

import click
import grpc

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub_service.cli.connection import EXIT_REFUSED, Connection
from toolhub_service.cli.job_following import FINAL_STATES, Following, get_job, passes
from toolhub_service.cli.job_screen import JobScreen, screen_for
from toolhub_service.cli.job_view import how_to_approve
from toolhub_service.cli.show_answer import show_result

EXIT_INTERRUPTED = 130


def watch_to_the_end(connection: Connection, job: job_pb2.Job, *, as_json: bool) -> None:
    """Every status, then the result; exits 1 when it is not a success. Ctrl-C leaves the job running."""
    last = follow(connection, job, screen_for(job.tool, as_json=as_json))
    if not as_json:
        show_result(last.result)
    if not last.result.ok:
        sys.exit(EXIT_REFUSED)


def follow(connection: Connection, job: job_pb2.Job, screen: JobScreen) -> job_pb2.JobStatus:
    """The final status. Raises grpc.RpcError when the hub refuses; exits when interrupted."""
    try:
        with screen:
            for status in Following(connection, job.job_id, lost=screen.lost, found=screen.found):
                screen.show(status)
                if status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
                    screen.say(how_to_approve(_approval_of(connection, job)))
                if status.state in FINAL_STATES:
                    return status
    except KeyboardInterrupt:
        _leave(job.job_id)
    raise click.ClickException("the hub ended the watch of a job that is not over")


def _approval_of(connection: Connection, job: job_pb2.Job) -> str:
    """It may have come to wait just now; empty when the hub is gone again."""
    if job.approval_id:
        return job.approval_id
    try:
        return get_job(connection, job.job_id).approval_id
    except grpc.RpcError as error:
        if not passes(error):
            raise
        return ""


def _leave(job_id: str) -> None:
    click.echo(err=True)
    click.echo(f"{job_id} goes on in the hub. To follow it again, or to stop it:", err=True)
    click.echo(f"toolhub jobs watch {job_id}\ntoolhub jobs cancel {job_id}", err=True)
    with suppress(BrokenPipeError):
        sys.stderr.flush()
    sys.exit(EXIT_INTERRUPTED)
