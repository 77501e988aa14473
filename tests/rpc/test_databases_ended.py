"""A statement ends at the database when its call does, however that happens; and what a query brings stays bounded."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, channel_to, request, running_hub
from tests.overtaken import overtaken
from tests.processes import served
from toolhub.v1 import error_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: [read:db]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""
COMPUTING = "SELECT count(*) FROM generate_series(1, 100000000000) AS a"
STREAMING = "SELECT n, repeat('x', 200) AS t FROM generate_series(1, 1000000000) AS n"
QUERIES = pytest.mark.parametrize("query", [COMPUTING, STREAMING], ids=["computing", "streaming"])
GROWTH_BYTES = 60 * 1024 * 1024


@dataclass(frozen=True)
class DatabaseHarness:
    """A database with a role of its own, whose sessions can be seen."""

    url: str
    admin: Any
    role: str

    def entry(self, **more: Any) -> dict[str, Any]:
        return {"name": "big", "url": self.url, "timeout_s": 600, "max_rows": 10**9, "max_bytes": 10**12, **more}

    def sessions(self) -> int:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
        return int(self.admin.execute(asked, (self.role,)).fetchone()[0])

    async def until(self, is_running: bool) -> float:
        """Seconds until the role has a session, or none."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        asked = (
            "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state = 'active' AND query LIKE '%%toolhub%%'"
        )
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                busy = await asyncio.to_thread(lambda: self.admin.execute(asked, (self.role,)).fetchone()[0])
                if is_running and busy:
                    break
                if not is_running and not await asyncio.to_thread(self.sessions):
                    break
                await asyncio.to_thread(self.admin.execute, "SELECT pg_sleep(0.02)")
        return loop.time() - began_s


@pytest.fixture
def server(postgres_url: str) -> Iterator[DatabaseHarness]:
    url = urlsplit(postgres_url)
    role = f"ended_{url.path.strip('/')}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        yield DatabaseHarness(url._replace(netloc=f"{role}@{url.netloc.rpartition('@')[2]}").geturl(), admin, role)
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@asynccontextmanager
async def hub_of(home: Path, server: DatabaseHarness, **more: Any) -> AsyncIterator[RunningHub]:
    async with running_hub(home, policy=POLICY, settings={"databases": [server.entry(**more)]}) as hub:
        yield hub


def asked(query: str, **fields: Any) -> Any:
    return request("core/db.query", {"connection": "big", "query": query}, **fields)


@pytest.mark.promise("databases.ends-at-the-server")
@QUERIES
async def test_a_cancelled_call_ends_its_statement(tmp_path: Path, server: DatabaseHarness, query: str) -> None:
    async with hub_of(tmp_path, server) as hub:
        call = hub.stub.InvokeStream(asked(query, message=pb.InvokeStreamRequest), timeout=CALL_TIMEOUT_S)
        await server.until(is_running=True)
        call.cancel()
        await server.until(is_running=False)
        assert not await asyncio.to_thread(server.sessions)


@pytest.mark.promise("databases.ends-at-the-server")
@QUERIES
async def test_a_deadline_ends_the_statement_and_is_reported(
    tmp_path: Path, server: DatabaseHarness, query: str
) -> None:
    async with hub_of(tmp_path, server) as hub:

        async def attempt(timeout_s: float) -> Any:
            invoked = hub.stub.Invoke(asked(query, budget={"timeout_s": timeout_s}), timeout=CALL_TIMEOUT_S)
            return (await invoked).result

        result = await overtaken(attempt, lambda result: "ended at the database" in result.error.message, first_s=0.5)
        assert result.error.kind == error_pb2.ERROR_KIND_TIMEOUT
        await server.until(is_running=False)


