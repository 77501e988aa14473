"""Processor time of each test, with its fixtures and the processes that it waited for, by folder and for the slowest.

`make test` writes it to a report (JUnit XML), `make test-times` prints it: `python -m tests.times build/tests.xml`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

SLOWEST = 30
_PROPERTY = "cpu_s"
_BEGUN_S = pytest.StashKey[float]()


def cpu_s() -> float:
    """Processor seconds of this process, and of its child processes that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEGUN_S] = cpu_s()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append((_PROPERTY, round(cpu_s() - item.stash[_BEGUN_S], 3)))


class Timed(NamedTuple):
    """One test of a report."""

    folder: str
    """tests/unit/policy, tests/rpc: two levels below `tests/unit`, one below `tests`."""
    name: str
    cpu_s: float
    wall_s: float


def read_report(report: Path) -> list[Timed]:
    """The tests of a report. Raises ElementTree.ParseError where it is no XML."""
    return [_timed(case) for case in ET.parse(report).iter("testcase")]


def _timed(case: ET.Element) -> Timed:
    words = case.get("classname", "").split(".")
    depth = 3 if words[1:2] == ["unit"] else 2
    properties = {each.get("name"): each.get("value", "0") for each in case.iter("property")}
    return Timed(
        folder="/".join(words[: min(depth, max(1, len(words) - 1))]),
        name=f"{'/'.join(words)}::{case.get('name')}",
        cpu_s=float(properties.get(_PROPERTY, "0")),
        wall_s=float(case.get("time", "0")),
    )


def format_report(tests: Sequence[Timed]) -> str:
    """A Markdown table of the folders, and lines of the slowest tests; seconds of processor time, the largest first."""
    folders: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        folders[test.folder].append(test)
    spent = {folder: sum(test.cpu_s for test in found) for folder, found in folders.items()}
    whole = sum(spent.values())
    rows = [
        f"| {folder} | {len(folders[folder])} | {seconds:.0f} | {100 * seconds / whole if whole else 0:.0f} % |"
        for folder, seconds in sorted(spent.items(), key=lambda each: -each[1])
    ]
    slowest = sorted(tests, key=lambda test: -test.cpu_s)[:SLOWEST]
    return "\n".join(
        [
            "| folder | tests | processor seconds | share |",
            "|---|---|---|---|",
            *rows,
            f"| all | {len(tests)} | {whole:.0f} | 100 % |",
            "",
            f"The {len(slowest)} tests that take most processor time (processor seconds, seconds by the clock):",
            *(f"{test.cpu_s:8.1f} {test.wall_s:8.1f}  {test.name}" for test in slowest),
        ]
    )


def main(words: Sequence[str]) -> int:
    report = Path(*words[:1])
    if not report.is_file():
        print(f"{report} is not there: `make test` writes it", file=sys.stderr)
        return 1
    print(format_report(read_report(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["build/tests.xml"]))
