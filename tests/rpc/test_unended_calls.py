"""A hub is killed while calls run: the next one of its data folder writes their ends into the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.chaos.chaos_tools import effects
from tests.chaos.replicas import configured
from tests.hub import channel_to, request, running_hub
from tests.processes import served
from toolhub.v1 import job_service_pb2
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.domain.event import ChainedEvent, EventFilter, EventType

pytestmark = pytest.mark.slow

EFFECT = "chaos/effect.once"
SOON: Mapping[str, Any] = {"budget": {"max_timeout_s": 0.1}}
"""A later hub need not wait long until no call of the earlier one can be alive."""


async def until_done(ledger: Path, *markers: str) -> None:
    async with asyncio.timeout(60):
        while not set(markers) <= set(effects(ledger)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)


async def test_a_call_that_a_killed_hub_left_without_an_end_gets_one_of_unknown_outcome(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    config = configured(tmp_path / "config", ledger)
    async with served(tmp_path / "hub", "--config", str(config)) as process, channel_to(process.address) as channel:
        stub: Any = ToolServiceStub(channel)
        jobs: Any = JobServiceStub(channel)
        await stub.Invoke(request(EFFECT, {"marker": "done"}), timeout=60)
        cut_off = asyncio.ensure_future(
            stub.Invoke(request(EFFECT, {"marker": "cut", "afterS": 60}, request_id="cut"), timeout=60)
        )
        asked = request(EFFECT, {"marker": "job", "afterS": 60}, request_id="job")
        await jobs.SubmitJob(job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context), timeout=60)
        await until_done(ledger, "done", "cut", "job")
        process.process.kill()
        await process.process.wait()
        with pytest.raises(grpc.aio.AioRpcError):
            await cut_off
    for life in range(2):
        async with running_hub(tmp_path, settings=SOON) as hub:
            if not life:
                tail = hub.hub.audit.tail(EventFilter(outcome="OUTCOME_UNKNOWN", request_id="cut"))
                async with asyncio.timeout(60):
                    end: ChainedEvent = await anext(tail)
                await tail.aclose()
                (begun,) = await hub.events(request_id="cut", types=frozenset({EventType.TOOL_CALLED}))
                assert end.event.type is EventType.TOOL_RESULT
                assert (end.event.call_id, end.event.tool) == (begun.event.call_id, EFFECT)
                assert end.event.attributes["cause"] == "HUB_DIED"
            else:
                task = hub.hub.long_work.unended._task
                assert task is not None
                await task  # and finds that the call has its end
            ends = [each for each in await hub.events() if each.event.attributes.get("cause") == "HUB_DIED"]
            assert [each.event.request_id for each in ends] == ["cut"]
            assert (await hub.hub.audit.verify()).ok
