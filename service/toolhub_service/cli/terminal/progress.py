"""The progress of running work: its pace and the time left, as text and as a bar on the terminal.

The rate is that of the last ten seconds of reports, by the clock that stamped them: reports that arrive together after
a broken connection do not look fast. Work that is run again begins at a smaller step, and the rate begins anew.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolhub_service.cli.terminal.output import can_redraw, join_parts, print_line
from toolhub_service.guards.foreign_text import on_one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from toolhub.v1 import progress_pb2

_WINDOW_S = 10.0
_MOST = 512
_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB")


class Pace:
    """The rate of one job or call, and the time it still needs."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def add(self, report: progress_pb2.Progress, at_s: float) -> None:
        # The work was restarted, as by a job's new runner: the old pace does not apply.
        if self._reports and report.step < self._reports[-1][1]:
            self._reports.clear()
        self._reports.append((at_s, report.step))
        # At least two, or work that reports seldom would never have a pace.
        while len(self._reports) > 2 and at_s - self._reports[0][0] > _WINDOW_S:
            self._reports.popleft()

    def reset(self) -> None:
        """Forget the reports so far: the work was interrupted."""
        self._reports.clear()

    @property
    def rate(self) -> float | None:
        """Return units a second; None before the second report and while the step does not change."""
        if len(self._reports) < 2:
            return None
        (from_s, first), (to_s, last) = self._reports[0], self._reports[-1]
        return (last - first) / (to_s - from_s) if to_s > from_s and last > first else None

    def remaining_s(self, report: progress_pb2.Progress) -> float | None:
        """Return seconds to the end: the tool's own estimate, else from the rate; None when unknown."""
        if report.HasField("eta"):
            return report.eta.ToMilliseconds() / 1_000
        rate = self.rate
        return max(report.total - report.step, 0.0) / rate if rate and report.HasField("total") else None


def amount(value: float, unit: str) -> str:
    """Return a text such as `1,204 rows` and `12.3 MB`; only the value when the unit is unknown."""
    if unit == "bytes":
        return _bytes(value)
    number = f"{value:,.0f}" if value % 1 == 0 or value >= 100 else f"{value:.1f}"
    return f"{number} {unit}".rstrip()


def progress_text(report: progress_pb2.Progress, pace: Pace) -> str:
    """Return a report as text: done, rate, time left and the tool's message."""
    rate, left_s = pace.rate, pace.remaining_s(report)
    speed = "" if rate is None else f"{amount(rate, report.unit)}/s"
    left = f"{clock(left_s)} left" if left_s else ""
    return " · ".join(part for part in (percent(report), amount_done(report), speed, left, report.message) if part)


def amount_done(report: progress_pb2.Progress) -> str:
    """Return a text such as `12 of 40 files`."""
    if not report.HasField("total"):
        return amount(report.step, report.unit)
    # "3 of 10 rows", but "3 kB of 10 MB": the two amounts of bytes may differ in their unit.
    unit = "" if report.unit != "bytes" else report.unit
    return f"{amount(report.step, unit)} of {amount(report.total, report.unit)}"


def percent(report: progress_pb2.Progress) -> str:
    """Return a text such as `45 %`, never 100 before the end; empty when the total is unknown."""
    if not report.HasField("total") or report.total <= 0:
        return ""
    # Rounded down, because 100 % means done; a tool may also report more than it announced.
    return f"{min(int(report.step * 100 / report.total), 100)} %"


def clock(seconds: float) -> str:
    """Return a text such as `01:13` and `2:00:05`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def _bytes(value: float) -> str:
    size = value
    for unit in _BYTE_UNITS[:-1]:
        # Above this it would be shown as 1000.
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:,.1f} {_BYTE_UNITS[-1]}"


_BAR_COLUMNS = 24


class ProgressBar:
    """Drawn by rich, which is imported only with the first report or `rename`, and only on a terminal."""

    def __init__(self, title: str, *, on_stdout: bool = False) -> None:
        """On standard error, or on standard output; other lines for it then go through `above`."""
        self._title = title
        self._on_stdout = on_stdout
        self._is_drawn = can_redraw(on_stdout=on_stdout)
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
        """Show a report made at `at_s`, by any one clock; default: now."""
        self._pace.add(report, time.monotonic() if at_s is None else at_s)
        total = report.total if report.HasField("total") else None
        self._update(completed=report.step, total=total, text=on_one_line(progress_text(report, self._pace)))

    def reset(self) -> None:
        """Compute the rate from the next reports only."""
        self._pace.reset()

    def rename(self, title: str) -> None:
        """Change the title."""
        self._title = title
        self._update(description=on_one_line(title))

    def above(self, line: str) -> None:
        """Print a line above the bar; it may hold colours."""
        if self._bar is None:
            print_line(line, err=not self._on_stdout)
            return
        from rich.text import Text

        # Through the bar's console, which removes the bar first and redraws it below.
        self._bar.console.print(Text.from_ansi(join_parts(line)), soft_wrap=True)

    def close(self) -> None:
        """Remove the bar; the next report draws another."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _update(self, **state: Any) -> None:
        if not self._is_drawn:
            return
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            # Texts of tools must not be parsed as rich's markup.
            text = TextColumn("{task.fields[text]}", markup=False)
            title = TextColumn("{task.description}", markup=False)
            console = Console(stderr=not self._on_stdout)
            self._bar = Progress(title, BarColumn(_BAR_COLUMNS), text, console=console, transient=True)
            self._task = self._bar.add_task(on_one_line(self._title), total=None, text="")
            self._bar.start()
        self._bar.update(self._task, **state)
