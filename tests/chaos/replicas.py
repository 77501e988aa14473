"""Hub processes that are killed at random and started again, on the same port and the same data."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from tests.free_port import free_port
from tests.hub import OPEN_POLICY
from tests.processes import Served, served

TOOLS = ("EffectOnce", "WorkSteps", "QuickRead")
IMPATIENT = {
    "TOOLHUB_JOBS_HEARTBEAT_S": "0.2",
    "TOOLHUB_JOBS_DEAD_AFTER_S": "1.0",
    "TOOLHUB_SERVER_DRAIN_S": "2",
    "TOOLHUB_METRICS_LISTEN": "",
    "TOOLHUB_LOGS_LEVEL": "warning",
}
"""A dead process is noticed soon, so that a life of a second or two is long enough to take its jobs over."""


@dataclass(slots=True)
class Replica:
    folder: Path
    config: Path
    environment: Mapping[str, str]
    port: int
    errors: list[str] = field(default_factory=list)
    """What its past lives have written to stderr."""
    died: list[int] = field(default_factory=list)
    """Exit statuses of lives that nobody ended."""
    is_serving: asyncio.Event = field(default_factory=asyncio.Event)
    _served: Served | None = None
    _life: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        opening = served(
            self.folder, "--config", str(self.config), environment=self.environment, listen=f"127.0.0.1:{self.port}"
        )
        self._served = await self._life.enter_async_context(opening)
        self.is_serving.set()

    async def end(self, number: signal.Signals) -> None:
        """SIGKILL, or SIGTERM for an orderly end."""
        running = self._served
        if running is None:
            return
        self.is_serving.clear()
        if running.process.returncode is not None:
            self.died.append(running.process.returncode)
        else:
            running.signal(number)
        await self._life.aclose()
        self.errors += running.errors

    def words(self) -> Sequence[str]:
        """All that was written to stderr, by this life, too."""
        return [*self.errors, *(self._served.errors if self.is_serving.is_set() and self._served else ())]

    async def die_and_rise(self) -> None:
        await self.end(signal.SIGKILL)
        await self.start()


def configured(
    folder: Path,
    ledger: Path,
    tools: Sequence[str] = TOOLS,
    rules: str = OPEN_POLICY,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """A configuration with tools of the chaos, under the policy `rules`. `more`: sections besides."""
    folder.mkdir(parents=True, exist_ok=True)
    policy, config = folder / "policy.yaml", folder / "toolhub.yaml"
    policy.write_text(rules)
    custom = [{"tool": f"tests.chaos.chaos_tools:{name}", "args": _arguments(name, ledger)} for name in tools]
    section: dict[str, Any] = {"trusted_namespaces": ["tests.chaos"], "custom": custom}
    config.write_text(json.dumps({"policy": {"file": str(policy)}, "tools": section, **more}))
    return config


def _arguments(name: str, ledger: Path) -> dict[str, str]:
    return {"ledger": str(ledger)} if "Effect" in name else {}


@asynccontextmanager
async def running(
    folder: Path, ledger: Path, count: int, *given: Path, **environment: str
) -> AsyncIterator[list[Replica]]:
    """So many replicas, each with a folder of its own; stopped in good order at the end. `given`: a configuration."""
    config = given[0] if given else configured(folder, ledger)
    everywhere = {**IMPATIENT, **environment}
    replicas = [Replica(folder / f"hub-{n}", config, everywhere, free_port()) for n in range(count)]
    try:
        for replica in replicas:
            await replica.start()
        yield replicas
    finally:
        await asyncio.gather(*(replica.end(signal.SIGTERM) for replica in replicas))


async def broken_audit_logs(replicas: Sequence[Replica]) -> list[str]:
    """What `toolhub audit verify` says of each stopped replica whose chain is not whole."""
    reports = []
    # Without those that set the chaos, which are no settings of a hub.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
    for replica in replicas:
        verifying = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolhub_service", "audit", "verify", "--data-dir", str(replica.folder)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await verifying.communicate()
        if verifying.returncode != 0:
            reports.append(output.decode())
    return reports


async def kill_at_random(replicas: Sequence[Replica], kills: int, random: Random, pause_s: tuple[float, float]) -> None:
    """Kill one that serves, again and again; the others go on meanwhile, or are still starting themselves."""
    async with asyncio.TaskGroup() as rising:
        for _ in range(kills):
            await asyncio.sleep(random.uniform(*pause_s))
            victim = await _one_that_serves(replicas, random)
            victim.is_serving.clear()
            rising.create_task(victim.die_and_rise())


async def _one_that_serves(replicas: Sequence[Replica], random: Random) -> Replica:
    victim = random.choice(replicas)
    if not victim.is_serving.is_set() and (serving := [one for one in replicas if one.is_serving.is_set()]):
        victim = random.choice(serving)
    await victim.is_serving.wait()
    return victim
