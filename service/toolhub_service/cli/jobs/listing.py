"""How jobs are shown: a line or a row of each, or all that is known of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub_service.cli.call import show_result
from toolhub_service.cli.terminal.output import (
    Escaped,
    enum_name,
    join_parts,
    note,
    print_line,
    print_pairs,
    print_table,
    seconds_since,
    span,
    style,
    utc,
)
from toolhub_service.cli.terminal.progress import amount_done, percent

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
# Width of the usual states; AWAITING_APPROVAL makes its line longer.
_STATE_COLUMNS = 9


def state_of(status: job_pb2.JobStatus) -> str:
    return enum_name(status, "state")


def style_state(status: job_pb2.JobStatus, width: int = 0) -> Escaped:
    state = state_of(status)
    return style(state.ljust(width), fg=_COLOURS.get(state), bold=True)


def line(status: job_pb2.JobStatus, progress: str = "") -> Escaped:
    """Return one status of a job as a line."""
    begin = join_parts(f"{status.at.ToDatetime():%H:%M:%S}  ", style_state(status, _STATE_COLUMNS if progress else 0))
    return join_parts(begin, "  ", progress) if progress else begin


def print_jobs(jobs: Iterable[job_pb2.Job]) -> None:
    """Print a table, with a column for the principal when the jobs are of several."""
    shown = list(jobs)
    several = len({job.principal for job in shown}) > 1
    headings = ("JOB", *(["WHO"] if several else []), "TOOL", "STATE", "PROGRESS", "AGE")
    print_table(headings, (_row(job, several) for job in shown), is_cut=True)


def print_job(job: job_pb2.Job) -> None:
    """Print one job, with its result when it has ended."""
    print_line(style(f"{job.job_id}  ", bold=True), nl=False)
    print_line(style_state(job.status))
    print_pairs((name, value) for name, value in _facts(job) if value)
    if job.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
        for words in how_to_approve(job.approval_id):
            print_line(words)
    if job.status.HasField("result"):
        note("\nresult:")
        show_result(job.status.result)


def how_to_approve(approval_id: str) -> tuple[str, str]:
    """Return what the job waits for, and the command that decides."""
    if not approval_id:
        return "The job waits for an approval. To list approvals:", "toolhub approvals list"
    how = "The job waits for an approval. Another principal approves it with:"
    return how, f"toolhub approvals approve {approval_id}"


def _row(job: job_pb2.Job, several: bool) -> tuple[str, ...]:
    far = next(filter(None, _how_far(job)), "–")
    who = (job.principal,) if several else ()
    return (job.job_id, *who, job.tool, state_of(job.status), far, span(seconds_since(job.created_at)))


def _how_far(job: job_pb2.Job) -> tuple[str, str]:
    """Return percentage and figures; empty where unknown. The last report of a job that succeeded is older than its
    end, and may say 5 %."""
    progress = job.status.progress
    if not job.status.HasField("progress"):
        return "", ""
    far = percent(progress)
    if state_of(job.status) == "SUCCEEDED" and far != "100 %":
        return ("100 %", "") if far else ("", "")
    return far, amount_done(progress)


def _facts(job: job_pb2.Job) -> Iterator[tuple[str, str]]:
    yield "tool", f"{job.tool} {job.tool_version}"
    yield "caller", job.principal
    yield "purpose", job.purpose
    yield "request", job.request_id
    yield "task", job.task_id
    yield "approval", job.approval_id
    if job.status.HasField("progress"):
        yield "progress", " · ".join(filter(None, (*_how_far(job), job.status.progress.message)))
    yield "submitted", f"{utc(job.created_at)}, {span(seconds_since(job.created_at))} ago"
    yield "last change", f"{utc(job.status.at)}, number {job.status.sequence} in its history"
    if job.HasField("deadline") and not job.status.HasField("result"):
        yield "times out", utc(job.deadline)
    if job.HasField("expires_at"):
        yield "expires", utc(job.expires_at)
    for artifact in job.status.artifacts:
        yield "artifact", f"{artifact.artifact_id}  {artifact.name}  {artifact.size_bytes:,} bytes"
    yield "call", job.call_id
