"""Progress on the terminal: a bar with what is done, the rate and the time left; gone when the work has ended."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from toolhub_service.cli.output import legible
from toolhub_service.cli.pace import Pace, told

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from toolhub.v1 import progress_pb2

_BAR_COLUMNS = 24


class ProgressBar:
    """Drawn by rich, which is imported only when there is something to draw: the first report, or `rename`."""

    def __init__(self, title: str, *, on_stdout: bool = False) -> None:
        """On standard error, or on standard output, whose other lines then go through `above`."""
        self._title = title
        self._on_stdout = on_stdout
        self._pace = Pace()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, report: progress_pb2.Progress, at_s: float | None = None) -> None:
        """`at_s`: when it was made, by any clock that is the same for all reports; left out, now."""
        self._pace.heard(report, time.monotonic() if at_s is None else at_s)
        self._update(**_state(report, self._pace))

    def begin_anew(self) -> None:
        """The rate is that of what comes."""
        self._pace.begin_anew()

    def rename(self, title: str) -> None:
        """Say what is going on, with or without a report."""
        self._title = title
        self._update(description=legible(title))

    def above(self, line: str) -> None:
        """A line that stays, which may hold colours."""
        if self._bar is None:
            click.echo(line, err=not self._on_stdout)
            return
        from rich.text import Text

        self._bar.console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        """It is gone; the next report draws another."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _update(self, **state: Any) -> None:
        if self._bar is None or self._task is None:
            self._bar = _drawn(on_stdout=self._on_stdout)
            self._task = self._bar.add_task(legible(self._title), total=None, told="")
            self._bar.start()
        self._bar.update(self._task, **state)


def _drawn(*, on_stdout: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    told = TextColumn("{task.fields[told]}", markup=False)
    title = TextColumn("{task.description}", markup=False)
    console = Console(stderr=not on_stdout)
    return Progress(title, BarColumn(_BAR_COLUMNS), told, console=console, transient=True)


def _state(report: progress_pb2.Progress, pace: Pace) -> dict[str, Any]:
    total = report.total if report.HasField("total") else None
    return {"completed": report.step, "total": total, "told": legible(told(report, pace))}
