"""Attacks on the stores: damaged records, foreign writers, readers without rights, and hubs with separate prefixes.

A writer of a store is trusted as the hub is. What must hold all the same: one damaged record costs nobody else
anything, and hubs with prefixes of their own have nothing in common.
"""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import BY_KEY, WAIT, Client, Principals, merged, state
from tests.rpc.sample_tools import Echo, Waits
from tests.rpc.statuses import failed
from toolhub.v1 import approval_service_pb2, artifact_service_pb2
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.app.config_files.paths import Paths

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
roles:
  - {principals: [judge], roles: [approver]}
  - {principals: [ops], roles: [operator, auditor]}
rules:
  - {id: writes-need-a-yes, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText]}
"""
ECHO, WRITE = "test/text.echo", "core/fs.writeText"
QUICK: Mapping[str, Any] = {"jobs": {"heartbeat_s": 0.05, "dead_after_s": 0.5}}
DATA_FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
"""Of a record that cannot be read: that the hub is at fault, never that there is none."""
GARBAGE = (b"\xc1", b"\x00" * 100, b"\xdf\xff\xff\xff\xff", b"\x90" * 5_000, b"\x81\xa1v\x63", b"null")
Damage = Callable[[str, str, bytes], Awaitable[int]]
"""Puts bytes in the place of the record of a kind (`job`, `status`, `args`, `approval`, `artifact`) with this id; how
many records that were."""


class DamagedStore:
    """A hub on one kind of store, and hands that reach beneath it."""

    def __init__(self, running: RunningHub, damage: Damage) -> None:
        self.running, self.damage = running, damage
        self.people = Principals(running, names=("alice", "bob", "judge", "ops"))

    def by(self, name: str) -> Client:
        return self.people.at(self.running, name)


@asynccontextmanager
async def a_hub(tmp_path: Path, settings: Mapping[str, Any]) -> AsyncIterator[RunningHub]:
    chosen = merged(BY_KEY, QUICK, settings)
    async with running_hub(tmp_path, policy=POLICY, settings=chosen, tools=[Echo(), Waits()]) as running:
        yield running


def beneath_sqlite(file: Path) -> Damage:
    cells = {
        "job": ("jobs", "frame", "job_id"),
        "args": ("job_args", "args", "job_id"),
        "status": ("job_entries", "status", "job_id"),
        "approval": ("approvals", "record", "approval_id"),
        "artifact": ("artifacts", "record", "artifact_id"),
    }

    async def damage(kind: str, id: str, data: bytes) -> int:
        table, column, name = cells[kind]
        with sqlite3.connect(file) as connection:
            return connection.execute(f"UPDATE {table} SET {column} = ? WHERE {name} = ?", (data, id)).rowcount

    return damage


def beneath_redis(url: str) -> Damage:
    import redis

    async def damage(kind: str, id: str, data: bytes) -> int:
        with redis.Redis.from_url(url) as client:
            if kind == "status":
                client.lset(f"toolhub:job:{id}:log", -1, data)
                return 1
            name, field = {"job": ("job", "frame"), "args": ("job", "args")}.get(kind, (kind, "record"))
            assert client.hexists(f"toolhub:{name}:{id}", field)
            client.hset(f"toolhub:{name}:{id}", field, data)
            return 1

    return damage


@pytest.fixture(params=["sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DamagedStore]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    async with a_hub(tmp_path, {"stores": {"redis_url": url}}) as running:
        damage = beneath_redis(url) if url else beneath_sqlite(Paths(running.hub.settings).stores)
        yield DamagedStore(running, damage)


# Damage


async def test_damaged_jobs_affect_neither_lists_nor_runs_of_others(store: DamagedStore) -> None:
    alice = store.by("alice")
    for number, data in enumerate(GARBAGE):
        for kind in ("job", "args", "status"):
            broken = await alice.submit(ECHO, {"text": f"{kind} {number}"})
            await alice.ended(broken.job_id)
            assert await store.damage(kind, broken.job_id, data)
            refused = await failed(alice.job(broken.job_id))
            assert refused.code in DATA_FAULTS
            assert "msgpack" not in refused.message
    good = await alice.submit(ECHO, {"text": "good"})
    assert state((await alice.ended(good.job_id))[-1]) == "SUCCEEDED"
    for name in ("alice", "ops"):
        assert good.job_id in {job.job_id for job in (await store.by(name).page()).jobs}


async def test_damaged_jobs_that_nobody_runs_delay_no_sweep(store: DamagedStore) -> None:
    alice = store.by("alice")
    broken = await alice.submit(WAIT)
    await alice.seen(broken.job_id, lambda status: status.progress.message == "half way")
    assert await store.damage("job", broken.job_id, b"\xc1")
    waiting = await alice.submit(WRITE, {"path": "a.txt", "text": "x"}, request_id="work")
    hub = store.running.hub
    await hub.long_work.reconciler.sweep()
    sweeper = hub.long_work.stores.jobs
    now_unix_ms = hub.long_work.approvals._clock.unix_ms()
    seen = await sweeper.find_unattended(now_unix_ms + 10**9, now_unix_ms + 10**9, 100)
    assert broken.job_id not in {job.job_id for job in seen}
    assert waiting.job_id in {job.job_id for job in await sweeper.awaiting(None, 100)}


async def test_damaged_approvals_hide_no_other_and_delay_no_decision(store: DamagedStore) -> None:
    alice, stub = store.by("alice"), ApprovalServiceStub(store.running.channel)
    for number, data in enumerate(GARBAGE):
        broken = await alice.submit(WRITE, {"path": f"{number}.txt", "text": ""}, request_id="work")
        assert await store.damage("approval", broken.approval_id, data)
        asked = approval_service_pb2.GetApprovalRequest(approval_id=broken.approval_id)
        refused = await failed(stub.GetApproval(asked, metadata=store.by("judge").metadata, timeout=CALL_TIMEOUT_S))
        assert refused.code in DATA_FAULTS
    good = await alice.submit(WRITE, {"path": "good.txt", "text": "x"}, request_id="work")
    listed = await stub.ListApprovals(
        approval_service_pb2.ListApprovalsRequest(), metadata=store.by("judge").metadata, timeout=CALL_TIMEOUT_S
    )
    assert [one.approval_id for one in listed.approvals] == [good.approval_id]
    await store.by("judge").decide(good.approval_id)
    assert state((await alice.ended(good.job_id))[-1]) == "SUCCEEDED"


async def test_damaged_artifacts_do_not_affect_those_of_others(store: DamagedStore) -> None:
    stub = ArtifactServiceStub(store.running.channel)

    async def write(data: bytes) -> str:
        parts = [
            artifact_service_pb2.WriteArtifactRequest(header=artifact_service_pb2.ArtifactHeader()),
            artifact_service_pb2.WriteArtifactRequest(chunk=data),
        ]
        call = stub.WriteArtifact(iter(parts), metadata=store.by("alice").metadata, timeout=CALL_TIMEOUT_S)
        return str((await call).artifact.artifact_id)

    broken, good = await write(b"broken"), await write(b"good")
    for data in GARBAGE:
        assert await store.damage("artifact", broken, data)
        asked = artifact_service_pb2.GetArtifactRequest(artifact_id=broken)
        assert (await failed(stub.GetArtifact(asked, metadata=store.by("alice").metadata))).code in DATA_FAULTS
    swept = await store.running.hub.long_work.stores.artifacts.read_expired(2**62, 100)
    assert [artifact.artifact_id for artifact in swept] == [good]


# Foreign hands on Redis


async def test_foreign_entries_in_the_feed_end_no_hub(tmp_path: Path, redis_url: str) -> None:
    import redis

    async with a_hub(tmp_path, {"stores": {"redis_url": redis_url}}) as running:
        alice = Principals(running, names=("alice",)).at(running, "alice")
        with redis.Redis.from_url(redis_url) as client:
            for fields in ({b"kind": b"job"}, {b"k": b"job", b"a": b"\xff"}, {b"k": b"approval", b"r": b"\xc1"}):
                number = client.incr("toolhub:feed:count")
                client.xadd("toolhub:feed", fields, id=f"{number}-0")
        job = await alice.submit(ECHO, {"text": "x"})
        assert state((await alice.ended(job.job_id))[-1]) == "SUCCEEDED"


async def test_ids_that_name_other_keys_of_redis_are_unknown(tmp_path: Path, redis_url: str) -> None:
    async with a_hub(tmp_path, {"stores": {"redis_url": redis_url}}) as running:
        people = Principals(running, names=("alice", "bob"))
        job = await people.at(running, "alice").submit(ECHO, {"text": "x"})
        bob = people.at(running, "bob")
        for job_id in (f"{job.job_id}:log", "x:log"):
            refused = [await failed(bob.job(job_id)), await failed(bob.cancel(job_id))]
            assert {each.code for each in refused} == {grpc.StatusCode.NOT_FOUND}, job_id


async def test_hubs_with_prefixes_of_their_own_have_nothing_in_common(tmp_path: Path, redis_url: str) -> None:
    import redis

    one = {"stores": {"redis_url": redis_url, "redis_prefix": "one:"}}
    other = {"stores": {"redis_url": redis_url, "redis_prefix": "one:two:"}}
    async with a_hub(tmp_path / "a", one) as first, a_hub(tmp_path / "b", other) as second:
        here, there = (Principals(running, names=("alice", "ops")) for running in (first, second))
        job = await here.at(first, "alice").submit(WAIT, idempotency_key="k")
        same = await there.at(second, "alice").submit(ECHO, {"text": "x"}, idempotency_key="k")
        await there.at(second, "alice").ended(same.job_id)
        assert (await failed(there.at(second, "ops").job(job.job_id))).code is grpc.StatusCode.NOT_FOUND
        assert [each.job_id for each in (await there.at(second, "ops").page()).jobs] == [same.job_id]
        assert (await failed(there.at(second, "ops").cancel(job.job_id))).code is grpc.StatusCode.NOT_FOUND
        assert [each.job_id for each in (await here.at(first, "ops").page()).jobs] == [job.job_id]
        with redis.Redis.from_url(redis_url) as client:
            assert {key.split(b":")[0] for key in client.keys("*")} == {b"one"}


async def test_no_key_of_redis_has_a_secret_in_its_name(tmp_path: Path, redis_url: str) -> None:
    import redis

    secret = "ghp_" + "a1b2c3d4" * 5
    async with a_hub(tmp_path, {"stores": {"redis_url": redis_url}}) as running:
        alice = Principals(running, names=("alice",)).at(running, "alice")
        job = await alice.submit(ECHO, {"text": f"password={secret}"}, idempotency_key=secret, purpose=secret)
        await alice.ended(job.job_id)
        await alice.call(ECHO, {"text": f"password={secret}"}, idempotency_key=secret)
        await alice.submit(WRITE, {"path": "a.txt", "text": f"password={secret}"}, request_id="work")
        with redis.Redis.from_url(redis_url) as client:
            assert client.keys("*")
            assert not [key for key in client.keys("*") if secret.encode() in key]


# The file


async def test_files_of_the_embedded_store_are_their_owner_s_alone(tmp_path: Path) -> None:
    async with a_hub(tmp_path, {}) as running:
        alice = Principals(running, names=("alice",)).at(running, "alice")
        await alice.ended((await alice.submit(ECHO, {"text": "x"})).job_id)
        file = Paths(running.hub.settings).stores
        kept = list(file.parent.glob(f"{file.name}*"))
        assert {path.name for path in kept} >= {"hub.db", "hub.db-wal"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_a_vanished_table_fails_a_request_as_a_whole(tmp_path: Path) -> None:
    async with a_hub(tmp_path, {}) as running:
        alice = Principals(running, names=("alice",)).at(running, "alice")
        file = Paths(running.hub.settings).stores
        with sqlite3.connect(file) as connection:
            connection.execute("DROP TABLE job_args")
        refused = await asyncio.wait_for(failed(alice.submit(ECHO, {"text": "x"})), CALL_TIMEOUT_S)
        assert refused.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
        assert str(tmp_path) not in str(refused)
        assert (await alice.call(ECHO, {"text": "still served"})).ok
