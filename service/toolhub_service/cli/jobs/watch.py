"""How jobs are shown, and a job followed to its end: what the command prints and exits with."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Self

import click
import grpc

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub_service.cli.call import show_result
from toolhub_service.cli.connection.client import Connection, is_transient, outage_text, reopened
from toolhub_service.cli.terminal.output import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    Escaped,
    can_redraw,
    enum_name,
    joined,
    message_as_json,
    note,
    print_line,
    print_next,
    print_pairs,
    print_table,
    seconds_since,
    span,
    styled,
    utc,
)
from toolhub_service.cli.terminal.progress import Pace, ProgressBar, done, percent, progress_text

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


def styled_state(status: job_pb2.JobStatus, width: int = 0) -> Escaped:
    state = state_of(status)
    return styled(state.ljust(width), fg=_COLOURS.get(state), bold=True)


def line(status: job_pb2.JobStatus, progress: str = "") -> Escaped:
    """Return one status of a job as a line."""
    begin = joined(f"{status.at.ToDatetime():%H:%M:%S}  ", styled_state(status, _STATE_COLUMNS if progress else 0))
    return joined(begin, "  ", progress) if progress else begin


def print_jobs(jobs: Iterable[job_pb2.Job]) -> None:
    """Print a table, with a column for the principal when the jobs are of several."""
    shown = list(jobs)
    several = len({job.principal for job in shown}) > 1
    headings = ("JOB", *(["WHO"] if several else []), "TOOL", "STATE", "PROGRESS", "AGE")
    print_table(headings, (_row(job, several) for job in shown), is_cut=True)


def print_job(job: job_pb2.Job) -> None:
    """Print one job, with its result when it has ended."""
    print_line(styled(f"{job.job_id}  ", bold=True), nl=False)
    print_line(styled_state(job.status))
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
    return far, done(progress)


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


# Statuses carry a gapless sequence, so a watch that resumes after the last one seen misses nothing and repeats nothing.
# Before it resumes it reads the job once: the watch of a quiet job is silent, and users want to know that the hub
# answers again.

_PAUSE_MAX_S = 2.0
FINAL_STATES = frozenset(
    {
        job_state_pb2.JOB_STATE_SUCCEEDED,
        job_state_pb2.JOB_STATE_FAILED,
        job_state_pb2.JOB_STATE_CANCELLED,
        job_state_pb2.JOB_STATE_TIMED_OUT,
        job_state_pb2.JOB_STATE_LOST,
    }
)


def get_job(connection: Connection, job_id: str) -> job_pb2.Job:
    """Return the job. Raises grpc.RpcError."""
    return connection.call(connection.jobs.GetJob, pb.GetJobRequest(job_id=job_id)).job


def full_job_id(connection: Connection, given: str) -> str:
    """Return the ID with the given prefix. Raises click.UsageError, grpc.RpcError."""
    return connection.full_id(given, connection.jobs.ListJobs, pb.ListJobsRequest(), "jobs", "job_id")


class JobWatch:
    """The statuses of a job up to the final one; iterate once. Raises grpc.RpcError when the hub refuses the watch: the
    job has expired, or belongs to another principal."""

    def __init__(
        self,
        connection: Connection,
        job_id: str,
        *,
        disconnected: Callable[[float], object] = lambda _: None,
        reconnected: Callable[[], object] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`disconnected` is called with the seconds until the next try, `reconnected` when the hub answers again."""
        self._connection = connection
        self._job_id = job_id
        self._disconnected = disconnected
        self._reconnected = reconnected
        self._pause = pause
        self._seen = 0
        self._is_disconnected = False

    def __iter__(self) -> Generator[job_pb2.JobStatus, None, None]:
        for status in reopened(self._watch, _PAUSE_MAX_S, self._on_outage, self._pause):
            yield status
            if status.state in FINAL_STATES:
                return

    def _on_outage(self, pause_s: float) -> None:
        self._is_disconnected = True
        self._disconnected(pause_s)

    def _watch(self) -> Iterator[job_pb2.JobStatus]:
        """Run one stream, from where the last one ended."""
        if self._is_disconnected:
            get_job(self._connection, self._job_id)
            self._is_disconnected = False
            self._reconnected()
        request = pb.WatchJobRequest(job_id=self._job_id, after_sequence=self._seen)
        answers = self._connection.jobs.WatchJob(request, metadata=self._connection.metadata)
        try:
            for answer in answers:
                # A hub that was asked for what follows may still repeat an entry.
                if answer.status.sequence > self._seen:
                    self._seen = answer.status.sequence
                    yield answer.status
        finally:
            answers.cancel()


