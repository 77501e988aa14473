"""A job followed to its end: what the command prints and exits with."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Self

import click
import grpc

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub_service.cli.call import show_result
from toolhub_service.cli.connection.client import Connection
from toolhub_service.cli.connection.watching import outage_text
from toolhub_service.cli.jobs.job_watch import FINAL_STATES, JobWatch, get_job
from toolhub_service.cli.jobs.listing import how_to_approve, line, state_of
from toolhub_service.cli.terminal.output import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    can_redraw,
    message_as_json,
    note,
    print_line,
    print_next,
    style,
)
from toolhub_service.cli.terminal.progress import Pace, ProgressBar, progress_text


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
                connection, job.job_id, disconnected=screen.show_outage, reconnected=screen.end_outage
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
        from toolhub_client.outages import is_transient

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

    def show_outage(self, pause_s: float) -> None:
        """Show that the hub does not answer, and is retried in `pause_s`. Shown once: lines cannot be taken back."""
        if not self._is_disconnected:
            self._is_disconnected = True
            self.say(outage_text(pause_s))

    def end_outage(self) -> None:
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

    def show_outage(self, pause_s: float) -> None:
        self._bar.rename(outage_text(pause_s))

    def end_outage(self) -> None:
        self._bar.rename(self._doing())
        self._bar.above(style("the hub answers again", dim=True))

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
