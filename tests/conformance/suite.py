"""Runs of the suite: many scenarios in one process of it, played by one hub, their checks read back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conformance.drive import DESK
from tests.conformance.listening import listening_ports
from tests.conformance.runner import Asked, Played, ScenarioRunner, a_runner
from tests.conformance.scenarios import BASELINE, CREDENTIALS, EXTENSIONS, OLDEST, VERSIONS
from tests.servers import node_program

ROOT: Final = Path(__file__).parents[2]
SCENARIO_WITHIN_MS: Final = 300_000
RUN_WITHIN_S: Final = 600.0
AT_ONCE: Final = 2
_LISTED = re.compile(r"  - (\S+) \[(.+)\]")
_STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")


@dataclass(frozen=True, slots=True)
class Run:
    """One process of the suite."""

    version: str
    protocol: str
    """Of the sources: `auto`, or `fixed` to the version's generation."""
    words: tuple[str, ...]
    """What the suite is told to run."""
    scenarios: tuple[str, ...]
    """What it runs of that."""


@dataclass(slots=True)
class Outcome:
    """What came of one scenario."""

    checks: list[dict[str, Any]]
    played: Played | None

    def with_status(self, *statuses: str) -> dict[str, str]:
        """Why, by the id of the check."""
        return {
            check["id"]: check.get("errorMessage") or check["description"]
            for check in self.checks
            if check["status"] in statuses
        }


@dataclass(slots=True)
class Ran:
    exit_code: int
    output: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By scenario."""


def runs() -> list[Run]:
    """All there are: the dated scenarios with both ways of finding the generation, the others once."""
    listed = []
    for version in ("2025-11-25", "2026-07-28"):
        dated = tuple(name for name in VERSIONS[version] if name not in (*CREDENTIALS, *EXTENSIONS))
        suite = ("--suite", "all", "--spec-version", version)
        listed += [Run(version, protocol, suite, dated) for protocol in ("auto", "fixed")]
    listed.append(Run("2025-03-26", "auto", ("--suite", "all", "--spec-version", "2025-03-26"), OLDEST))
    listed.append(Run("2025-11-25", "auto", ("--suite", "extensions"), (*CREDENTIALS, *EXTENSIONS)))
    for name in CREDENTIALS:  # the suite's extensions have no date, so the later generation is asked for one by one
        forced = ("--scenario", name, "--spec-version", "2026-07-28", "--force")
        listed.append(Run("2026-07-28", "auto", forced, (name,)))
    return listed


def listed() -> dict[str, frozenset[str]]:
    """The suite's client scenarios, and the versions that each is for."""
    ran = subprocess.run([*node_program("conformance"), "list", "--client"], capture_output=True, text=True, check=True)
    return {name: frozenset(versions.split(",")) for name, versions in _LISTED.findall(ran.stdout)}


async def run_all(folder: Path) -> dict[Run, Ran]:
    """A few at a time, for most of a run is waiting."""
    turns = asyncio.Semaphore(AT_ONCE)
    suite = node_program("conformance")

    async def one(number: int, run: Run) -> tuple[Run, Ran]:
        async with turns:
            return run, await run_suite(suite, run, folder / str(number))

    return dict(await asyncio.gather(*(one(number, run) for number, run in enumerate(runs()))))


async def run_suite(suite: Sequence[str], run: Run, folder: Path) -> Ran:
    """`folder` does not exist yet. Raises TimeoutError when the suite does not come to an end."""
    processes: list[asyncio.subprocess.Process] = []
    played: dict[str, Played] = {}
    desk_socket, results = folder / "runner", folder / "results"

    def origins() -> list[str]:
        """Every server of the suite: an operator would know the authorization server of theirs."""
        return [f"http://localhost:{port}" for process in processes for port in listening_ports(process.pid)]

    async with a_runner(folder, protocol=run.protocol, origins=origins) as runner, _served(runner, played, desk_socket):
        process = await asyncio.create_subprocess_exec(
            *suite,
            *("client", "--command", f"{sys.executable} -S -m tests.conformance.drive"),
            *("--timeout", str(SCENARIO_WITHIN_MS), "-o", str(results), "--expected-failures", str(BASELINE)),
            *run.words,
            cwd=ROOT,
            env={**os.environ, DESK: str(desk_socket)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        processes.append(process)
        output = await _whole(process)
    return Ran(process.returncode or 0, output, _outcomes(results, played))


async def _whole(process: asyncio.subprocess.Process) -> str:
    """What it says until it ends by itself."""
    try:
        async with asyncio.timeout(RUN_WITHIN_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")


def _outcomes(results: Path, played: dict[str, Played]) -> dict[str, Outcome]:
    outcomes = {}
    for file in results.rglob("checks.json"):
        scenario = _STAMP.sub("", str(file.parent.relative_to(results)))
        outcomes[scenario] = Outcome(json.loads(file.read_text()), played.get(scenario))
    return outcomes


@asynccontextmanager
async def _served(runner: ScenarioRunner, played: dict[str, Played], path: Path) -> AsyncIterator[None]:
    """The runner at its Unix socket."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = Asked(**json.loads(await reader.readline()))
        outcome = played[asked.scenario] = await runner.play(asked)
        writer.write(json.dumps({"text": outcome.text, "trouble": outcome.trouble}).encode())
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()
