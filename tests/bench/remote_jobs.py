"""What a remote job costs while it is alive: resident bytes and processor time of 2,000 that are being followed.

    python -m tests.bench.remote_jobs [--jobs 2000] [--seconds 10]

The jobs run in a child of their own, against the scripted job server in another, on the driver and the executor alone:
no hub, no store. Memory is measured after a warm-up of one job, so that libraries and the client are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.bench.processes import running
from tests.fakes.http_remote_job import HttpRemoteJob
from tests.fakes.remote_stage import LoopClock, ToldSink, remote_call
from tests.fakes.running_jobs import FakeRunningJobs
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.app.system import SystemRandomness

RESULTS = Path(__file__).parent / "results" / "remote_jobs.json"
CONNECTIONS = 8
LONG = {"seconds": 3_600.0, "steps": 3_600}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--url", help="run the jobs in this process, against this server")
    options = parser.parse_args()
    if options.url:
        print(json.dumps(asyncio.run(follow_many(options.url, options.jobs, options.seconds))))
        return
    found = measure(options.jobs, options.seconds)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print("\n".join(f"{name:28} {value}" for name, value in found.items()))


def measure(jobs: int, seconds: float) -> dict[str, Any]:
    with running("tests.fakes.job_server") as server:
        command = [sys.executable, "-m", "tests.bench.remote_jobs", "--url", f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(
            [*command, "--jobs", str(jobs), "--seconds", str(seconds)], capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))


async def follow_many(url: str, jobs: int, seconds: float) -> dict[str, Any]:
    """Start them, let all be looked at, then measure while they go on."""
    limits = httpx.Limits(max_connections=CONNECTIONS)
    async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=60.0) as client:
        poller = Poller(SystemRandomness())
        running_jobs = FakeRunningJobs()
        executor = RemoteExecutor(HttpRemoteJob(client, url, poller), running_jobs, LoopClock(), SystemRandomness())
        (warm,) = await _begun(executor, url, ["warm"])
        idle_bytes = _resident_bytes()
        runs = await _begun(executor, url, [f"job-{number}" for number in range(jobs)])
        alive_bytes = _resident_bytes()
        cpu_s, began_s = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        found = {
            "jobs": jobs,
            "resident_kb_per_job": round((alive_bytes - idle_bytes) / jobs / 1_024, 1),
            "resident_kb_per_job_later": round((_resident_bytes() - idle_bytes) / jobs / 1_024, 1),
            "processor_share": round(share, 3),
            "threads": threading.active_count(),
            "alive": poller.asking,
        }
        for run in (warm, *runs):
            run.cancel()
        await asyncio.wait({warm, *runs})
        return found


async def _begun(executor: RemoteExecutor, url: str, job_ids: list[str]) -> list[asyncio.Task[Any]]:
    """Runs whose first look at the remote side is behind them."""
    sinks = [ToldSink() for _ in job_ids]
    calls = [remote_call(url, LONG, job_id=job_id) for job_id in job_ids]
    runs = [asyncio.create_task(executor.execute(call, sink)) for call, sink in zip(calls, sinks, strict=True)]
    for sink in sinks:
        await sink.said("step", within_s=600)
    return runs


def _resident_bytes() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) * 1_024


if __name__ == "__main__":
    main()
