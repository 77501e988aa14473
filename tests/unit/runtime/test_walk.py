from __future__ import annotations

from itertools import pairwise

from tests.unit.runtime.door import a_call
from toolhub_service.domain.step import StepName
from toolhub_service.runtime.walk import Walk


def test_steps_follow_one_another_without_a_gap() -> None:
    walk = Walk(a_call())
    for step in StepName:
        walk.enter(step)
    steps = walk.steps()
    assert [time.step for time in steps] == list(StepName)
    for before, after in pairwise(steps):
        assert before.end_ns == after.start_ns
    assert steps[0].start_ns >= walk.start_ns
    assert steps[-1].end_ns <= walk.start_ns + walk.elapsed_ns()


def test_durations_are_those_of_the_steps_that_ended_before_record() -> None:
    walk = Walk(a_call())
    walk.enter(StepName.RESOLVE)
    walk.enter(StepName.VALIDATE_INPUT)
    assert walk.durations_us == {}
    walk.enter(StepName.RECORD)
    assert list(walk.durations_us) == [StepName.RESOLVE, StepName.VALIDATE_INPUT]
    assert all(us >= 0 for us in walk.durations_us.values())