def watch_to_the_end(connection: Connection, job: job_pb2.Job, *, as_json: bool) -> None:
    """Show every status, then the result; exit 1 when it is not a success. Ctrl-C leaves the job running."""
    screen = JsonLines() if as_json else LiveBar(job.tool) if can_redraw() else PlainLines()
    last = follow(connection, job, screen)
    if not as_json:
        show_result(last.result)
    if not last.result.ok:
        sys.exit(EXIT_REFUSED)


def follow(connection: Connection, job: job_pb2.Job, screen: JobScreen) -> job_pb2.JobStatus:
    """Show each status on `screen` and return the final one. Raises grpc.RpcError; exits when interrupted."""
    try:
        with screen:
            for status in JobWatch(
                connection, job.job_id, disconnected=screen.disconnected, reconnected=screen.reconnected
            ):
                screen.show(status)
                if status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
                    for words in how_to_approve(_approval_of(connection, job)):
                        screen.say(words)
                if status.state in FINAL_STATES:
                    return status
    except KeyboardInterrupt:
        print_line(err=True)
        print_line(f"{job.job_id} keeps running in the hub. To follow or cancel it:", err=True)
        print_line(f"toolhub jobs watch {job.job_id}", err=True)
        print_line(f"toolhub jobs cancel {job.job_id}", err=True)
        # The terminal itself may have ended.
        with suppress(BrokenPipeError):
            sys.stderr.flush()
        sys.exit(EXIT_INTERRUPTED)
    raise click.ClickException("The hub ended the watch before the job ended. Run the command again.")


def _approval_of(connection: Connection, job: job_pb2.Job) -> str:
    """Return the ID of the approval that it waits for; empty when the hub does not answer."""
    if job.approval_id:
        return job.approval_id
    try:
        return get_job(connection, job.job_id).approval_id
    except grpc.RpcError as error:
        if not is_transient(error):
            raise
        return ""


# Output of the statuses: a bar on a terminal, plain lines without one, or JSON.

# Seconds between two plain lines of progress.
_PLAIN_EVERY_S = 1.0


class JobScreen(ABC):
    """Shows a job while it is followed. Text beside the statuses goes to standard error."""

    def __init__(self) -> None:
        self._is_disconnected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def show(self, status: job_pb2.JobStatus) -> None:
        """Show one status."""

    def say(self, text: str) -> None:
        """Show a line beside the statuses."""
        note(text, err=True)

    def disconnected(self, pause_s: float) -> None:
        """Show that the hub does not answer, and is retried in `pause_s`. Shown once: lines cannot be taken back."""
        if not self._is_disconnected:
            self._is_disconnected = True
            self.say(outage_text(pause_s))

    def reconnected(self) -> None:
        self._is_disconnected = False
        self.say("the hub answers again")


class JsonLines(JobScreen):
    """Each status as one line of JSON."""

    def show(self, status: job_pb2.JobStatus) -> None:
        print_next(message_as_json(status))


class PlainLines(JobScreen):
    """A line for each change of state, and for progress about once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._pace = Pace()
        self._state = ""
        self._printed_at_s = 0.0

    def show(self, status: job_pb2.JobStatus) -> None:
        at_s = status.at.ToMilliseconds() / 1_000
        state, is_report = state_of(status), status.HasField("progress")
        if state != self._state and status.state not in FINAL_STATES:
            self._pace.reset()
        if is_report:
            self._pace.add(status.progress, at_s)
        if state == self._state and at_s - self._printed_at_s < _PLAIN_EVERY_S:
            return
        self._state, self._printed_at_s = state, at_s
        print_line(line(status, progress_text(status.progress, self._pace) if is_report else ""))


class LiveBar(JobScreen):
    """Changes of state scroll above a progress bar."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._state = ""
        self._bar = ProgressBar(title, on_stdout=True)

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, status: job_pb2.JobStatus) -> None:
        state, is_over = state_of(status), status.state in FINAL_STATES
        if is_over:
            self._bar.close()
        if state != self._state:
            self._state = state
            self._bar.reset()
            self._bar.above(line(status))
        if not is_over:
            self._bar.rename(self._doing())
            if status.HasField("progress"):
                self._bar.show(status.progress, status.at.ToMilliseconds() / 1_000)

    def say(self, text: str) -> None:
        self._bar.above(text)

    def disconnected(self, pause_s: float) -> None:
        self._bar.rename(outage_text(pause_s))

    def reconnected(self) -> None:
        self._bar.rename(self._doing())
        self._bar.above(styled("the hub answers again", dim=True))

    def _doing(self) -> str:
        return f"{self._title} {self._state.lower().replace('_', ' ')}".rstrip()


class WaitingBar(JobScreen):
    """Waits for the end: a bar on standard error if that is a terminal, else only outages are shown."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._bar = ProgressBar(title)

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, status: job_pb2.JobStatus) -> None:
        if status.HasField("progress"):
            self._bar.show(status.progress, status.at.ToMilliseconds() / 1_000)
