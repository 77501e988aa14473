from __future__ import annotations

import pytest

from tests.unit.runtime.jobs.job_harness import JobHarness, Process
from toolhub_service.runtime.jobs import reports, run, settle, watch


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a store longer than the loop takes for a turn or two."""
    for module, name in ((run, "RETRY_S"), (settle, "RETRY_S"), (run, "RETRY_S"), (watch, "_RETRY_S")):
        monkeypatch.setattr(module, name, 0.001)
    monkeypatch.setattr(reports, "INTERVAL_S", 0.001)
    monkeypatch.setattr(reports, "_JOB_S", 0.0)


@pytest.fixture
def harness() -> JobHarness:
    return JobHarness()


@pytest.fixture
def process(harness: JobHarness) -> Process:
    return harness.process()
