"""How often a source may be read by what its readings cost."""

from __future__ import annotations

import pytest

from toolhub_service.registry.fair_share import FairShare


def made(*charges: tuple[float, float]) -> FairShare:
    """With a tenth of a processor and an allowance of one second, charged (cost, at)."""
    share = FairShare(share=0.1, allowance_s=1.0)
    for cpu_s, now_s in charges:
        share.charge(cpu_s, now_s)
    return share


def test_readings_within_the_allowance_wait_for_nothing() -> None:
    assert made((0.4, 10.0), (0.5, 10.0)).due_s == 10.0


def test_what_a_reading_cost_beyond_the_allowance_is_waited_off() -> None:
    assert made((3.0, 10.0)).due_s == pytest.approx(10.0 + 20.0)


def test_what_was_waited_off_is_not_owed_any_more() -> None:
    assert made((3.0, 10.0), (0.0, 30.0)).due_s == pytest.approx(30.0)
    assert made((3.0, 10.0), (0.0, 20.0)).due_s == pytest.approx(30.0)


def test_a_long_quiet_time_earns_no_more_than_the_allowance() -> None:
    assert made((0.1, 0.0), (2.0, 1_000_000.0)).due_s == pytest.approx(1_000_000.0 + 10.0)


def test_however_often_it_is_read_a_source_takes_no_more_than_its_share() -> None:
    share, now_s, used_s = made(), 0.0, 0.0
    for _ in range(1_000):
        now_s = max(now_s, share.due_s) + 0.05
        share.charge(0.05, now_s)
        used_s += 0.05
    assert used_s <= 1.0 + 0.1 * now_s + 0.05
