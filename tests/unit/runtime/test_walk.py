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
    assert [step for step, _, _ in steps] == list(StepName)
    for (_, _, end_ns), (_, start_ns, _) in pairwise(steps):
        assert end_ns == start_ns
    assert steps[0][1] >= walk.start_ns
    assert steps[-1][2] <= walk.start_ns + walk.elapsed_ns()


def test_durations_are_those_of_the_steps_that_ended_before_record() -> None:
    walk = Walk(a_call())
    walk.enter(StepName.RESOLVE)
    walk.enter(StepName.VALIDATE_INPUT)
    assert walk.durations_us == {}
    walk.enter(StepName.RECORD)
    assert list(walk.durations_us) == [StepName.RESOLVE, StepName.VALIDATE_INPUT]
    assert all(us >= 0 for us in walk.durations_us.values())
