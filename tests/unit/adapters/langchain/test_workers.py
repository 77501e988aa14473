"""Calls of sync LangChain tools, each in a process that can be killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.langchain_source import OpenedSource, ToolSocket, gone, opened
from tests.overtaken import overtaken
from tests.ports.adapter_suite import SILENT, granted
from toolhub_service.aio.waits import until_deadline
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.sections.source_config import ToolTerms


@pytest.fixture
async def desk() -> AsyncIterator[OpenedSource]:
    terms = {"dies": ToolTerms(idempotent=True)}
    async with opened("WORKER_TOOLS", tools=terms, processes=2, max_result_bytes=1000) as desk:
        yield desk


@pytest.fixture
async def tool_socket(tmp_path: Path) -> AsyncIterator[ToolSocket]:
    async with ToolSocket(str(tmp_path / "door")) as tool_socket:
        yield tool_socket


async def test_sync_tools_of_every_kind_run_in_another_process(desk: OpenedSource) -> None:
    text = (await desk("add", a=1))["text"]
    assert text.startswith("3 in ")
    assert int(text.split()[-1]) in desk.source.pool.pids
    assert (await desk("pretends_async", text="x"))["text"] == f"x in {text.split()[-1]}"
    assert await desk("single", tool_input="word") == {"text": "got word"}
    assert await desk("unpicklable", text="door") == {"text": "locked door"}
    assert await desk("from_runnable", text="a") == {"text": "{'text': 'a'}"}
    assert await desk("prints", lines=1000) == {"text": "printed"}
    assert await desk("add", a=2**70, b=0) == {"text": f"{2**70} in {text.split()[-1]}"}
    lines = desk.source.diagnostics()
    assert 0 < len(lines) <= 50
    assert "hunter2" not in str(lines)
    assert len(desk.source.pool.pids) == 1


@pytest.mark.parametrize(("names", "is_ready"), [(("add", "echo"), True), (("echo",), False)])
async def test_a_source_warms_a_worker_when_one_of_its_tools_will_need_it(
    names: tuple[str, ...], is_ready: bool
) -> None:
    async with opened(*names, keep_warm=True) as desk:
        starting = [slot for slot in desk.source.pool._slots if slot.is_starting]
        assert bool(starting) is is_ready
        if is_ready:
            worker = await starting[0].ready()
            assert (await desk("add", a=1))["text"] == f"3 in {worker.pid}"


async def test_failures_are_reported_as_those_of_async_tools(desk: OpenedSource) -> None:
    with pytest.raises(ToolFailure) as caught:
        await desk("sync_crashes", text="hunter2-known")
    assert caught.value.error.kind is ErrorKind.EXECUTION_ERROR
    assert "failed with RuntimeError: leaked " in caught.value.error.message
    assert "hunter2" not in repr(caught.value.error)
    assert "RuntimeError: leaked hunter2-known" in str(caught.value.__cause__)
    refused = await desk.refused("sync_refuses")
    assert (refused.kind, "Not today." in refused.message) == (ErrorKind.EXECUTION_ERROR, True)
    assert (await desk.refused("sync_lengthy", size=1001)).details == {"limit_bytes": 1000}
    assert len((await desk("sync_lengthy", size=1000))["text"]) == 1000


@pytest.mark.promise("langchain.timeout-kills")
async def test_a_tool_that_never_returns_is_killed_at_the_deadline(desk: OpenedSource, tool_socket: ToolSocket) -> None:
    await desk("add", a=1)

    async def late(timeout_s: float) -> None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        call = granted(desk.spec("holds_on"), {"door": tool_socket.path}, deadline_s=deadline_s)
        with pytest.raises(TimeoutError):
            await until_deadline(deadline_s, desk.adapter.execute(call, SILENT))

    await overtaken(late, lambda _: not tool_socket.words.empty())
    pid = int(await tool_socket.words.get())
    assert await gone(pid, within_s=0)
    assert (await desk("add", a=1))["text"] != f"3 in {pid}"


async def test_a_tool_that_ends_its_process_fails_its_own_call_only(desk: OpenedSource) -> None:
    dying, living = await asyncio.gather(desk.refused("dies", how="exit"), desk("add", a=1))
    assert dying.kind is ErrorKind.EXECUTION_ERROR
    assert living["text"].startswith("3 in ")
    assert (await desk.refused("dies", how="sys.exit")).kind is ErrorKind.INTERNAL
    assert (await desk.refused("dies", how="signal")).kind is ErrorKind.EXECUTION_ERROR


async def test_the_outcome_of_a_side_effect_is_unknown_when_its_process_died() -> None:
    async with opened("dies", processes=1) as desk:
        error = await desk.refused("dies", how="exit")
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert not error.is_retryable


@pytest.mark.promise("langchain.timeout-kills")
async def test_children_that_ignore_sigterm_end_with_the_cancelled_call(
    desk: OpenedSource, tool_socket: ToolSocket
) -> None:
    call = asyncio.create_task(desk("forks", then=tool_socket.path))
    child = int(await asyncio.wait_for(tool_socket.words.get(), 60))
    (pid,) = desk.source.pool.pids
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(child)
    assert await gone(pid, within_s=0)
    assert await asyncio.wait_for(tool_socket.left.get(), 60) == str(child)


async def test_a_fork_that_comes_back_from_the_tool_does_not_answer_too(desk: OpenedSource) -> None:
    texts = {(await desk("forks", then="returns twice"))["text"] for _ in range(3)}
    (pid,) = desk.source.pool.pids
    assert texts == {f"from {pid}"}
    assert (await desk("add", a=1))["text"] == f"3 in {pid}"


async def test_twenty_calls_at_once_share_two_workers(desk: OpenedSource, tool_socket: ToolSocket) -> None:
    calls = [asyncio.create_task(desk("holds_on", door=tool_socket.path)) for _ in range(20)]
    first = {int(await asyncio.wait_for(tool_socket.words.get(), 60)) for _ in range(2)}
    assert first == set(desk.source.pool.pids)
    assert tool_socket.words.empty()
    tool_socket.let_go.set()
    texts = [value["text"] for value in await asyncio.gather(*calls)]
    assert {text.removeprefix("go ") for text in texts} <= {str(pid) for pid in first}
    assert len(texts) == 20


async def test_a_call_that_waits_for_a_worker_can_be_cancelled(desk: OpenedSource, tool_socket: ToolSocket) -> None:
    running = [asyncio.create_task(desk("holds_on", door=tool_socket.path)) for _ in range(2)]
    for _ in running:
        await asyncio.wait_for(tool_socket.words.get(), 60)
    pids = set(desk.source.pool.pids)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await desk("add", a=1)
    assert set(desk.source.pool.pids) == pids
    tool_socket.let_go.set()
    await asyncio.gather(*running)


async def test_closing_the_source_ends_its_workers_and_what_runs_there(
    desk: OpenedSource, tool_socket: ToolSocket
) -> None:
    running = asyncio.create_task(desk.refused("holds_on", door=tool_socket.path))
    pid = int(await asyncio.wait_for(tool_socket.words.get(), 60))
    await desk.source.close()
    assert (await running).kind is ErrorKind.TOOL_UNAVAILABLE
    assert await gone(pid, within_s=0)
    assert (await desk.refused("add", a=1)).kind is ErrorKind.TOOL_UNAVAILABLE


async def test_a_worker_gets_the_environment_without_the_hubs_own_settings(
    desk: OpenedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLHUB_SECRET", "s")
    monkeypatch.setenv("DESK_SETTING", "kept")
    monkeypatch.setitem(os.environ, "LANGCHAIN_HANDLER", "langchain")
    async with opened("environment", max_result_bytes=1_000_000) as fresh:
        text = (await fresh("environment"))["text"]
    assert "DESK_SETTING=kept" in text
    assert "TOOLHUB_SECRET" not in text
    assert "LANGCHAIN_HANDLER" not in text


SWITCHES = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2")


@pytest.mark.promise("langchain.no-tracing")
async def test_no_tracer_is_attached_though_the_environment_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in SWITCHES:
        monkeypatch.setenv(switch, "true")
    monkeypatch.setenv("LANGSMITH_API_KEY", "key")
    async with opened("Tracers", "LOOP_TOOLS", processes=1) as desk:
        assert await desk("tracers") == {"text": "nobody"}
        assert await desk("loop_tracers") == {"text": "nobody"}
        monkeypatch.setenv("LANGSMITH_TRACING", "true")  # Something in this process turns it on again.
        monkeypatch.setenv("LANGCHAIN_TRACING_V2", "true")
        assert await desk("loop_tracers") == {"text": "nobody"}


def test_the_probe_sees_a_tracer_where_one_is_attached() -> None:
    program = (
        "import os; from tests.fakes.langchain_tools import Tracers;"
        "call = {'type': 'tool_call', 'id': '1', 'name': 'tracers', 'args': {}};"
        "print(Tracers().invoke(call).content, flush=True); os._exit(0)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "k"}
    environment["LANGSMITH_ENDPOINT"] = "http://127.0.0.1:9"
    assert printed(program, environment) == "LangChainTracer"


def test_the_source_and_the_adapter_are_imported_without_langchain_or_pydantic() -> None:
    program = (
        "import sys, toolhub_service.adapters.langchain.adapter, toolhub_service.adapters.langchain.source;"
        "print([name for name in ('langchain_core', 'langsmith', 'pydantic', 'mcp') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert printed(program, environment) == "[]"


def printed(program: str, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    return ran.stdout.strip()
