"""Jobs are kept open and watched while something is done to the service; then all must come to its end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean

from tests.chaos.chaos_tools import effects
from tests.chaos.fleet import ClientFleet, gathered
from tests.chaos.replicas import Replica
from tests.chaos.verdict import broken_promises
from toolhub.v1 import job_state_pb2

SETTLING_S = 90.0
Disturbance = Callable[[ClientFleet], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ChaosScenario:
    open_jobs: int = 200
    watchers: int = 50
    seed: int = 1
    is_store_away: bool = False
    """Whether the store is away for a while."""


@dataclass(slots=True)
class ChaosResult:
    broken: list[str]
    states: Counter[str]
    taken_over: int
    """How often a replica took a job of a dead one."""
    open_jobs: float
    """While the scenario ran, on average."""
    watches: int
    reconnects: int
    statuses: int

    def __str__(self) -> str:
        states = ", ".join(
            f"{count} {state.removeprefix('JOB_STATE_')}" for state, count in sorted(self.states.items())
        )
        seen = f"{self.watches} watches saw {self.statuses} statuses through {self.reconnects} reconnects"
        return f"{self.open_jobs:.0f} jobs open at a time; {states}; {self.taken_over} taken over; {seen}"


async def run_scenario(
    scenario: ChaosScenario, replicas: Sequence[Replica], ledger: Path, disturb: Disturbance
) -> ChaosResult:
    """Return the outcome of all the jobs that were submitted while `disturb` ran."""
    async with gathered([replica.port for replica in replicas], Random(scenario.seed)) as fleet:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(fleet.keep_open(scenario.open_jobs))
            for _ in range(scenario.watchers):
                tasks.create_task(fleet.watch())
            await disturb(fleet)
            fleet.over.set()
            async with asyncio.timeout(SETTLING_S):
                await keeping
                await fleet.until_none_is_open()
            fleet.send_home(scenario.watchers)
        return await _result(scenario, fleet, replicas, ledger)


async def _result(
    scenario: ChaosScenario, fleet: ClientFleet, replicas: Sequence[Replica], ledger: Path
) -> ChaosResult:
    jobs, seen = {job.job_id: job for job in await fleet.jobs()}, Counter(effects(ledger))
    broken = broken_promises(fleet.submitted, jobs, fleet.watched, seen, is_store_away=scenario.is_store_away)
    broken += [f"a replica died by itself with {status}" for replica in replicas for status in replica.died]
    broken += [f"a replica said: {line}" for replica in replicas for line in _defects(replica)]
    return ChaosResult(
        broken,
        Counter(job_state_pb2.JobState.Name(job.status.state) for job in jobs.values()),
        taken_over=sum('"job_taken_over"' in line for replica in replicas for line in replica.words()),
        open_jobs=mean(fleet.counted[1:] or [0]),
        watches=len(fleet.watched),
        reconnects=sum(one.connections - 1 for one in fleet.watched),
        statuses=sum(len(one.sequences) for one in fleet.watched),
    )


def _defects(replica: Replica) -> Iterator[str]:
    """Errors, and lines that are no log lines, such as an unexpected traceback."""
    for line in replica.words():
        try:
            is_defect = json.loads(line)["level"] in {"error", "critical"}
        except ValueError:
            is_defect = bool(line.strip())
        if is_defect:
            yield line[:1_000]
