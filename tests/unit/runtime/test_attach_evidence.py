"""The evidence of a call that has become a job."""

from __future__ import annotations

import pytest

from tests.unit.runtime.jobs.job_harness import a_job
from tests.unit.runtime.pipeline_harness import a_call, state_of
from toolhub_service.runtime.attach_evidence import attach_job


@pytest.mark.parametrize(("replayed", "stood"), [(False, "accepted"), (True, "stood already")])
def test_evidence_of_a_job_tells_whether_it_was_accepted_now_or_before(replayed: bool, stood: str) -> None:
    answer = attach_job(state_of(a_call()), a_job(), 7, replayed=replayed)
    (evidence,) = answer.evidence
    assert (answer.replayed, evidence.created_at_unix_ms) == (replayed, 7)
    assert evidence.summary.endswith(f"job job-1 {stood}")
