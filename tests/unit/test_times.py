"""The report of processor time by folder and test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import times

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.policy.test_rules" name="test_a" time="9.0">
  <properties><property name="cpu_s" value="3.0"/></properties></testcase>
<testcase classname="tests.unit.policy.limits.test_more" name="test_b[1]" time="1.0">
  <properties><property name="cpu_s" value="1.0"/></properties></testcase>
<testcase classname="tests.rpc.test_jobs.TestEnds" name="test_c" time="0.5">
  <properties><property name="cpu_s" value="6.0"/></properties></testcase>
<testcase classname="tests.rpc.test_jobs" name="test_skipped" time="0.0"/>
</testsuite></testsuites>"""


def test_processor_time_is_summed_by_folder_and_the_slowest_tests_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert times.main([str(tmp_path / "report.xml")]) == 0
    head, _, rest = capsys.readouterr().out.partition("\n\n")
    assert head.splitlines()[2:] == [
        "| tests/rpc | 2 | 6 | 60 % |",
        "| tests/unit/policy | 2 | 4 | 40 % |",
        "| all | 4 | 10 | 100 % |",
    ]
    slowest = [line.split() for line in rest.splitlines()[1:]]
    assert slowest[:2] == [
        ["6.0", "0.5", "tests/rpc/test_jobs/TestEnds::test_c"],
        ["3.0", "9.0", "tests/unit/policy/test_rules::test_a"],
    ]


def test_a_missing_report_is_refused_with_what_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert times.main([str(tmp_path / "none.xml")]) == 1
    assert "`make test` writes it" in capsys.readouterr().err


def test_processor_time_includes_fixtures_and_processes_that_ended(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.times import pytest_runtest_setup, pytest_runtest_teardown\n")
    (tmp_path / "test_it.py").write_text(
        "import subprocess, sys, time\n"
        "import pytest\n"
        "BUSY = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "@pytest.fixture\n"
        "def busy():\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "def test_it(busy):\n"
        "    subprocess.run([sys.executable, '-c', BUSY], check=True)\n"
        "def test_nothing(): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    spent = {test.name.rpartition("::")[2]: test.cpu_s for test in times.read_report(report)}
    assert spent["test_it"] > 0.5
    assert spent["test_nothing"] < spent["test_it"]
