"""A run that does nothing but stop what an earlier one has begun on a remote side needs no person's leave."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from tests.unit.runtime.approval_door import ApprovalDoor, Begins, an_approval_door
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.job import RemoteMark

TAKEN = RemoteMark("key-1", "r-1", accepted=True)


class Stopping(Begins):
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


def a_stopping_door(mark: RemoteMark | None, *, is_set: bool = True) -> ApprovalDoor:
    door = an_approval_door()
    door.door.pipeline = dataclasses.replace(door.door.pipeline, running=Stopping(mark, is_set=is_set))
    return door


async def test_it_asks_nobody() -> None:
    door = a_stopping_door(TAKEN)
    assert (await door.call(job_id="job-1")).ok
    assert (door.asked, door.runs) == ([], 1)


@pytest.mark.parametrize(
    ("mark", "is_set"),
    [(None, True), (replace(TAKEN, accepted=False), True), (replace(TAKEN, remote_id=""), True), (TAKEN, False)],
)
async def test_what_may_do_more_than_stop_waits_for_a_person(mark: RemoteMark | None, *, is_set: bool) -> None:
    door = a_stopping_door(mark, is_set=is_set)
    assert (await door.refused(job_id="job-1")).kind is ErrorKind.APPROVAL_REQUIRED
    assert (len(door.asked), door.runs) == (1, 0)
