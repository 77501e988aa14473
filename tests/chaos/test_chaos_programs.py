"""Replicas are killed at random while jobs make calls by their log: effects, approvals and jobs, none of them twice.

TOOLHUB_CHAOS_KILLS and TOOLHUB_CHAOS_SEED as in test_chaos.py; with more than one kill one hub on
SQLite has its scenario, docket delivers, too, programs are interpreted, and skills have plans.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.chaos.chaos_tools import effects
from tests.chaos.programs import (
    CALLS,
    PLAN,
    POLICY,
    PROGRAM,
    TOOLS,
    ProgramsLoad,
    broken_promises,
    channel_of,
    keys_of,
    slowest_s,
    unclear,
    write_plan,
)
from tests.chaos.replicas import broken_audit_logs, configured, kill_at_random, running
from tests.chaos.test_chaos import SEED
from toolhub.v1 import job_state_pb2

KILLS = int(os.environ.get("TOOLHUB_CHAOS_KILLS", "1"))
ELSEWHERE = ["one hub on SQLite", "two hubs on Redis, docket"]
WHERE = ["two hubs on Redis", *(ELSEWHERE if KILLS > 1 else [])]
MAKERS = [CALLS, *([PROGRAM, PLAN] if KILLS > 1 else [])]
PAUSE_S = (0.2, 1.6) if KILLS == 1 else (0.3, 4.0)
"""Between two kills: a life that is long enough for a takeover, and to go on a little."""
SETTLING_S = 90.0 if KILLS == 1 else 240.0
OPEN = 4 if KILLS == 1 else 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 10 * KILLS)]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.promise("inner.effects-once", "inner.jobs-once", "inner.approval-suspends")
async def test_jobs_that_make_calls_survive_kills(
    tmp_path: Path, request: pytest.FixtureRequest, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, folder = tmp_path / "ledger", tmp_path / "hubs"
    folder.mkdir()
    keys = keys_of(folder / "keys.yaml")
    auth = {"modes": ["api-key"], "api_keys_file": str(folder / "keys.yaml")}
    sources = {"file": str(write_plan(folder))} if KILLS > 1 else {}
    config = configured(folder, ledger, TOOLS, POLICY, {"auth": auth, "sources": sources})
    count, environment = 1, {"TOOLHUB_JOBS_HEARTBEAT_S": "0.1", "TOOLHUB_JOBS_DEAD_AFTER_S": "0.4"}
    if "Redis" in where:
        count, environment = 2, {"TOOLHUB_STORES_REDIS_URL": request.getfixturevalue("redis_url")}
        environment["TOOLHUB_JOBS_ENGINE"] = "docket" if "docket" in where else "inprocess"
    async with running(folder, ledger, count, config, **environment) as replicas:
        async with channel_of([replica.port for replica in replicas]) as channel:
            load = ProgramsLoad(channel, keys, Random(SEED), MAKERS)
            await load.until_offered()
            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(load.keep_open(OPEN))
                deciding = tasks.create_task(load.decide())
                await load.busy.wait()
                await kill_at_random(replicas, KILLS, Random(SEED), PAUSE_S)
                load.over.set()
                async with asyncio.timeout(SETTLING_S):
                    await keeping
                    await load.until_none_is_open()
                deciding.cancel()
            jobs = await load.jobs()
        broken = broken_promises(load.made, jobs, Counter(effects(ledger)))
        broken += [f"a replica died by itself with {status}" for replica in replicas for status in replica.died]
    taken_over = sum('"job_taken_over"' in line for replica in replicas for line in replica.words())
    states = Counter(job_state_pb2.JobState.Name(job.status.state).removeprefix("JOB_STATE_") for job in jobs)
    with capsys.disabled():
        print(
            f"\n  {where}, {KILLS} kills: {len(load.made)} programs, {len(jobs)} jobs in all, {dict(states)}, "
            f"{taken_over} taken over, {unclear(jobs)} calls of unknown outcome, slowest {slowest_s(jobs):.1f} s"
        )
    assert broken == []
    assert await broken_audit_logs(replicas) == []
