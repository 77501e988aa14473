"""Where the statuses of a followed job go: a bar on a terminal, plain lines without one, or JSON."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

import click

from toolhub.v1 import job_pb2
from toolhub_service.cli.job_following import FINAL_STATES
from toolhub_service.cli.job_view import line, state_of
from toolhub_service.cli.output import message_as_json, note, print_json_line
from toolhub_service.cli.pace import Pace, told
from toolhub_service.cli.progress_bar import ProgressBar

_PLAIN_EVERY_S = 1.0
"""Between two lines of progress where they stay for ever."""


class JobScreen(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, status: job_pb2.JobStatus) -> None: ...

    def say(self, text: str) -> None:
        """A line beside the statuses."""

    def lost(self, pause_s: float) -> None:
        """The hub is away and will be asked again in so many seconds."""

    def found(self) -> None: ...


def screen_for(title: str, *, as_json: bool) -> JobScreen:
    if as_json:
        return JsonLines()
    return LiveBar(title) if sys.stdout.isatty() else PlainLines()


def _told_lost(pause_s: float) -> str:
    return f"the hub does not answer; reconnecting in {pause_s:.1f} s"


class _Lines:
    def __init__(self) -> None:
        self._is_lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        note(text, err=True)

    def lost(self, pause_s: float) -> None:
        """Told once an outage: the lines stay."""
        if not self._is_lost:
            self._is_lost = True
            self.say(_told_lost(pause_s))

    def found(self) -> None:
        self._is_lost = False
        self.say("the hub is back")


class JsonLines(_Lines):
    """Every status, one object a line; words beside go to standard error."""

    def show(self, status: job_pb2.JobStatus) -> None:
        print_json_line(message_as_json(status))


class PlainLines(_Lines):
    """A line for each change of state, and for progress about once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._pace = Pace()
        self._state = ""
        self._told_at_s = 0.0

    def show(self, status: job_pb2.JobStatus) -> None:
        at_s = status.at.ToMilliseconds() / 1_000
        state, is_report = state_of(status), status.HasField("progress")
        if state != self._state and status.state not in FINAL_STATES:
            self._pace.begin_anew()
        if is_report:
            self._pace.heard(status.progress, at_s)
        if state == self._state and at_s - self._told_at_s < _PLAIN_EVERY_S:
            return
        self._state, self._told_at_s = state, at_s
        click.echo(line(status, told(status.progress, self._pace) if is_report else ""))


class LiveBar:
    """Changes of state scroll by above, what runs is drawn below."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._state = ""
        self._bar = ProgressBar(title, on_stdout=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def show(self, status: job_pb2.JobStatus) -> None:
        state, is_over = state_of(status), status.state in FINAL_STATES
        if is_over:
            self._bar.close()
        if state != self._state:
            self._state = state
            self._bar.begin_anew()
            self._bar.above(line(status))
        if not is_over:
            self._draw(status)

    def say(self, text: str) -> None:
        self._bar.above(text)

    def lost(self, pause_s: float) -> None:
        self._bar.rename(_told_lost(pause_s))

    def found(self) -> None:
        self._bar.rename(self._doing())
        self._bar.above(click.style("the hub is back", dim=True))

    def _draw(self, status: job_pb2.JobStatus) -> None:
        self._bar.rename(self._doing())
        if status.HasField("progress"):
            self._bar.show(status.progress, status.at.ToMilliseconds() / 1_000)

    def _doing(self) -> str:
        return f"{self._title} {self._state.lower().replace('_', ' ')}".rstrip()


class WaitingBar(_Lines):
    """For who wants only the end: a bar on standard error, if that is a terminal, else nothing but trouble."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._bar = ProgressBar(title)
        self._shows = sys.stderr.isatty()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def show(self, status: job_pb2.JobStatus) -> None:
        if self._shows and status.HasField("progress"):
            self._bar.show(status.progress, status.at.ToMilliseconds() / 1_000)
