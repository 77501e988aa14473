"""`toolhub jobs watch` while its hub is killed and started again: nothing is missed, repeated or called done."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.replicas import IMPATIENT, configured
from tests.e2e.terminal import Terminal, environment, terminal
from tests.free_port import free_port
from tests.processes import WITHIN_S, Served, served

EFFECT = ("chaos/effect.once", '{"marker": "a", "afterS": 60}')
"""Must not be."""


@dataclass
class Hub:
    """On one port and one folder, through several lives."""

    folder: Path
    home: Path
    port: int = field(default_factory=free_port)

    @property
    def env(self) -> dict[str, str]:
        return environment(self.home, TOOLHUB_ADDRESS=f"127.0.0.1:{self.port}")

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def go_on(self) -> Path:
        """Without this file no job ends that `steps` begin."""
        return self.folder / "go-on"

    @property
    def steps(self) -> tuple[str, str]:
        """A job that may be repeated."""
        return "chaos/work.steps", json.dumps({"marker": "a", "steps": 5, "stepS": 0.1, "until": str(self.go_on)})

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Served]:
        config = configured(self.folder, self.ledger)
        listen = f"127.0.0.1:{self.port}"
        async with served(self.folder, "--config", str(config), environment=IMPATIENT, listen=listen) as running:
            yield running

    def ask(self, *words: str) -> Any:
        done = subprocess.run(
            ["toolhub", "jobs", *words, "--json"], env=self.env, capture_output=True, check=True, timeout=WITHIN_S
        )
        return json.loads(done.stdout)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "hub", tmp_path)


async def seen(screen: Terminal, words: str) -> None:
    await asyncio.to_thread(screen.wait_for, words)


async def killed(running: Served) -> None:
    running.signal(signal.SIGKILL)
    await running.process.wait()


@pytest.mark.promise("jobs.none-lost")
async def test_watch_of_a_repeatable_job_survives_kill_9_of_the_hub(hub: Hub) -> None:
    async with AsyncExitStack() as stack:
        async with hub.life() as running:
            watching = terminal(["toolhub", "jobs", "submit", *hub.steps, "--watch"], hub.env)
            process, screen = stack.enter_context(watching)
            await seen(screen, "of 5 steps")
            await killed(running)
            await seen(screen, "reconnecting in")
        hub.go_on.touch()
        async with hub.life():
            text = await asyncio.to_thread(screen.rest)
            assert await asyncio.to_thread(process.wait, WITHIN_S) == 0
    assert "the hub answers again" in text
    assert text.count("SUCCEEDED") == 1
    assert "marker  a" in text
    assert "Traceback" not in text


@pytest.mark.promise("jobs.effects-once")
async def test_job_that_must_not_be_repeated_is_lost_with_its_explanation(hub: Hub) -> None:
    async with AsyncExitStack() as stack:
        async with hub.life() as running:
            watching = terminal(["toolhub", "jobs", "submit", *EFFECT, "--watch"], hub.env)
            process, screen = stack.enter_context(watching)
            while not hub.ledger.exists():
                await asyncio.to_thread(hub.ask, "list", "--state", "running")
            await killed(running)
        async with hub.life():
            text = await asyncio.to_thread(screen.rest)
            assert await asyncio.to_thread(process.wait, WITHIN_S) == 1
    assert "LOST" in text
    assert "✗ OUTCOME_UNKNOWN" in text
    assert "Check that before you submit it again." in text
    assert len(hub.ledger.read_text().splitlines()) == 1


@pytest.mark.promise("watch.gapless")
async def test_json_lines_have_every_sequence_once_across_kill_9(hub: Hub) -> None:
    async with hub.life() as running:
        job_id = hub.ask("submit", *hub.steps)["jobId"]
        watching = await asyncio.create_subprocess_exec(
            *("toolhub", "jobs", "watch", job_id, "--json"),
            env=hub.env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert watching.stdout is not None
        first = json.loads(await watching.stdout.readline())
        await killed(running)
    hub.go_on.touch()
    async with hub.life(), asyncio.timeout(WITHIN_S):
        out, err = await watching.communicate()
    statuses = [first, *(json.loads(line) for line in out.splitlines())]
    sequences = [int(status["sequence"]) for status in statuses]
    assert sequences == list(range(sequences[0], sequences[0] + len(statuses)))
    assert statuses[-1]["state"] == "JOB_STATE_SUCCEEDED"
    assert watching.returncode == 0
    assert b"the hub answers again" in err
