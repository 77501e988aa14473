from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp import MCPError

from tests.fakes.mcp_harness import McpHarness, stage_of, started
from tests.fakes.outcomes import outcome_of
from tests.servers import node_program
from tests.servers import program as installed_program
from tests.unit.adapters.mcp.links import at, call, group_members, kill, linked, pid_of, soon, text_of, until, within
from toolhub_service.adapters.mcp.failures import Breakage, breakage_of
from toolhub_service.adapters.mcp.kind import McpTerms, StdioTerms
from toolhub_service.adapters.mcp.link import McpLink, McpSession
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Discovery


async def test_a_python_server_is_connected_again_after_a_kill() -> None:
    async with linked(_stdio([installed_program("mcp-server-time")])) as link:
        session = await link.session(soon(60))
        assert session.is_modern
        group = pid_of(link)
        kill(group)
        await until(lambda: not link.is_connected)
        again = await link.session(soon(60))
        assert "UTC" in text_of(await call(again, "get_current_time", timezone="UTC"))
        await until(lambda: group_members(group) == [])


async def test_a_typescript_server_answers_a_hundred_calls_at_once() -> None:
    async with linked(_stdio(node_program("mcp-server-everything"))) as link:
        session = await link.session(soon(60))
        assert not session.is_modern
        assert await _echoed(session, 100) == [f"Echo: {n}" for n in range(100)]


async def test_a_typescript_server_on_http_is_entered_again_after_a_restart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = await _everything(port)
    try:
        async with linked(at(f"http://127.0.0.1:{port}/mcp")) as link:
            session = await _connected(link)
            assert await _echoed(session, 100) == [f"Echo: {n}" for n in range(100)]
            server.kill()
            await server.wait()
            with pytest.raises(MCPError) as failure:
                await within(30, call(session, "echo", message="dead"))
            assert breakage_of(failure.value) is Breakage.NOT_SENT
            server = await _everything(port)
            await _listens(port)
            with pytest.raises(MCPError) as failure:
                await within(30, call(session, "echo", message="to the old session"))
            assert breakage_of(failure.value) is Breakage.NO_SESSION
            assert await _echoed(await link.session(soon()), 1) == ["Echo: 0"]
    finally:
        server.kill()
        await server.wait()


def _stdio(argv: list[str]) -> McpTerms:
    return McpTerms("real", StdioTerms(argv[0], tuple(argv[1:])), connect_timeout_s=60)


async def _echoed(session: McpSession, times: int) -> list[str]:
    results = await within(30, asyncio.gather(*(call(session, "echo", message=str(n)) for n in range(times))))
    return [text_of(result) for result in results]


async def _everything(port: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *node_program("mcp-server-everything"),
        "streamableHttp",
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def _connected(link: McpLink) -> McpSession:
    async with asyncio.timeout(60):
        while True:
            try:
                return await link.session(soon())
            except ToolFailure:
                continue


async def _listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


@asynccontextmanager
async def everything() -> AsyncIterator[McpHarness]:
    program, *args = node_program("mcp-server-everything")
    async with started(stage_of(StdioTerms(program, (*args, "stdio")))) as harness:
        yield harness


async def test_a_real_server_is_read_called_and_its_task_followed() -> None:
    async with everything() as harness:
        found = await harness.source.discover()
        assert found.problems == ()
        assert found.protocol == "2025-11-25"
        assert not any(each.problem for each in found.definitions)
        await _plain_calls(harness, found)
        await _task(harness, found)


async def _plain_calls(harness: McpHarness, found: Discovery) -> None:
    echoed = await _run(harness, _call(harness, found, "echo", {"message": "hello"}))
    assert "hello" in str(echoed.value)
    pictured = await _run(harness, _call(harness, found, "get-tiny-image", {}))
    assert "image" in str(pictured.value)
    weather = await _run(harness, _call(harness, found, "get-structured-content", {"location": "New York"}))
    assert set(weather.value) >= {"temperature", "conditions"}  # type: ignore[arg-type]
    await _run(harness, _call(harness, found, "trigger-long-running-operation", {"duration": 0.2, "steps": 2}))
    assert [each.step for each in harness.sink.progresses] == [1, 2]
    wrong = await outcome_of(asyncio.create_task(_run(harness, _call(harness, found, "get-sum", {"a": "one"}))))
    assert isinstance(wrong, ToolError)
    assert wrong.kind is ErrorKind.UPSTREAM_ERROR


async def _task(harness: McpHarness, found: Discovery) -> None:
    call = _call(harness, found, "simulate-research-query", {"topic": "tool hubs"})
    assert call.spec.cost.is_async
    assert harness.adapter.resumes(call.spec)
    asked = call.planned.call._replace(job_id="job-1")
    outcome = await _run(harness, call._replace(planned=call.planned._replace(call=asked)))
    assert "tool hubs" in str(outcome.value)
    assert harness.kept.marks["job-1"].remote_id
    assert any("completed" in each.message for each in harness.sink.progresses)


def _call(harness: McpHarness, found: Discovery, name: str, args: dict[str, object]) -> GrantedCall:
    """Of the tool as it was discovered."""
    call = harness.call(name, args)
    (spec,) = (each.spec for each in found.definitions if each.spec.resource_id == name)
    return call._replace(planned=call.planned._replace(spec=spec))


async def _run(harness: McpHarness, call: GrantedCall) -> Outcome:
    async with asyncio.timeout(60):
        return await harness.adapter.execute(call, harness.sink)
