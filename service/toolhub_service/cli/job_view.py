"""How jobs are shown: state, progress, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import click
from google.protobuf import timestamp_pb2

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub_service.cli.call import show_result
from toolhub_service.cli.output import legible, note, print_pairs, print_table
from toolhub_service.cli.progress import done, percent

_COLOURS = {
    "AWAITING_APPROVAL": "yellow",
    "CANCELLING": "yellow",
    "CANCELLED": "yellow",
    "RUNNING": "blue",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "LOST": "red",
}
_STATE_COLUMNS = 9
"""Width of the usual states; AWAITING_APPROVAL makes its line longer."""


def state_of(status: job_pb2.JobStatus) -> str:
    return job_state_pb2.JobState.Name(status.state).removeprefix("JOB_STATE_")


def styled_state(status: job_pb2.JobStatus, width: int = 0) -> str:
    state = state_of(status)
    return click.style(state.ljust(width), fg=_COLOURS.get(state), bold=True)


def line(status: job_pb2.JobStatus, progress: str = "") -> str:
    """One status of a job as a line."""
    at = f"{status.at.ToDatetime():%H:%M:%S}"
    return (
        f"{at}  {styled_state(status, _STATE_COLUMNS)}  {legible(progress)}"
        if progress
        else f"{at}  {styled_state(status)}"
    )


def print_jobs(jobs: Iterable[job_pb2.Job]) -> None:
    """Print a table, with a column for the principal when the jobs are of several."""
    shown = list(jobs)
    several = len({job.principal for job in shown}) > 1
    headings = ("JOB", *(["WHO"] if several else []), "TOOL", "STATE", "PROGRESS", "AGE")
    print_table(headings, (_row(job, several) for job in shown), is_cut=True)


def print_job(job: job_pb2.Job) -> None:
    """Print one job, with its result when it has ended."""
    click.secho(f"{job.job_id}  ", bold=True, nl=False)
    click.echo(styled_state(job.status))
    print_pairs((name, value) for name, value in _facts(job) if value)
    if job.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
        click.echo(how_to_approve(job.approval_id))
    if job.status.HasField("result"):
        note("\nresult:")
        show_result(job.status.result)


def how_to_approve(approval_id: str) -> str:
    """What the job waits for, and below it the command that decides."""
    if not approval_id:
        return "The job waits for an approval. To see it:\ntoolhub approvals list"
    return f"The job waits for an approval by another principal:\ntoolhub approvals approve {approval_id}"


def _row(job: job_pb2.Job, several: bool) -> tuple[str, ...]:
    progress = job.status.progress
    far = (percent(progress) or done(progress)) if job.status.HasField("progress") else "–"
    who = (job.principal,) if several else ()
    return (job.job_id, *who, job.tool, state_of(job.status), far, _age(job.created_at))


def _facts(job: job_pb2.Job) -> Iterator[tuple[str, str]]:
    progress = job.status.progress
    yield "tool", f"{job.tool} {job.tool_version}"
    yield "caller", job.principal
    yield "purpose", job.purpose
    yield "request", job.request_id
    yield "task", job.task_id
    yield "approval", job.approval_id
    if job.status.HasField("progress"):
        yield "progress", " · ".join(part for part in (percent(progress), done(progress), progress.message) if part)
    yield "submitted", f"{_at(job.created_at)}, {_age(job.created_at)} ago"
    yield "last change", f"{_at(job.status.at)}, number {job.status.sequence} in its history"
    if job.HasField("deadline") and not job.status.HasField("result"):
        yield "times out", _at(job.deadline)
    if job.HasField("expires_at"):
        yield "expires", _at(job.expires_at)
    for artifact in job.status.artifacts:
        yield "artifact", f"{artifact.artifact_id}  {artifact.name}  {artifact.size_bytes:,} bytes"
    yield "call", job.call_id


def _age(since: timestamp_pb2.Timestamp) -> str:
    """Such as `42 min`."""
    age_s = max(0.0, time.time() - since.ToMilliseconds() / 1_000)
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= 2 * size_s:
            return f"{age_s / size_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def _at(stamp: timestamp_pb2.Timestamp) -> str:
    moment: datetime = stamp.ToDatetime()
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
