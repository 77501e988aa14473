"""Rates and times from reports, and how they are worded."""

from __future__ import annotations

import pytest

from toolhub.v1 import progress_pb2
from toolhub_service.cli.progress import Pace, amount, clock, done, percent, progress_text


def report(step: float, total: float | None = None, unit: str = "rows", message: str = "") -> progress_pb2.Progress:
    return progress_pb2.Progress(step=step, total=total, unit=unit, message=message)


def paced(*reports: tuple[float, float]) -> Pace:
    pace = Pace()
    for at_s, step in reports:
        pace.add(report(step), at_s)
    return pace


def test_rate_comes_from_the_clock_of_the_reports() -> None:
    assert paced((100.0, 0), (102.0, 50)).rate == 25.0


def test_one_report_or_reports_of_one_moment_make_no_rate() -> None:
    assert paced((1.0, 5)).rate is None
    assert paced((1.0, 5), (1.0, 9)).rate is None


def test_work_that_stands_still_has_no_rate_and_no_end() -> None:
    pace = paced((0.0, 5), (5.0, 5))
    assert pace.rate is None
    assert pace.left_s(report(5, 10)) is None


def test_rate_is_that_of_the_last_ten_seconds() -> None:
    assert paced((0.0, 0), (1.0, 1_000), (20.0, 1_010), (25.0, 1_020), (30.0, 1_030)).rate == 2.0


def test_work_that_is_run_again_begins_a_new_rate() -> None:
    assert paced((0.0, 0), (1.0, 1_000), (2.0, 1), (4.0, 3)).rate == 1.0


def test_work_that_was_held_up_begins_a_new_rate() -> None:
    pace = paced((0.0, 0), (1.0, 10))
    pace.reset()
    pace.add(report(10), 60.0)
    assert pace.rate is None
    pace.add(report(12), 61.0)
    assert pace.rate == 2.0


def test_time_left_is_the_tools_guess_before_ours() -> None:
    pace = paced((0.0, 0), (1.0, 10))
    assert pace.left_s(report(10, 110)) == 10.0
    guessed = report(10, 110)
    guessed.eta.FromMilliseconds(2_500)
    assert pace.left_s(guessed) == 2.5
    assert pace.left_s(report(10)) is None


def test_a_report_is_told_in_one_line() -> None:
    pace = paced((0.0, 0), (2.0, 30))
    assert progress_text(report(30, 120, message="table orders"), pace) == (
        "25 % · 30 of 120 rows · 15 rows/s · 00:06 left · table orders"
    )
    assert progress_text(report(120, 120), pace) == "100 % · 120 of 120 rows · 15 rows/s"
    assert progress_text(report(30), Pace()) == "30 rows"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (999, "bytes", "999 bytes"),
        (1_000, "bytes", "1 kB"),
        (12_345_678, "bytes", "12.3 MB"),
        (999_900_000, "bytes", "1 GB"),
        (5e15, "bytes", "5,000.0 TB"),
        (0.25, "steps", "0.2 steps"),
        (12_345.6, "rows", "12,346 rows"),
        (3, "", "3"),
    ],
)
def test_amounts_are_short(value: float, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def test_a_percentage_needs_a_whole_and_is_never_rounded_up_to_all() -> None:
    assert percent(report(999, 1_000)) == "99 %"
    assert percent(report(3, 0)) == ""
    assert percent(report(3)) == ""
    assert percent(report(12, 10)) == "100 %"
    assert done(report(44e6, 90e6, "bytes")) == "44 MB of 90 MB"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "00:00"), (73, "01:13"), (7_205, "2:00:05")])
def test_times_are_told_as_a_clock_does(seconds: float, words: str) -> None:
    assert clock(seconds) == words
