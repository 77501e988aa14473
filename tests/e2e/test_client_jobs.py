"""The clients' examples of long work, in each language, while their hub is killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos.replicas import IMPATIENT, configured
from tests.e2e.terminal import ROOT, environment
from tests.free_port import free_port
from tests.processes import WITHIN_S, served

_TSC = ROOT / ".ci/toolchain/node_modules/typescript/bin/tsc"
_COMPILE_S = 300


def python(_: Path) -> Sequence[str]:
    return sys.executable, "clients/python/examples/job.py"


def go(folder: Path) -> Sequence[str]:
    if not shutil.which("go"):
        pytest.skip("no Go on the path")
    program = folder / "job"
    env = {**os.environ, "GOFLAGS": "-mod=readonly"}
    build = ("go", "build", "-o", str(program), "./examples/job")
    subprocess.run(build, cwd=ROOT / "clients/go", env=env, check=True, timeout=_COMPILE_S)
    return (str(program),)


def typescript(_: Path) -> Sequence[str]:
    if not shutil.which("node") or not _TSC.exists():
        pytest.skip("no Node, or make setup could not have the TypeScript compiler")
    built = ROOT / "clients/ts/dist/clients/ts/examples/job.js"
    build = ("node", str(_TSC), "--project", "clients/ts", "--noEmit", "false")
    subprocess.run(build, cwd=ROOT, check=True, timeout=_COMPILE_S)
    return "node", str(built)


@pytest.mark.timeout(_COMPILE_S + 60)
@pytest.mark.parametrize("example", [python, go, typescript])
async def test_watcher_goes_on_when_its_hub_was_killed_and_came_back(
    example: Callable[[Path], Sequence[str]], tmp_path: Path
) -> None:
    command, port = await asyncio.to_thread(example, tmp_path), free_port()
    folder, listen = tmp_path / "hub", f"127.0.0.1:{port}"
    options = ("--config", str(configured(folder, folder / "ledger")))
    address = f"http://{listen}" if example is typescript else listen
    go_on = tmp_path / "go-on"
    args = {"marker": "a", "steps": 5, "stepS": 0.1, "until": str(go_on)}
    words = (address, "chaos/work.steps", json.dumps(args))
    async with served(folder, *options, environment=IMPATIENT, listen=listen) as hub:
        watching = await asyncio.create_subprocess_exec(
            *command, *words, cwd=ROOT, env=environment(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert watching.stdout is not None
        told = [(await watching.stdout.readline()).decode() for _ in range(3)]
        hub.signal(signal.SIGKILL)
        await hub.process.wait()
    go_on.touch()
    async with served(folder, *options, environment=IMPATIENT, listen=listen), asyncio.timeout(WITHIN_S):
        rest, _ = await watching.communicate()
    told += rest.decode().splitlines()
    *statuses, answer = told
    sequences = [int(line.split()[0]) for line in statuses]
    assert sequences == list(range(sequences[0], sequences[0] + len(statuses)))
    assert statuses[-1].split()[1] == "JOB_STATE_SUCCEEDED"
    assert answer.replace(" ", "") == 'answer:{"marker":"a"}'
    assert watching.returncode == 0
