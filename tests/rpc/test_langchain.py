"""LangChain tools through a whole hub: what they raise, how long they may take, and what they leave running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.langchain_source import ToolSocket, gone
from tests.hub import RunningHub
from tests.rpc import real_servers as real
from tests.rpc.job_client import JobClient, state
from toolhub.v1 import error_pb2


@asynccontextmanager
async def desk_hub(home: Path, **terms: Any) -> AsyncIterator[RunningHub]:
    desk = {"kind": "langchain", "load": ["tests.fakes.langchain_tools:WORKER_TOOLS"], "processes": 1, **terms}
    async with real.sourced_hub(home, {"desk": desk}, settings={"tools": {"trusted_namespaces": ["tests"]}}) as hub:
        yield hub


@pytest.mark.promise("langchain.exceptions")
async def test_an_exception_of_a_tool_is_reported_by_type_and_text_without_paths(tmp_path: Path) -> None:
    async with desk_hub(tmp_path) as hub:
        result = await hub.invoke("desk/sync_crashes", {"text": "order 7 in /srv/desk/orders.db"})
        assert result.error.kind == error_pb2.ERROR_KIND_EXECUTION_ERROR
        assert "desk/sync_crashes failed with RuntimeError: leaked order 7 in <path>." in result.error.message
        assert result.error.details["exception"] == "RuntimeError"
        agent = JobClient(hub.channel)
        end = (await agent.ended(await agent.submitted("desk/sync_crashes", {"text": "order 7"})))[-1]
        assert (state(end), end.error.kind) == ("FAILED", error_pb2.ERROR_KIND_EXECUTION_ERROR)


@pytest.mark.promise("sources.longest-time")
async def test_a_caller_cannot_allow_a_tool_more_time_than_its_source(tmp_path: Path) -> None:
    tools = {"sleeps": {"read_only": True}}
    async with desk_hub(tmp_path, timeout_s=0.5, tools=tools) as hub:
        result = await hub.invoke("desk/sleeps", budget={"timeout_s": 50})
        assert result.error.kind == error_pb2.ERROR_KIND_TIMEOUT
        assert "within the 0.5 s that an operator allows" in result.error.message
        agent = JobClient(hub.channel)
        job_id = await agent.submitted("desk/sleeps", budget={"timeout_s": 50})
        assert state((await agent.ended(job_id))[-1]) == "TIMED_OUT"


@pytest.mark.promise("sources.longest-time")
async def test_a_job_with_an_effect_that_overran_its_source_is_timed_out_too(tmp_path: Path) -> None:
    async with desk_hub(tmp_path, timeout_s=0.5) as hub:
        agent = JobClient(hub.channel)
        end = (await agent.ended(await agent.submitted("desk/sleeps", budget={"timeout_s": 50})))[-1]
        assert (state(end), end.error.kind) == ("TIMED_OUT", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
        assert "0.5 s that `timeout_s` of its source allows" in end.error.message


@pytest.mark.promise("langchain.timeout-kills", "langchain.whole-tree")
@pytest.mark.parametrize("by", ["cancellation", "hub stop"])
async def test_a_program_in_a_session_of_its_own_ends_with_its_call(tmp_path: Path, by: str) -> None:
    async with ToolSocket(str(tmp_path / "door")) as tool_socket:
        async with desk_hub(tmp_path) as hub:
            call = asyncio.create_task(hub.invoke("desk/leaves_a_daemon", {"door": tool_socket.path}))
            daemon = int(await asyncio.wait_for(tool_socket.words.get(), real.WITHIN_S))
            if by == "cancellation":
                call.cancel()
                assert await gone(daemon)
        await asyncio.wait({call})
        assert await gone(daemon)
