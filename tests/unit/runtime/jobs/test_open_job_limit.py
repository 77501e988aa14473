"""The quota of jobs: a bound on all that are open, of which one principal gets but a half."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.clock import ManualClock
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job, JobStatus, move_job
from toolhub_service.domain.result import JobState, ToolResult
from toolhub_service.runtime.jobs.open_job_limit import COUNT_TTL_S, OpenJobLimit
from toolhub_service.stores.memory.jobs import MemoryJobs


class LimitHarness:
    def __init__(self, max_open: int) -> None:
        self.store, self.clock = MemoryJobs(), ManualClock()
        self.limit = OpenJobLimit(self.store, self.clock, max_open)
        self.count = 0

    async def submit(self, principal_id: str) -> bool:
        """Whether there was room for one more."""
        try:
            await self.limit.reserve(Principal(principal_id))
        except ToolFailure as full:
            return full.error.kind is not ErrorKind.RATE_LIMITED
        self.count += 1
        job_id = f"job_{self.count}"
        call = Call("call", "test/tool", {}, Principal(principal_id))
        status = JobStatus(job_id, 1, JobState.QUEUED, 1)
        await asyncio.sleep(0)  # a store takes its time, in which others ask for room
        await self.store.create(Job(job_id, call, "1", "d", "a", self.count, 10**13, status))
        self.limit.confirm(Principal(principal_id))
        return True

    async def submitted(self, principal_id: str, count: int) -> int:
        return sum(await asyncio.gather(*(self.submit(principal_id) for _ in range(count))))


@pytest.mark.parametrize("waits_s", [0.0, COUNT_TTL_S])
async def test_one_principal_gets_a_half_and_others_the_rest(waits_s: float) -> None:
    harness = LimitHarness(10)
    assert await harness.submitted("bob", 20) == 5
    harness.clock.advance(waits_s)
    assert await harness.submitted("bob", 1) == 0
    assert await harness.submitted("alice", 3) == 3
    harness.clock.advance(waits_s)
    assert await harness.submitted("bob", 1) == 0
    assert await harness.submitted("carol", 9) == 2, "the whole is bounded, whoever asks"


async def test_jobs_that_ended_make_room_once_they_are_counted_anew() -> None:
    harness = LimitHarness(1)
    assert await harness.submit("bob")
    assert not await harness.submit("alice")
    job = await harness.store.get("job_1")
    assert job is not None
    assert await harness.store.put(move_job(job, JobState.CANCELLED, 2, result=ToolResult(False, "call", "test/tool")))
    harness.clock.advance(COUNT_TTL_S / 2)
    assert not await harness.submit("alice"), "the count is believed meanwhile"
    harness.clock.advance(COUNT_TTL_S / 2)
    assert await harness.submit("alice")


async def test_a_lone_owner_is_not_counted_until_half_is_taken() -> None:
    harness = LimitHarness(1)
    assert await harness.submitted("bob", 3) == 1
    harness.clock.advance(COUNT_TTL_S)
    assert await harness.submitted("alice", 1) == 0
