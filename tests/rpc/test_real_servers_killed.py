"""Real servers that die under a call, on both transports, many times; a hub that dies and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hub import RunningHub, channel_to, request
from tests.kills import KILLS
from tests.processes import ended, served
from tests.rpc import real_servers as real
from tests.unit.adapters.mcp.links import plain_http
from toolhub.v1 import error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.domain.source import SourceState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = {"duration": 60, "steps": 1_200}
"""Tells of itself twenty times a second for a minute."""
SERVERS_OF_EACH = 5 if KILLS >= 50 else 3
"""On each transport; all are killed at the same time, several times."""
ROUNDS = max(2, KILLS // (2 * SERVERS_OF_EACH))
UNHURT: dict[str, Any] = {"budget": {"breaker_min_calls": 1_000}}
"""A breaker that stays closed: what is tested is the connection below it."""


@dataclass
class Mortal:
    """One source whose server can be killed and comes back."""

    name: str
    kill: Callable[[], Awaitable[None]]
    revive: Callable[[], Awaitable[None]]


@dataclass
class KilledServerHarness:
    hub: RunningHub
    mortals: dict[str, Mortal]

    async def killed_under_a_call(self, mortal: Mortal, **budget: Any) -> result_pb2.ToolResult:
        """What comes of a call whose server is killed while it tells of its progress."""
        tool = f"{mortal.name}/trigger-long-running-operation"
        asked = request(tool, LONG, message=pb.InvokeStreamRequest, budget={"timeout_s": real.WITHIN_S, **budget})
        is_dead = False
        async for message in self.hub.stub.InvokeStream(asked, timeout=real.WITHIN_S):
            if message.HasField("result"):
                assert is_dead, message.result.error.message
                return message.result  # type: ignore[no-any-return]
            if not is_dead:
                is_dead = True
                await mortal.kill()
        raise AssertionError("it ended without a result")

    async def works(self, name: str) -> None:
        """Its next call works: at once, or as soon as its server is back."""
        async with asyncio.timeout(real.WITHIN_S):
            while not (result := await self.hub.invoke(f"{name}/echo", {"message": "again"})).ok:
                assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, result.error.message
                await asyncio.sleep(0.02)


@asynccontextmanager
async def mortal_hub(home: Path, *, each: int = 1, **terms: Any) -> AsyncIterator[KilledServerHarness]:
    """With so many sources on stdio, and as many on HTTP; the first ones are named `stdio` and `http`."""
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(real.everything_over_http()) for _ in range(each))
        servers = dict(zip(names("http", each), await asyncio.gather(*starting), strict=True))
        sources = {name: real.everything(**terms) for name in names("stdio", each)}
        sources |= {name: {"url": server.url, **terms} for name, server in servers.items()}
        hub = await stack.enter_async_context(real.sourced_hub(home, sources, settings=UNHURT))
        over_http = [Mortal(name, server.kill, server.start) for name, server in servers.items()]
        on_stdio = [Mortal(name, killing(hub, name), by_itself) for name in names("stdio", each)]
        yield KilledServerHarness(hub, {mortal.name: mortal for mortal in (*on_stdio, *over_http)})


def names(kind: str, count: int) -> list[str]:
    return [kind, *(f"{kind}-{number}" for number in range(1, count))]


def killing(hub: RunningHub, name: str) -> Callable[[], Awaitable[None]]:
    """Kills the whole group of a program, which the hub starts again by itself."""
    life: Any = hub.hub.sourcing.sources._controllers[name]

    async def kill() -> None:
        os.killpg(life._source._server.link._connection._program._transport.get_pid(), signal.SIGKILL)

    return kill


async def by_itself() -> None:
    """The hub does it."""


@pytest.mark.promise("mcp.never-resent", "mcp.one-call-fails")
@pytest.mark.parametrize("name", ["stdio", "http"])
async def test_killed_server_fails_its_call_and_the_next_one_works(tmp_path: Path, name: str) -> None:
    """Nobody can tell what a call did that may have had an effect; the hub and its other source go on."""
    async with mortal_hub(tmp_path) as harness:
        mortal = harness.mortals[name]
        other = next(each for each in harness.mortals if each != name)
        result = await harness.killed_under_a_call(mortal)
        assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
        assert not result.error.retryable
        assert result.attempts == 1
        assert (await harness.hub.invoke(f"{other}/echo", {"message": "unhurt"})).ok
        await mortal.revive()
        await harness.works(name)


@pytest.mark.parametrize("name", ["stdio", "http"])
async def test_call_that_may_be_repeated_says_so_when_its_server_dies(tmp_path: Path, name: str) -> None:
    async with mortal_hub(tmp_path, tools={"*": {"read_only": True}}) as harness:
        mortal = harness.mortals[name]
        error = (await harness.killed_under_a_call(mortal, max_retries=0)).error
        assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_UPSTREAM_ERROR, True)
        await mortal.revive()
        await harness.works(name)


async def test_killed_server_of_2026_over_http_fails_its_calls_and_the_next_one_works(tmp_path: Path) -> None:
    """No session there: each call is a POST of its own. Those that wait fail, and nothing need be connected anew."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(plain_http())
        sources = {"plain": {"url": server.url}}
        hub = await stack.enter_async_context(real.sourced_hub(tmp_path, sources, settings=UNHURT))
        calls = [asyncio.create_task(hub.invoke("plain/sleep", {"seconds": 60})) for _ in range(20)]
        while (await hub.value("plain/begun"))["result"] < len(calls):  # noqa: ASYNC110 - what a server counts has no event here
            await asyncio.sleep(0.01)
        await server.kill()
        for result in await asyncio.gather(*calls):
            assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN, result.error.message
        dead = await hub.invoke("plain/echo", {"text": "to nobody"})
        assert dead.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
        await server.start()
        assert (await hub.invoke("plain/echo", {"text": "again"})).ok


