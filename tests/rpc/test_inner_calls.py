"""The suite of calls within calls, in a whole hub: of a call that is answered at once, and by the log of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.ports.inner_calls_suite import PROBE, InnerCallsSuite, Probe
from tests.rpc.replaying import Stage, a_stage
from toolhub_service.domain.ports import InnerCalls


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
async def stage(tmp_path: Path, probe: Probe) -> AsyncIterator[Stage]:
    async with a_stage(tmp_path, [probe]) as opened:
        yield opened


class TestCallsWithin(InnerCallsSuite):
    @pytest.fixture
    async def calls(self, stage: Stage, probe: Probe) -> AsyncIterator[InnerCalls]:
        calling = asyncio.create_task(stage.running.invoke(PROBE, {}, metadata=stage.by("robot")))
        lent = await probe.lent.get()
        assert lent.durable() is lent, "there is no job"
        yield lent
        probe.may_end.set()
        assert (await calling).ok


class TestDurableCalls(InnerCallsSuite):
    @pytest.fixture
    async def calls(self, stage: Stage, probe: Probe) -> AsyncIterator[InnerCalls]:
        job = await stage.running.submit(PROBE, {}, metadata=stage.by("robot"))
        lent = (await probe.lent.get()).durable()
        assert lent.durable() is lent
        yield lent
        probe.may_end.set()
        assert (await stage.ended(job.job_id)).result.ok