@pytest.mark.promise("databases.ends-at-the-server")
@QUERIES
async def test_a_killed_hub_leaves_no_statement(tmp_path: Path, server: DatabaseHarness, query: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "policy.yaml").touch(0o600)
    (home / "policy.yaml").write_text(POLICY)
    config = tmp_path / "toolhub.yaml"
    config.touch(0o600)
    config.write_text(json.dumps({"databases": [server.entry()]}))
    async with served(home, "--config", str(config)) as hub, channel_to(hub.address) as channel:
        call = ToolServiceStub(channel).InvokeStream(asked(query, message=pb.InvokeStreamRequest))
        reading = asyncio.ensure_future(call.read())
        await server.until(is_running=True)
        hub.signal(signal.SIGKILL)
        await server.until(is_running=False)
        assert not await asyncio.to_thread(server.sessions)
        reading.cancel()
        await asyncio.wait({reading})
        await hub.process.wait()


def memory_bytes(name: str) -> int:
    """Of this process: VmRSS now, or VmHWM, the most since `forget_peak`."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def test_many_rows_and_a_row_as_large_as_memory_leave_the_hub_small(
    tmp_path: Path, server: DatabaseHarness
) -> None:
    async with hub_of(tmp_path, server, max_rows=10**6) as hub:
        assert (await hub.invoke("core/db.query", {"connection": "big", "query": "SELECT 1"})).ok
        for query, rows in (
            ("SELECT n, repeat('x', 30000) FROM generate_series(1, 3000) AS n", 3_000),
            ("SELECT repeat('x', 64000000) AS huge", 0),
            ("SELECT n, repeat('x', 250000) AS t FROM generate_series(1, 100) AS n", 100),
        ):
            before = memory_bytes("VmRSS")
            forget_peak()
            result = await hub.invoke("core/db.query", {"connection": "big", "query": query, "limit": 10})
            assert memory_bytes("VmHWM") - before < GROWTH_BYTES, query
            if rows:
                value = json.loads(result.result_json)
                assert (value["truncated"], value["artifactRows"]) == (True, rows)
            else:
                assert "larger than" in result.error.message


ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT {} FROM c"


async def test_sqlite_stops_at_the_deadline_and_when_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (a)")
    database = {"name": "big", "file": str(file), "timeout_s": 600, "max_rows": 10**9, "max_bytes": 10**12}
    async with running_hub(tmp_path, policy=POLICY, settings={"databases": [database]}) as hub:
        result = await hub.invoke(
            "core/db.query", {"connection": "big", "query": ENDLESS.format("count(*)")}, budget={"timeout_s": 1}
        )
        assert result.error.kind == error_pb2.ERROR_KIND_TIMEOUT
        call = hub.stub.InvokeStream(asked(ENDLESS.format("n"), message=pb.InvokeStreamRequest), timeout=CALL_TIMEOUT_S)
        first = await call.read()
        assert first is not None
        call.cancel()
        # The hub waits for its threads when it closes: one that went on would hold this test until its timeout.


async def test_a_write_that_runs_out_of_time_changes_nothing_and_is_reported(
    tmp_path: Path, server: DatabaseHarness
) -> None:
    server.admin.execute("CREATE TABLE numbers (n bigint); INSERT INTO numbers VALUES (1)")
    server.admin.execute(f"GRANT SELECT, UPDATE ON numbers TO {server.role}")
    policy = POLICY.replace("read:db", "read:db, write:db, danger:destructive")
    rule = "rules: [{id: db, effect: ALLOW, tools: [core/db.execute]}]\n"
    settings = {"databases": [server.entry(read_only=False)]}
    statement = "UPDATE numbers SET n = (SELECT count(*) FROM generate_series(1, 100000000000) AS a)"
    async with running_hub(tmp_path, policy=policy + rule, settings=settings) as hub:

        async def attempt(timeout_s: float) -> Any:
            args = {"connection": "big", "query": statement}
            return await hub.invoke("core/db.execute", args, budget={"timeout_s": timeout_s})

        result = await overtaken(attempt, lambda result: "ended at the database" in result.error.message, first_s=0.5)
        assert result.error.kind == error_pb2.ERROR_KIND_TIMEOUT
        await server.until(is_running=False)
    assert server.admin.execute("SELECT n FROM numbers").fetchall() == [(1,)]
