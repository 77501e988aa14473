"""How fast work goes and how long it will take, from its own reports.

The rate is that of the last ten seconds of reports, by the clock that stamped them: reports that arrive together after
a broken connection do not look fast. Work that is run again begins at a smaller step, and the rate begins anew.
"""

from __future__ import annotations

from collections import deque

from toolhub.v1 import progress_pb2

_WINDOW_S = 10.0
_MOST = 512
_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB")


class Pace:
    """Of one job or call."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def heard(self, report: progress_pb2.Progress, at_s: float) -> None:
        if self._reports and report.step < self._reports[-1][1]:
            self._reports.clear()
        self._reports.append((at_s, report.step))
        while len(self._reports) > 2 and at_s - self._reports[0][0] > _WINDOW_S:
            self._reports.popleft()

    def begin_anew(self) -> None:
        """What was reported so far says nothing about what comes: the work was held up."""
        self._reports.clear()

    @property
    def rate(self) -> float | None:
        """Units a second; None before the second report, and while nothing moves."""
        if len(self._reports) < 2:
            return None
        (from_s, first), (to_s, last) = self._reports[0], self._reports[-1]
        return (last - first) / (to_s - from_s) if to_s > from_s and last > first else None

    def left_s(self, report: progress_pb2.Progress) -> float | None:
        """Seconds to the end: the tool's guess where it made one, else from the rate; None when nobody can tell."""
        if report.HasField("eta"):
            return report.eta.ToMilliseconds() / 1_000
        rate = self.rate
        return max(report.total - report.step, 0.0) / rate if rate and report.HasField("total") else None


def amount(value: float, unit: str) -> str:
    """Such as `1,204 rows` and `12.3 MB`; a value alone where the unit is not known."""
    if unit == "bytes":
        return _bytes(value)
    number = f"{value:,.0f}" if value % 1 == 0 or value >= 100 else f"{value:.1f}"
    return f"{number} {unit}".rstrip()


def told(report: progress_pb2.Progress, pace: Pace) -> str:
    """A report in words: how far, how fast, how long still, and the tool's own line."""
    rate, left_s = pace.rate, pace.left_s(report)
    speed = "" if rate is None else f"{amount(rate, report.unit)}/s"
    left = f"{clock(left_s)} left" if left_s else ""
    return " · ".join(part for part in (percent(report), done(report), speed, left, report.message) if part)


def done(report: progress_pb2.Progress) -> str:
    """Such as `12 of 40 files`."""
    if not report.HasField("total"):
        return amount(report.step, report.unit)
    unit = "" if report.unit != "bytes" else report.unit
    return f"{amount(report.step, unit)} of {amount(report.total, report.unit)}"


def percent(report: progress_pb2.Progress) -> str:
    """Such as `45 %`, never 100 before it is all; empty when the whole is not known."""
    if not report.HasField("total") or report.total <= 0:
        return ""
    return f"{min(int(report.step * 100 / report.total), 100)} %"


def clock(seconds: float) -> str:
    """Such as `01:13` and `2:00:05`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def _bytes(value: float) -> str:
    size = value
    for unit in _BYTE_UNITS[:-1]:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:,.1f} {_BYTE_UNITS[-1]}"
