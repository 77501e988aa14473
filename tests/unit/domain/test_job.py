"""The state machine of jobs: in any order of attempts, histories have no gap and final states stay."""

from __future__ import annotations

from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.job import (
    ForbiddenTransition,
    Job,
    JobStatus,
    amend_job,
    has_new_entry,
    may_follow,
    move_job,
)
from toolhub_service.domain.result import FINAL_STATES, JobState, Progress, ToolResult

T0 = 1_000
RESULT = ToolResult(True, "call-1", "test/a.b")
OPEN = [state for state in JobState if not state.is_final]
Q, A, R, C = JobState.QUEUED, JobState.AWAITING_APPROVAL, JobState.RUNNING, JobState.CANCELLING
ALLOWED = {(Q, R), (Q, A), (Q, C), (A, Q), (A, C), (R, R), (R, Q), (R, A), (R, C), (C, C), *product(OPEN, FINAL_STATES)}
"""The whole table."""


def a_job(state: JobState = JobState.QUEUED) -> Job:
    result = RESULT if state.is_final else None
    return Job(
        job_id="job-1",
        call=Call("call-1", "test/a.b", {}, Principal("a")),
        tool_version="1",
        tool_digest="d",
        args_digest="a",
        created_at_unix_ms=T0,
        deadline_unix_ms=T0 + 1,
        status=JobStatus("job-1", 1, state, T0, result=result),
        state_since_unix_ms=T0,
    )


def _result(state: JobState) -> ToolResult | None:
    return RESULT if state.is_final else None


@pytest.mark.parametrize("pair", list(product(JobState, JobState)), ids=lambda pair: f"{pair[0].value}-{pair[1].value}")
def test_table(pair: tuple[JobState, JobState]) -> None:
    now, then = pair
    assert may_follow(now, then) == (pair in ALLOWED)
    if pair in ALLOWED:
        assert move_job(a_job(now), then, T0 + 1, result=_result(then)).state is then
    else:
        with pytest.raises(ForbiddenTransition):
            move_job(a_job(now), then, T0 + 1, result=_result(then))


@pytest.mark.parametrize("state", list(JobState))
def test_result_and_final_state_come_together(state: JobState) -> None:
    with pytest.raises(ForbiddenTransition):
        move_job(a_job(), state, T0, result=None if state.is_final else RESULT)


def test_job_that_is_not_over_is_never_forgotten() -> None:
    assert a_job().expires_at_unix_ms == move_job(a_job(), JobState.RUNNING, 1).expires_at_unix_ms == 0


def test_an_entry_keeps_fields_that_are_not_given() -> None:
    artifact, progress = ArtifactRef("a-1", "s" * 64, 1), Progress(1)
    first = move_job(a_job(), R, T0 + 1, progress=progress, artifacts=(artifact,))
    second = move_job(first, R, T0 + 2)
    assert (second.status.progress, second.status.artifacts) == (progress, (artifact,))
    third = move_job(second, R, T0 + 3, progress=Progress(2), artifacts=())
    assert (third.status.progress, third.status.artifacts) == (Progress(2), ())


def test_clock_that_goes_back_makes_no_earlier_entry() -> None:
    assert move_job(a_job(), R, T0 - 500).status.at_unix_ms == T0


def test_report_does_not_begin_a_state_anew() -> None:
    running = move_job(a_job(), R, T0 + 10)
    assert move_job(running, R, T0 + 20).state_since_unix_ms == T0 + 10
    assert move_job(running, C, T0 + 20).state_since_unix_ms == T0 + 20


def test_amended_record_is_a_new_version_without_an_entry() -> None:
    job = a_job()
    after = amend_job(job, begun=True)
    assert (after.version, after.begun, after.status) == (2, True, job.status)
    assert not has_new_entry(after, job)


@pytest.mark.parametrize("sequence", [-1, 0, 3, 99])
def test_an_entry_with_a_gap_is_refused(sequence: int) -> None:
    job = a_job()
    right = move_job(job, R, T0)
    wrong = msgspec.structs.replace(right, status=msgspec.structs.replace(right.status, sequence=sequence))
    with pytest.raises(ForbiddenTransition):
        has_new_entry(wrong, job)


@given(st.lists(st.tuples(st.sampled_from([*JobState, None]), st.integers(-50, 50), st.booleans()), max_size=60))
def test_any_sequence_of_attempts_makes_a_history_without_a_gap(
    attempts: list[tuple[JobState | None, int, bool]],
) -> None:
    job, history, now = a_job(), [a_job().status], T0
    for state, step_ms, has_result in attempts:
        now += step_ms
        before = job
        if state is None:
            job = amend_job(job, runs=job.runs + 1)
        else:
            try:
                job = move_job(job, state, now, result=RESULT if has_result else None)
            except ForbiddenTransition:
                continue
            history.append(job.status)
        assert job.version == before.version + 1
        assert has_new_entry(job, before) == (state is not None)
    assert [entry.sequence for entry in history] == list(range(1, len(history) + 1))
    assert all(one.at_unix_ms <= other.at_unix_ms for one, other in pairwise(history))
    assert all(not entry.state.is_final for entry in history[:-1]), "nothing follows what is final"
    assert all((entry.result is not None) == entry.state.is_final for entry in history)
    assert job.status == history[-1]
