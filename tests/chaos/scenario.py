"""One storm: jobs are kept open and watched while replicas are killed; then everything must come to its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.chaos_tools import effects
from tests.chaos.crowd import Crowd, gathered
from tests.chaos.replicas import Replica, kill_at_random
from tests.chaos.verdict import broken_promises
from toolhub.v1 import job_state_pb2

SETTLING_S = 90.0


@dataclass(frozen=True, slots=True)
class Storm:
    kills: int
    open_jobs: int = 200
    watchers: int = 50
    pause_s: tuple[float, float] = (0.3, 2.0)
    """Between two kills."""
    seed: int = 1


@dataclass(slots=True)
class Aftermath:
    broken: list[str]
    states: Counter[str]
    watched: int
    statuses: int

    def __str__(self) -> str:
        told = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return f"{told}; {self.watched} watches saw {self.statuses} statuses"


async def weathered(storm: Storm, replicas: Sequence[Replica], ledger: Path) -> Aftermath:
    """Raise a storm over the replicas and say what came of it."""
    random = Random(storm.seed)
    async with gathered([replica.port for replica in replicas], random) as crowd:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(crowd.keep_open(storm.open_jobs))
            for _ in range(storm.watchers):
                tasks.create_task(crowd.watch())
            await kill_at_random(replicas, storm.kills, random, storm.pause_s)
            crowd.over.set()
            async with asyncio.timeout(SETTLING_S):
                await keeping
                await crowd.until_none_is_open()
            crowd.send_home(storm.watchers)
        return await _aftermath(crowd, replicas, ledger)


async def _aftermath(crowd: Crowd, replicas: Sequence[Replica], ledger: Path) -> Aftermath:
    jobs = {job.job_id: job for job in await crowd.jobs()}
    broken = broken_promises(crowd.submitted, jobs, crowd.watched, Counter(effects(ledger)))
    broken += [f"a replica died by itself with {status}" for replica in replicas for status in replica.died]
    states = Counter(job_state_pb2.JobState.Name(job.status.state) for job in jobs.values())
    return Aftermath(broken, states, len(crowd.watched), sum(len(one.sequences) for one in crowd.watched))
