"""A certificate is reported 14, 3 and 1 days ahead of its end, a clock that is behind the audit log at once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.hub import running_hub, settings_of
from toolhub_service.app.certificates import Validity
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.kept import clock_check
from toolhub_service.app.expiry_watch import ClockWatch, ExpiryWatch, clock_behind_s, expiry_stage

DAY_S = 86_400.0
YEAR = Validity(0.0, 365 * DAY_S)


@pytest.mark.parametrize(
    ("days_left", "stage"), [(15, None), (14, 14), (13.9, 14), (3.1, 14), (3, 3), (1, 1), (0.1, 1), (0, 0), (-5, 0)]
)
def test_a_certificate_has_stages_before_its_end(days_left: float, stage: int | None) -> None:
    assert expiry_stage(YEAR, YEAR.end_s - days_left * DAY_S) == stage


@pytest.mark.parametrize("life_s", [3_600.0, DAY_S, 2.9 * DAY_S])
def test_a_short_lived_certificate_is_reported_when_it_has_expired_only(life_s: float) -> None:
    held = Validity(0.0, life_s)
    assert expiry_stage(held, life_s / 2) is None
    assert expiry_stage(held, life_s + 1) == 0


class Recorder:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def certificate_expires(self, file: str, end_s: float, *, has_expired: bool) -> None:
        self.said.append((file, has_expired))

    def clock_compared(self, behind_s: float, newest_unix_ms: int, *, is_new: bool) -> None:
        self.said.append((behind_s, is_new))


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def unix_ms(self) -> int:
        return int(self.now_s * 1_000)

    def monotonic_s(self) -> float:
        return self.now_s


class Certificates:
    def __init__(self) -> None:
        self.validities = {"certificate": YEAR}


def test_each_stage_is_reported_once_and_again_for_the_next_certificate() -> None:
    clock, recorder, certificates = Clock(), Recorder(), Certificates()
    watch = ExpiryWatch(certificates, recorder, clock)  # type: ignore[arg-type]
    for days_left in (20, 14, 13, 5, 3, 2, 1, 0.5, 0, -1):
        clock.now_s = YEAR.end_s - days_left * DAY_S
        watch.check()
        watch.check()
    assert recorder.said == [("certificate", False)] * 3 + [("certificate", True)]
    certificates.validities = {"certificate": Validity(YEAR.end_s, 2 * YEAR.end_s)}
    watch.check()
    clock.now_s = 2 * YEAR.end_s - 2 * DAY_S
    watch.check()
    assert len(recorder.said) == 5


@pytest.mark.parametrize(("newest_ms", "behind_s"), [(0, 0.0), (1_001_900, 0.0), (1_060_000, 60.0)])
def test_a_clock_is_behind_beyond_what_clocks_of_hubs_differ(newest_ms: int, behind_s: float) -> None:
    assert clock_behind_s(newest_ms, 1_000_000) == behind_s


async def test_a_clock_that_was_set_back_is_reported_once_until_it_is_right_again() -> None:
    clock, recorder, newest = Clock(), Recorder(), [90_000]
    watch = ClockWatch(lambda: newest[0], recorder, clock)  # type: ignore[arg-type]
    for now_s in (0.0, 30.0, 61.0, 130.0):
        clock.now_s = now_s
        await watch.check()
    newest[0] = 500_000
    clock.now_s = 200.0
    await watch.check()
    assert recorder.said == [(90.0, True), (29.0, False), (0.0, False), (300.0, True)]


async def test_a_hub_whose_clock_is_behind_its_log_says_so_in_metric_and_doctor(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as running:
        await running.invoke("core/util.time.now")
        await running.events()
        assert running.hub.audit.events.newest_unix_ms() <= time.time() * 1_000 + 1
    settings = settings_of(tmp_path)
    assert [finding.state for finding in clock_check(settings)] == [State.OK]
    with closing(sqlite3.connect(Paths(settings).audit)) as connection, connection:
        connection.execute("UPDATE events SET at_unix_ms = at_unix_ms + 3600000")
    (finding,) = clock_check(settings)
    assert finding.state is State.FAIL
    assert "behind" in finding.text
