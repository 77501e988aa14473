"""The suite of calls within calls, in a whole hub: of a call that is answered at once, and by the log of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.ports.inner_calls_suite import PROBE, HandleProbe, InnerCallsSuite
from tests.rpc.replay_harness import ReplayHarness, replay_harness
from toolhub_service.domain.ports import InnerCalls


@pytest.fixture
def probe() -> HandleProbe:
    return HandleProbe()


@pytest.fixture
async def harness(tmp_path: Path, probe: HandleProbe) -> AsyncIterator[ReplayHarness]:
    async with replay_harness(tmp_path, [probe]) as opened:
        yield opened


class TestCallsWithin(InnerCallsSuite):
    @pytest.fixture
    async def calls(self, harness: ReplayHarness, probe: HandleProbe) -> AsyncIterator[InnerCalls]:
        calling = asyncio.create_task(harness.running.invoke(PROBE, {}, metadata=harness.by("robot")))
        lent = await probe.lent.get()
        assert lent.durable() is lent, "there is no job"
        yield lent
        probe.may_end.set()
        assert (await calling).ok


class TestDurableCalls(InnerCallsSuite):
    @pytest.fixture
    async def calls(self, harness: ReplayHarness, probe: HandleProbe) -> AsyncIterator[InnerCalls]:
        job = await harness.running.submit(PROBE, {}, metadata=harness.by("robot"))
        lent = (await probe.lent.get()).durable()
        assert lent.durable() is lent
        yield lent
        probe.may_end.set()
        assert (await harness.ended(job.job_id)).result.ok
