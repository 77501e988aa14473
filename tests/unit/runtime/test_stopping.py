"""A run that does nothing but stop what an earlier one has begun on a remote side needs no person's leave."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from tests.unit.runtime.approvals.approval_harness import ApprovalHarness, BeginsJobs, an_approval_harness
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.job import RemoteMark

TAKEN = RemoteMark("key-1", "r-1", accepted=True)


class StoppingJobs(BeginsJobs):
    """A job that is to be stopped, or not."""

    def __init__(self, mark: RemoteMark | None, *, is_set: bool = True) -> None:
        self._mark = mark
        self._event = asyncio.Event()
        if is_set:
            self._event.set()

    async def mark(self, job_id: str) -> RemoteMark | None:
        assert job_id
        return self._mark

    def stopping(self, job_id: str) -> asyncio.Event:
        assert job_id
        return self._event


def a_stopping_harness(mark: RemoteMark | None, *, is_set: bool = True) -> ApprovalHarness:
    harness = an_approval_harness()
    harness.parts.pipeline = dataclasses.replace(harness.parts.pipeline, running=StoppingJobs(mark, is_set=is_set))
    return harness


async def test_run_that_only_stops_remote_work_asks_nobody() -> None:
    harness = a_stopping_harness(TAKEN)
    assert (await harness.call(job_id="job-1")).ok
    assert (harness.asked, harness.runs) == ([], 1)


@pytest.mark.parametrize(
    ("mark", "is_set"),
    [(None, True), (replace(TAKEN, accepted=False), True), (replace(TAKEN, remote_id=""), True), (TAKEN, False)],
)
async def test_work_that_may_do_more_than_stop_waits_for_a_person(mark: RemoteMark | None, *, is_set: bool) -> None:
    harness = a_stopping_harness(mark, is_set=is_set)
    assert (await harness.refused(job_id="job-1")).kind is ErrorKind.APPROVAL_REQUIRED
    assert (len(harness.asked), harness.runs) == (1, 0)
