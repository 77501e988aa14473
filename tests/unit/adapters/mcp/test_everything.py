"""The reference server of npm, `server-everything`: a real server of the older era through the hub's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fakes.mcp_stage import McpStage, stage_of, started
from tests.fakes.outcomes import outcome_of
from tests.servers import node_program
from toolhub_service.adapters.mcp.kind import StdioTerms
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Discovery


@asynccontextmanager
async def everything() -> AsyncIterator[McpStage]:
    program, *args = node_program("mcp-server-everything")
    async with started(stage_of(StdioTerms(program, (*args, "stdio")))) as stage:
        yield stage


async def test_a_real_server_is_read_called_and_its_task_followed() -> None:
    async with everything() as stage:
        found = await stage.source.discover()
        assert found.problems == ()
        assert found.protocol == "2025-11-25"
        assert not any(each.problem for each in found.definitions)
        await _plain_calls(stage, found)
        await _task(stage, found)


async def _plain_calls(stage: McpStage, found: Discovery) -> None:
    echoed = await _run(stage, _call(stage, found, "echo", {"message": "hello"}))
    assert "hello" in str(echoed.value)
    pictured = await _run(stage, _call(stage, found, "get-tiny-image", {}))
    assert "image" in str(pictured.value)
    weather = await _run(stage, _call(stage, found, "get-structured-content", {"location": "New York"}))
    assert set(weather.value) >= {"temperature", "conditions"}  # type: ignore[arg-type]
    await _run(stage, _call(stage, found, "trigger-long-running-operation", {"duration": 0.2, "steps": 2}))
    assert [each.step for each in stage.sink.progresses] == [1, 2]
    wrong = await outcome_of(asyncio.create_task(_run(stage, _call(stage, found, "get-sum", {"a": "one"}))))
    assert isinstance(wrong, ToolError)
    assert wrong.kind is ErrorKind.UPSTREAM_ERROR


async def _task(stage: McpStage, found: Discovery) -> None:
    call = _call(stage, found, "simulate-research-query", {"topic": "tool hubs"})
    assert call.spec.cost.is_async
    assert stage.adapter.resumes(call.spec)
    asked = call.planned.call._replace(job_id="job-1")
    outcome = await _run(stage, call._replace(planned=call.planned._replace(call=asked)))
    assert "tool hubs" in str(outcome.value)
    assert stage.kept.marks["job-1"].remote_id
    assert any("completed" in each.message for each in stage.sink.progresses)


def _call(stage: McpStage, found: Discovery, name: str, args: dict[str, object]) -> GrantedCall:
    """Of the tool as it was discovered."""
    call = stage.call(name, args)
    (spec,) = (each.spec for each in found.definitions if each.spec.resource_id == name)
    return call._replace(planned=call.planned._replace(spec=spec))


async def _run(stage: McpStage, call: GrantedCall) -> Outcome:
    async with asyncio.timeout(60):
        return await stage.adapter.execute(call, stage.sink)
