"""Limits over the wire, at two hubs that share a Redis or a PostgreSQL: what is spent at one is spent at both."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from tests.services import RedisServer
from toolhub.v1 import error_pb2, result_pb2
from toolhub.v1.job_state_pb2 import JobState

LIMITED, FREE = "core/util.time.now", "core/util.hash.sha256Text"
TEXT = {"text": "a"}
POLICY = OPEN_POLICY + f"limits:\n  - {{id: ten, tools: [{LIMITED}], quota: 10, quota_window_s: 3600}}\n"


@asynccontextmanager
async def two_hubs(tmp_path: Path, stores: Mapping[str, str]) -> AsyncIterator[tuple[RunningHub, RunningHub]]:
    settings = {"stores": stores, "audit": {"key_file": str(tmp_path / "audit.key")} if "kind" in stores else {}}
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(running_hub(tmp_path / name, policy=POLICY, settings=settings))
            for name in ("one", "other")
        ]
        yield one, other


@pytest.fixture(params=["redis", "postgres"])
def stores(request: pytest.FixtureRequest) -> Mapping[str, str]:
    if request.param == "redis":
        return {"redis_url": request.getfixturevalue("redis_url")}
    return {"kind": "postgres", "postgres_url": request.getfixturevalue("postgres_url")}


def kind(result: result_pb2.ToolResult) -> str:
    """How a call ended; OK is success."""
    return "OK" if result.ok else error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


@pytest.mark.promise("budget.rate-and-quota")
async def test_a_quota_of_ten_gives_ten_in_all_in_any_order(tmp_path: Path, stores: Mapping[str, str]) -> None:
    async with two_hubs(tmp_path, stores) as hubs:
        results = await asyncio.gather(*(hub.invoke(LIMITED) for _ in range(20) for hub in hubs))
        assert Counter(map(kind, results)) == {"OK": 10, "RATE_LIMITED": 30}
        for refused in (result for result in results if not result.ok):
            assert "ten" in refused.error.message
            assert not refused.error.retryable, "an hour is longer than a caller waits"
            assert not refused.error.HasField("retry_after")
            assert 3_500 < MessageToDict(refused.error.details)["passes_in_s"] <= 3_600
        assert (await hubs[0].invoke(FREE, TEXT)).ok


async def test_dry_runs_and_submissions_leave_the_quota_to_what_runs(tmp_path: Path, stores: Mapping[str, str]) -> None:
    async with two_hubs(tmp_path, stores) as (one, other):
        for _ in range(12):
            assert (await one.plan(LIMITED)).plan_digest
        jobs = [await one.submit(LIMITED) for _ in range(4)]
        ends = [(await one.watched(job.job_id))[-1] for job in jobs]
        assert {end.state for end in ends} == {JobState.JOB_STATE_SUCCEEDED}
        results = await asyncio.gather(*(other.invoke(LIMITED) for _ in range(12)))
        assert Counter(map(kind, results)) == {"OK": 6, "RATE_LIMITED": 6}


@pytest.mark.promise("budget.calls-of-a-request")
async def test_calls_of_a_request_are_counted_at_both_hubs(tmp_path: Path, stores: Mapping[str, str]) -> None:
    async with two_hubs(tmp_path, stores) as hubs:
        budget = {"max_tool_calls": 5}
        calls = (hub.invoke(FREE, TEXT, request_id="r-1", budget=budget) for _ in range(6) for hub in hubs)
        assert Counter(map(kind, await asyncio.gather(*calls))) == {"OK": 5, "BUDGET_EXCEEDED": 7}
        assert (await hubs[1].invoke(FREE, TEXT, request_id="r-2", budget=budget)).ok


async def test_redis_that_is_away_refuses_limited_calls_and_no_others(tmp_path: Path, own_redis: RedisServer) -> None:
    async with two_hubs(tmp_path, {"redis_url": own_redis.url}) as (one, _):
        assert (await one.invoke(LIMITED)).ok
        own_redis.kill()
        refused = await one.invoke(LIMITED, budget={"timeout_s": 0.3})
        assert (kind(refused), refused.error.retryable) == ("TOOL_UNAVAILABLE", True)
        assert (await one.invoke(FREE, TEXT)).ok
        own_redis.start()  # the hubs need not wait for it when they leave
