"""The checker is worth what it finds: each kind of broken promise, planted."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.fleet import Submitted, WatchedJob
from tests.chaos.verdict import broken_promises
from toolhub.v1 import error_pb2, job_pb2, job_state_pb2, result_pb2

EFFECT, STEPS = "chaos/effect.once", "chaos/work.steps"
SUCCEEDED, LOST = job_state_pb2.JOB_STATE_SUCCEEDED, job_state_pb2.JOB_STATE_LOST
RUNNING = job_state_pb2.JOB_STATE_RUNNING


def a_job(state: job_state_pb2.JobState.ValueType = SUCCEEDED, *, marker: str = "m1", message: str = "") -> job_pb2.Job:
    result = result_pb2.ToolResult(result_json=f'{{"marker": "{marker}"}}'.encode())
    error = error_pb2.ToolError(message=message) if message else None
    status = job_pb2.JobStatus(job_id="job-1", sequence=4, state=state, result=result, error=error)
    return job_pb2.Job(job_id="job-1", status=status)


def verdict(
    job: job_pb2.Job, *, tool: str = EFFECT, effects: int = 1, sequences: tuple[int, ...] = (1, 2, 3, 4)
) -> list[str]:
    submitted = {"m1": Submitted("m1", tool, {"job-1"})}
    watched = [WatchedJob("job-1", list(sequences), job.status)]
    return broken_promises(submitted, {"job-1": job}, watched, Counter({"m1": effects}))


def test_a_correct_run_is_not_accused() -> None:
    assert verdict(a_job()) == []
    assert verdict(a_job(LOST, message="its runner died"), effects=0) == []
    assert verdict(a_job(), sequences=(3, 4)) == []


@pytest.mark.parametrize(
    ("job", "planted", "found"),
    [
        (a_job(RUNNING), {}, "ended in JOB_STATE_RUNNING"),
        (a_job(LOST), {}, "without an explanation"),
        (a_job(LOST, message="gone"), {"tool": STEPS}, "is JOB_STATE_LOST"),
        (a_job(marker=""), {}, "without its result"),
        (a_job(), {"effects": 2}, "its effect 2 times"),
        (a_job(), {"effects": 0}, "without its effect"),
        (a_job(), {"sequences": (1, 2, 4)}, "with a gap"),
        (a_job(), {"sequences": (1, 2, 2, 3, 4)}, "came again"),
        (a_job(), {"sequences": (1, 3, 2, 4)}, "came again"),
    ],
)
def test_each_broken_promise_is_found(job: job_pb2.Job, planted: dict[str, object], found: str) -> None:
    assert any(found in wrong for wrong in verdict(job, **planted))  # type: ignore[arg-type]


@pytest.mark.parametrize(("effects", "wrong"), [(0, 0), (1, 1)], ids=["without an effect", "with one"])
def test_refusal_is_allowed_while_the_store_is_away_only_without_an_effect(effects: int, wrong: int) -> None:
    refused = a_job(job_state_pb2.JOB_STATE_FAILED, message="the store is away")
    refused.status.error.kind = error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
    refused.status.error.retryable = True
    submitted, seen = {"m1": Submitted("m1", EFFECT, {"job-1"})}, Counter({"m1": effects})
    assert len(broken_promises(submitted, {"job-1": refused}, [], seen, is_store_away=True)) == wrong
    assert len(broken_promises(submitted, {"job-1": refused}, [], seen)) == 1


def test_watcher_that_missed_the_end_is_found() -> None:
    early = job_pb2.JobStatus(job_id="job-1", sequence=3, state=RUNNING)
    wrong = broken_promises(
        {"m1": Submitted("m1", STEPS, {"job-1"})},
        {"job-1": a_job()},
        [WatchedJob("job-1", [1, 2, 3], early)],
        Counter(),
    )
    assert len(wrong) == 1
    assert "ended at 3" in wrong[0]


def test_lost_doubled_and_foreign_jobs_are_found() -> None:
    twice = {"m1": Submitted("m1", STEPS, {"job-1", "job-2"})}
    assert broken_promises(twice, {"job-1": a_job()}, [], Counter()) == ["job job-2 was lost", "m1 has 2 jobs"]
    assert broken_promises({}, {"job-1": a_job()}, [], Counter()) == ["job job-1 belongs to no submission"]
