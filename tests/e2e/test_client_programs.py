"""The clients' examples in each language: a tour of a hub, and long work while the hub is killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.replicas import IMPATIENT, configured
from tests.e2e.terminal import ROOT, environment
from tests.free_port import free_port
from tests.hub import running_hub
from tests.missing import give_up, need_program
from tests.processes import WITHIN_S, served

_TSC = ROOT / ".ci/toolchain/node_modules/typescript/bin/tsc"
COMPILE_S = 300

Program = Callable[[str, Path], Sequence[str]]
"""The command that starts the example of that name; it is compiled in the folder. The address follows it."""


def python(name: str, _: Path) -> Sequence[str]:
    return sys.executable, f"clients/python/examples/{name}.py"


def go(name: str, folder: Path) -> Sequence[str]:
    need_program("go")
    program = folder / name
    env = {**os.environ, "GOFLAGS": "-mod=readonly"}
    build = ("go", "build", "-o", str(program), f"./examples/{name}")
    subprocess.run(build, cwd=ROOT / "clients/go", env=env, check=True, timeout=COMPILE_S)
    return (str(program),)


def typescript(name: str, _: Path) -> Sequence[str]:
    need_program("node")
    if not _TSC.exists():
        give_up("the TypeScript compiler is not here: make setup")
    return "node", str(typescript_examples() / f"{name}.js")


@cache
def typescript_examples() -> Path:
    """The folder of those that are compiled: all of them at once, which takes seconds."""
    build = ("node", str(_TSC), "--project", "clients/ts", "--noEmit", "false")
    subprocess.run(build, cwd=ROOT, check=True, timeout=COMPILE_S)
    return ROOT / "clients/ts/dist/clients/ts/examples"


@pytest.mark.timeout(COMPILE_S + 60)
@pytest.mark.parametrize("program", [python, go, typescript])
@pytest.mark.promise("clients.languages")
async def test_tour_calls_is_refused_and_exchanges_an_artifact(program: Program, tmp_path: Path) -> None:
    printed = await tour_of(await asyncio.to_thread(program, "tour", tmp_path), tmp_path)
    assert printed["answer"]
    assert printed["refused"].startswith("PATH_OUTSIDE_SANDBOX: ")
    assert (printed["missing"], printed["artifact"]) == ("TOOL_NOT_FOUND", "1000000 bytes, the same")


@pytest.mark.timeout(COMPILE_S + 60)
@pytest.mark.parametrize("program", [python, go, typescript])
@pytest.mark.promise("clients.languages")
async def test_watcher_goes_on_when_its_hub_was_killed_and_came_back(program: Program, tmp_path: Path) -> None:
    watched = await watched_over_a_kill(await asyncio.to_thread(program, "job", tmp_path), tmp_path)
    assert watched.sequences == list(range(watched.sequences[0], watched.sequences[0] + len(watched.sequences)))
    assert (watched.last_state, watched.answer) == ("JOB_STATE_SUCCEEDED", 'answer:{"marker":"a"}')


async def test_example_of_langchain_calls_a_tool_and_shows_the_model_a_refusal(tmp_path: Path) -> None:
    async with running_hub(tmp_path / "hub") as hub:
        calling = await asyncio.create_subprocess_exec(
            *python("with_langchain", tmp_path),
            hub.address,
            cwd=ROOT,
            env=environment(tmp_path),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WITHIN_S):
            output, _ = await calling.communicate()
    assert calling.returncode == 0
    answered, refused = output.decode().split("error: ", 1)
    assert answered.startswith('success: {"sha256":"e3b0c442')
    assert refused.startswith("PATH_OUTSIDE_SANDBOX: ")


async def tour_of(command: Sequence[str], folder: Path) -> dict[str, str]:
    """What the example `tour` prints of a hub, by the word before the colon."""
    async with running_hub(folder / "hub") as hub:
        touring = await asyncio.create_subprocess_exec(
            *command, hub.address, cwd=ROOT, env=environment(folder), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WITHIN_S):
            output, _ = await touring.communicate()
    assert touring.returncode == 0
    return dict(line.split(": ", 1) for line in output.decode().splitlines() if ": " in line)


class Watched(NamedTuple):
    sequences: list[int]
    last_state: str
    answer: str
    """Without its spaces."""


async def watched_over_a_kill(command: Sequence[str], tmp_path: Path) -> Watched:
    """What the example `job` prints while the hub of its job is killed and started again."""
    folder, listen = tmp_path / "hub", f"127.0.0.1:{free_port()}"
    options = ("--config", str(configured(folder, folder / "ledger")))
    go_on = tmp_path / "go-on"
    args = {"marker": "a", "steps": 5, "stepS": 0.1, "until": str(go_on)}
    words = (listen, "chaos/work.steps", json.dumps(args))
    async with served(folder, *options, environment=IMPATIENT, listen=listen) as hub:
        watching = await asyncio.create_subprocess_exec(
            *command, *words, cwd=ROOT, env=environment(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert watching.stdout is not None
        lines = [(await watching.stdout.readline()).decode() for _ in range(3)]
        hub.signal(signal.SIGKILL)
        await hub.process.wait()
    go_on.touch()
    async with served(folder, *options, environment=IMPATIENT, listen=listen), asyncio.timeout(WITHIN_S):
        rest, _ = await watching.communicate()
    lines += rest.decode().splitlines()
    *statuses, answer = lines
    assert watching.returncode == 0
    sequences = [int(line.split()[0]) for line in statuses]
    return Watched(sequences, statuses[-1].split()[1], answer.replace(" ", ""))
