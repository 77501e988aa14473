"""What every `RemoteJob` must do. Inherit `RemoteJobSuite` and give a `RemoteHarness`: a driver and a remote side that
misbehaves on request.

The suite is about what is told apart: refused (nothing runs), unclear (nobody can tell) and still to be asked.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

import pytest

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, RemoteUnclear, ToolFailure
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.job_ports import RemoteJob
from toolhub_service.domain.result import Progress

WITHIN_S = 60.0
MINTED = RemoteMark(key="3f2b8f6e-6d0c-5c55-9a4e-0c7a5c1f2a11")
UNKNOWN_KEY = RemoteMark(key="00000000-0000-5000-8000-000000000000")


class RemoteFault(Enum):
    """What the remote side, or the way to it, does wrong."""

    START_REFUSED = "start refused"
    START_ANSWER_LOST = "the start is taken, its answer is lost"
    START_LOST = "the start is lost on its way"
    FIND_BROKEN = "the lookup does not answer"
    FOLLOW_CUT = "the connection breaks once while following"
    FORGOTTEN = "the job is forgotten"
    STOP_BROKEN = "the request to stop gets no answer"
    STOP_IMPOSSIBLE = "nothing can be stopped there"
    COLLECT_CUT = "the connection breaks once while collecting"
    RESULT_GONE = "the result is gone"


class RemoteHarness(Protocol):
    @property
    def remote(self) -> RemoteJob: ...

    @property
    def call(self) -> GrantedCall:
        """Work that is not over until it is let go, unless it is stopped."""
        ...

    @property
    def effects(self) -> int:
        """How often work was begun over there."""
        ...

    def meet(self, trouble: RemoteFault) -> None:
        """Have it happen from now on. Skips the test, with the reason, where this remote side cannot."""
        ...

    def let_go(self) -> None:
        """The work goes on to its end, which is success."""
        ...


async def followed(harness: RemoteHarness, mark: RemoteMark) -> list[Progress]:
    async with asyncio.timeout(WITHIN_S):
        return [progress async for progress in harness.remote.follow(harness.call, mark)]


class RemoteJobSuite:
    """The fixture `harness` is the subclass's."""

    async def test_a_start_is_accepted_under_the_minted_key(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        assert (mark.key, mark.accepted, harness.effects) == (MINTED.key, True, 1)
        assert mark.remote_id

    async def test_a_refused_start_begins_nothing(self, harness: RemoteHarness) -> None:
        harness.meet(RemoteFault.START_REFUSED)
        with pytest.raises(ToolFailure):
            await harness.remote.start(harness.call, MINTED)
        assert harness.effects == 0

    async def test_a_start_whose_answer_is_lost_is_unclear_and_is_found(self, harness: RemoteHarness) -> None:
        harness.meet(RemoteFault.START_ANSWER_LOST)
        with pytest.raises(RemoteUnclear):
            await harness.remote.start(harness.call, MINTED)
        found = await harness.remote.find(harness.call, MINTED)
        assert found is not None
        assert (found.accepted, harness.effects) == (True, 1)

    async def test_a_start_that_is_lost_on_its_way_is_unclear_and_is_not_found(self, harness: RemoteHarness) -> None:
        harness.meet(RemoteFault.START_LOST)
        with pytest.raises(RemoteUnclear):
            await harness.remote.start(harness.call, MINTED)
        assert await harness.remote.find(harness.call, MINTED) is None
        assert harness.effects == 0

    async def test_a_found_remote_job_is_the_started_one(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        found = await harness.remote.find(harness.call, MINTED)
        assert found is not None
        assert found.remote_id == mark.remote_id
        assert await harness.remote.find(harness.call, UNKNOWN_KEY) is None

    async def test_a_lookup_without_an_answer_is_unclear(self, harness: RemoteHarness) -> None:
        harness.meet(RemoteFault.FIND_BROKEN)
        with pytest.raises(RemoteUnclear):
            await harness.remote.find(harness.call, MINTED)

    async def test_a_remote_job_is_followed_to_its_end_and_collected(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.let_go()
        await followed(harness, mark)
        outcome = await harness.remote.collect(harness.call, mark)
        assert outcome.value is not None

    async def test_following_survives_a_broken_connection(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.meet(RemoteFault.FOLLOW_CUT)
        harness.let_go()
        await followed(harness, mark)
        assert (await harness.remote.collect(harness.call, mark)).value is not None

    async def test_a_forgotten_remote_job_is_unclear_and_never_over(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.meet(RemoteFault.FORGOTTEN)
        with pytest.raises(RemoteUnclear):
            await followed(harness, mark)

    async def test_a_stopped_job_ends_and_is_collected_as_cancelled(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        assert await harness.remote.cancel(harness.call, mark) is True
        await followed(harness, mark)
        with pytest.raises(ToolFailure) as caught:
            await harness.remote.collect(harness.call, mark)
        assert caught.value.error.kind is ErrorKind.CANCELLED

    async def test_a_finished_job_can_be_asked_to_stop_without_an_error(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.let_go()
        await followed(harness, mark)
        await harness.remote.cancel(harness.call, mark)
        assert (await harness.remote.collect(harness.call, mark)).value is not None

    async def test_a_remote_side_that_cannot_stop_is_reported(self, harness: RemoteHarness) -> None:
        harness.meet(RemoteFault.STOP_IMPOSSIBLE)
        mark = await harness.remote.start(harness.call, MINTED)
        assert await harness.remote.cancel(harness.call, mark) is False

    async def test_a_request_to_stop_without_an_answer_is_unclear(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.meet(RemoteFault.STOP_BROKEN)
        with pytest.raises(RemoteUnclear):
            await harness.remote.cancel(harness.call, mark)

    async def test_collecting_survives_a_broken_connection(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.let_go()
        await followed(harness, mark)
        harness.meet(RemoteFault.COLLECT_CUT)
        assert (await harness.remote.collect(harness.call, mark)).value is not None

    async def test_a_result_that_is_gone_is_unclear(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        harness.let_go()
        await followed(harness, mark)
        harness.meet(RemoteFault.RESULT_GONE)
        with pytest.raises(RemoteUnclear):
            await harness.remote.collect(harness.call, mark)

    async def test_a_follower_that_leaves_leaves_nothing_behind(self, harness: RemoteHarness) -> None:
        mark = await harness.remote.start(harness.call, MINTED)
        before = asyncio.all_tasks()
        following = asyncio.create_task(followed(harness, mark))
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait({following})
        assert following.cancelled()
        assert asyncio.all_tasks() == before
