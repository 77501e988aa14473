from __future__ import annotations

from itertools import pairwise
from time import perf_counter_ns

from tests.unit.runtime.pipeline_harness import a_call, state_of
from toolhub_service.domain.result import StepName
from toolhub_service.runtime.call_state import RECORD, VALIDATE_INPUT
from toolhub_service.runtime.record import settle_steps


def test_steps_follow_one_another_without_a_gap() -> None:
    state = state_of(a_call())
    for place in range(1, len(StepName)):
        state.begun_ns[place] = perf_counter_ns()
    ended_ns = perf_counter_ns()
    steps = settle_steps(state, ended_ns)
    assert [step for step, _, _ in steps] == list(StepName)
    for (_, _, end_ns), (_, start_ns, _) in pairwise(steps):
        assert end_ns == start_ns
    assert steps[-1][2] == ended_ns


def test_a_step_is_the_present_one_until_the_next_begins() -> None:
    state = state_of(a_call())
    present = [state.step]
    state.begun_ns[VALIDATE_INPUT] = perf_counter_ns()
    assert [*present, state.step] == [StepName.RESOLVE, StepName.VALIDATE_INPUT]


def test_durations_are_those_of_the_steps_that_ended_before_record() -> None:
    state = state_of(a_call())
    state.begun_ns[VALIDATE_INPUT] = perf_counter_ns()
    assert state.durations_us == {}
    state.begun_ns[RECORD] = perf_counter_ns()
    settle_steps(state, perf_counter_ns())
    assert list(state.durations_us) == [StepName.RESOLVE, StepName.VALIDATE_INPUT]
    assert all(us >= 0 for us in state.durations_us.values())
