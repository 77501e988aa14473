"""One agent that makes calls fail, and the others at the same upstream: breakers blame the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.http_server import RawServer, RecordedRequest, response, serving
from tests.fakes.keyed_hub import KeyedHub, kind
from tests.hub import running_hub, settings_of
from toolhub_service.app.config_files.paths import Paths

FEW = 4
"""Calls before a breaker may open."""
POLICY = """
extends: none
grants: [{{principals: ["*"], capabilities: [network, execute:command]}}]
egress: [{{hosts: ["127.0.0.1"], schemes: [http], ports: {ports}, methods: [GET, HEAD], cidrs: [127.0.0.0/8]}}]
commands: [{{name: "false", path: /usr/bin/false}}]
"""


async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
    """By target: a status, or nothing until the client has gone."""
    if asked.target == "/silent":
        await asked.reader.read()
        return False
    writer.write(response(b"{}", status=int(asked.target[1:])))
    await writer.drain()
    return True


@asynccontextmanager
async def keyed(tmp_path: Path, servers: int = 1) -> AsyncIterator[tuple[KeyedHub, list[RawServer]]]:
    """A hub with the keys of alice, bob and carol, and web servers that they may reach."""
    settings = {"auth": {"modes": ["api-key"]}, "budget": {"breaker_min_calls": FEW}}
    file = Paths(settings_of(tmp_path, settings)).key_file()
    keys = {name: file.create(name) for name in ("alice", "bob", "carol")}
    async with AsyncExitStack() as stack:
        web = [await stack.enter_async_context(serving(answer)) for _ in range(servers)]
        policy = POLICY.format(ports=[server.port for server in web])
        yield (
            KeyedHub(await stack.enter_async_context(running_hub(tmp_path, policy=policy, settings=settings)), keys),
            web,
        )


async def fetched(keyed: KeyedHub, who: str, url: str, tool: str = "core/http.fetchJson", **args: int) -> str:
    """`OK` or the kind of error."""
    result = await keyed.invoke(who, tool, {"url": url, **args}, budget={"max_retries": 0})
    return "OK" if result.ok else kind(result)


@pytest.mark.promise("breaker.per-upstream")
async def test_one_agents_short_timeouts_shut_nobody_out(tmp_path: Path) -> None:
    """Fails at befa727: bob is answered CIRCUIT_OPEN after alice's `timeoutMs: 1000`."""
    async with keyed(tmp_path) as (hub, (web,)):
        hasty = [fetched(hub, "alice", web.url("/silent"), timeoutMs=1_000) for _ in range(FEW)]
        assert await asyncio.gather(*hasty) == ["HTTP_TIMEOUT"] * FEW
        assert [await fetched(hub, who, web.url("/200")) for who in ("bob", "alice")] == ["OK", "OK"]


@pytest.mark.parametrize("tool", ["core/http.fetchJson", "core/http.fetchText"])
async def test_one_agents_failures_shut_out_that_agent_alone(tmp_path: Path, tool: str) -> None:
    """Fails at befa727: bob is answered CIRCUIT_OPEN, too; and a 500 that fetchText hands on counted as healthy."""
    async with keyed(tmp_path) as (hub, (web,)):
        for _ in range(FEW):
            await fetched(hub, "alice", web.url("/500"), tool)
        assert await fetched(hub, "alice", web.url("/200"), tool) == "CIRCUIT_OPEN"
        assert [await fetched(hub, "bob", web.url("/200"), tool) for _ in range(2 * FEW)] == ["OK"] * 2 * FEW


async def test_failures_that_several_agents_meet_count_against_the_upstream_for_all(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (hub, (web,)):
        for _ in range(FEW // 2):
            for who in ("alice", "bob"):
                assert await fetched(hub, who, web.url("/503")) == "UPSTREAM_ERROR"
        asked = len(web.asked)
        assert await fetched(hub, "carol", web.url("/200")) == "CIRCUIT_OPEN"
        assert len(web.asked) == asked


async def test_a_status_of_4xx_counts_against_nobody(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (hub, (web,)):
        for _ in range(2 * FEW):
            assert await fetched(hub, "alice", web.url("/429")) == "UPSTREAM_ERROR"
        assert await fetched(hub, "alice", web.url("/200")) == "OK"


async def test_another_port_of_the_host_is_another_upstream(tmp_path: Path) -> None:
    """Fails at befa727: the breaker is of the host, whatever the port."""
    async with keyed(tmp_path, servers=2) as (hub, (bad, good)):
        for _ in range(FEW):
            await fetched(hub, "alice", bad.url("/500"))
        assert await fetched(hub, "alice", bad.url("/200")) == "CIRCUIT_OPEN"
        assert await fetched(hub, "alice", good.url("/200")) == "OK"


async def test_programs_of_this_machine_have_no_breaker(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (hub, _):
        for _ in range(2 * FEW):
            await hub.invoke("alice", "core/exec.run", {"argv": ["false"]})
        assert not dict(hub.hub.hub.budgets.breaker_states())
