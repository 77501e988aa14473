"""What the calls of a running call may use, and how the jobs that they become end."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.unit.runtime.jobs.job_harness import a_job, answered
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import JobRef, JobState
from toolhub_service.runtime.inner_calls.calls import Account, CallsWithin


def calls_within(account: Account, jobs: Any = None) -> CallsWithin:
    clock = ManualClock()
    deps: Any = SimpleNamespace(
        clock=clock,
        randomness=FixedRandomness(),
        catalog=SimpleNamespace(get=lambda name: None),
        jobs=jobs,
        follow=None,
        parked=lambda job_id: nullcontext(),
    )
    running: Any = SimpleNamespace(
        call=a_job().call, spec=SimpleNamespace(name="test/text.write"), deadline_s=clock.monotonic_s() + 1_000_000.0
    )
    return CallsWithin(deps, running, None, account)


def test_what_one_takes_all_above_it_have_less_of_and_nothing_else_is_taken() -> None:
    above = Account(calls=3, bytes=100)
    account = Account(calls=2, bytes=1_000, above=above)
    account.take(calls=1)
    assert (above.calls_left, above.bytes_left) == (2, 100)
    account.take(bytes=30)
    assert (above.calls_left, above.bytes_left) == (2, 70)
    assert (account.calls_left, account.bytes_left) == (1, 70)


def test_a_call_may_make_as_many_calls_as_are_left_besides_itself() -> None:
    account = Account(calls=3, bytes=100)
    lineage = calls_within(account).call("test/text.say", {}, "").lineage
    assert lineage is not None
    assert (lineage.calls_left, lineage.bytes_left, account.calls_left) == (2, 100, 3)


async def test_job_that_cannot_be_followed_any_more_fails_its_call_and_is_asked_to_stop() -> None:
    class LostJobs:
        """The part of `JobService` that is used here."""

        def __init__(self) -> None:
            self.stopped: list[str] = []

        async def get(self, principal: Any, job_id: str) -> Any:
            raise refuse(ErrorKind.NOT_FOUND, "There is no such job.")

        async def cancel(self, principal: Any, job_id: str, reason: str) -> None:
            self.stopped.append(job_id)

    jobs = LostJobs()
    calls = calls_within(Account(calls=1, bytes=100), jobs)
    accepted = answered(a_job(), "accepted")
    result = await calls.wait_for_job(accepted, JobRef("job-lost", JobState.QUEUED), stops=lambda: True)
    assert result.error is not None
    assert (result.ok, result.error.kind, jobs.stopped) == (False, ErrorKind.NOT_FOUND, ["job-lost"])