@pytest.mark.promise("mcp.no-orphans")
async def test_many_kills_leave_no_process_and_no_descriptor(tmp_path: Path) -> None:
    async with mortal_hub(tmp_path, each=SERVERS_OF_EACH) as harness:

        async def killed(mortal: Mortal, times: int) -> None:
            for _ in range(times):
                result = await harness.killed_under_a_call(mortal)
                assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN, result.error.message
                await mortal.revive()
                await harness.works(mortal.name)

        async def all_of_them(times: int) -> None:
            await asyncio.gather(*(killed(mortal, times) for mortal in harness.mortals.values()))
            gc.collect()

        await all_of_them(1)
        descriptors, processes = await settled()
        await all_of_them(ROUNDS - 1)
        async with asyncio.timeout(60):
            while (left := held())[0] > descriptors + 3 or left[1] > processes:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # what has died goes by itself; nobody tells when
        for status in harness.hub.hub.sourcing.sources.statuses():
            assert status.state is SourceState.READY


def held() -> tuple[int, int]:
    """Descriptors and live descendants of this process."""
    return len(os.listdir("/proc/self/fd")), len(descendants(os.getpid()))  # noqa: PTH208


async def settled() -> tuple[int, int]:
    """The same, once they do not change any more."""
    seen = -1, -1
    async with asyncio.timeout(60):
        while (now := held()) != seen:
            seen = now
            await asyncio.sleep(0.3)  # pipes of what has died close by themselves; nobody tells when
    return seen


@pytest.mark.promise("mcp.no-orphans")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_hub_that_ends_leaves_no_server_and_no_worker(tmp_path: Path, how: signal.Signals) -> None:
    for folder in ("docs", "papers"):
        (tmp_path / folder).mkdir()
    wrapped = real.everything()
    shell = ["sh", "-c", '"$@"; true', "sh", wrapped["command"], *wrapped["args"]]
    real.write_sources(
        tmp_path,
        {
            "wrapped": real.program(*shell),
            "files": real.files(tmp_path / "docs"),
            "time": real.python_server("time"),
            "papers": real.papers(tmp_path / "papers"),
        },
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text(real.POLICY)
    environment = {"TOOLHUB_POLICY_FILE": str(policy), "TOOLHUB_TOOLS_TRUSTED_NAMESPACES": "langchain_community"}
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(served(tmp_path / "hub", environment=environment))
        channel = await stack.enter_async_context(channel_to(hub.address))
        stub: Any = ToolServiceStub(channel)
        for tool, args in (
            ("wrapped/echo", {"message": "here"}),
            ("files/list_allowed_directories", {}),
            ("time/get_current_time", {"timezone": "UTC"}),
            ("papers/list_directory", {}),
        ):
            await answers(stub, tool, args)
        left = descendants(hub.process.pid)
        assert len(left) >= 6  # a shell and its server, three servers and workers, the process that watches
        hub.signal(how)
        await hub.process.wait()
        for pid in left:
            await ended(pid)


async def answers(stub: Any, tool: str, args: dict[str, Any]) -> None:
    """Called until its source has been read."""
    waits_for = {error_pb2.ERROR_KIND_TOOL_NOT_FOUND, error_pb2.ERROR_KIND_TOOL_UNAVAILABLE}
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + real.WITHIN_S
    while not (result := (await stub.Invoke(request(tool, args), timeout=real.WITHIN_S)).result).ok:
        assert result.error.kind in waits_for, result.error.message
        assert loop.time() < give_up_s, result.error.message
        await asyncio.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """Processes that live below another, wherever their sessions and groups are."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return found - {pid}
