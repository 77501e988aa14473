"""Replicas are killed at random while jobs run and watchers watch: nothing is lost, torn or done twice.

TOOLHUB_CHAOS_KILLS says how many kills a scenario has, TOOLHUB_CHAOS_SEED which ones, TOOLHUB_CHAOS_OUTAGE_S how long
Redis is away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.chaos.fleet import ClientFleet
from tests.chaos.replicas import broken_audit_logs, kill_at_random, running
from tests.chaos.scenario import ChaosResult, ChaosScenario, run_scenario
from tests.services import RedisServer

KILLS = int(os.environ.get("TOOLHUB_CHAOS_KILLS", "3"))
SEED = int(os.environ.get("TOOLHUB_CHAOS_SEED", "1"))
PAUSE_S = (0.2, 1.6)
"""Between two kills: less than a life needs to be worth much, and more."""
OUTAGE_S = float(os.environ.get("TOOLHUB_CHAOS_OUTAGE_S", "2"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 10 * KILLS)]

Report = Callable[[str, ChaosResult], None]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """Print the result of a scenario, for tuning."""

    def print_result(name: str, result: ChaosResult) -> None:
        with capsys.disabled():
            print(f"\n  {name}: {result}")

    return print_result


@pytest.mark.parametrize("engine", ["inprocess", "docket"])
@pytest.mark.promise("jobs.none-lost", "jobs.effects-once", "watch.gapless")
async def test_two_replicas_on_one_redis_survive_kills(
    tmp_path: Path, redis_url: str, engine: str, report: Report
) -> None:
    ledger = tmp_path / "ledger"
    shared = {"TOOLHUB_JOBS_ENGINE": engine, "TOOLHUB_STORES_REDIS_URL": redis_url}
    async with running(tmp_path / "hubs", ledger, 2, **shared) as replicas:

        async def kills(fleet: ClientFleet) -> None:
            await fleet.busy.wait()
            await kill_at_random(replicas, KILLS, Random(SEED), PAUSE_S)

        result = await run_scenario(ChaosScenario(seed=SEED), replicas, ledger, kills)
    report(f"two replicas, {engine}, {KILLS} kills", result)
    assert result.broken == []
    assert result.taken_over
    assert result.reconnects
    assert await broken_audit_logs(replicas) == []


@pytest.mark.promise("jobs.none-lost", "jobs.effects-once")
async def test_one_process_on_sqlite_survives_kills(tmp_path: Path, report: Report) -> None:
    ledger = tmp_path / "ledger"
    # Nobody else's life is misjudged, so a short silence may be taken for death.
    alone = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.1", "TOOLHUB_JOBS_DEAD_AFTER_S": "0.3"}
    async with running(tmp_path / "hubs", ledger, 1, **alone) as replicas:

        async def kills(fleet: ClientFleet) -> None:
            await fleet.busy.wait()
            await kill_at_random(replicas, KILLS, Random(SEED), PAUSE_S)

        result = await run_scenario(ChaosScenario(seed=SEED), replicas, ledger, kills)
    report(f"one process, {KILLS} kills", result)
    assert result.broken == []
    assert result.taken_over
    assert result.reconnects
    assert await broken_audit_logs(replicas) == []


@pytest.mark.parametrize("engine", ["inprocess", "docket"])
@pytest.mark.promise("store.outage")
async def test_two_replicas_survive_an_outage_of_redis(
    tmp_path: Path, own_redis: RedisServer, engine: str, report: Report
) -> None:
    ledger = tmp_path / "ledger"
    # Nobody dies, and nobody is to be taken for dead on a machine that is starved.
    patient = {"TOOLHUB_JOBS_DEAD_AFTER_S": "4"}
    shared = {"TOOLHUB_JOBS_ENGINE": engine, "TOOLHUB_STORES_REDIS_URL": own_redis.url, **patient}
    async with running(tmp_path / "hubs", ledger, 2, **shared) as replicas:

        async def outage(fleet: ClientFleet) -> None:
            await fleet.busy.wait()
            own_redis.kill()
            await asyncio.sleep(OUTAGE_S)
            own_redis.start()

        result = await run_scenario(ChaosScenario(seed=SEED, is_store_away=True), replicas, ledger, outage)
    report(f"two replicas, {engine}, Redis away for {OUTAGE_S:.0f} s", result)
    assert result.broken == []
    assert not result.taken_over, "nobody died"
