"""What a remote job costs while it is alive: resident bytes and processor time of 2,000 that are being followed.

    python -m tests.bench.remote_jobs [--jobs 2000] [--seconds 45] [--write]

Once on the driver and the executor alone, in a child without hub and store; once in a whole hub (job_hub.py), submitted
over the wire: pipeline, store, audit log and all. The other side is the scripted job server, each time a new one.
Memory is measured after a warm-up of one job, so that libraries and the client are not counted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import grpc.aio
import httpx

from tests.bench.job_hub import CONNECTIONS, TOOL
from tests.bench.page import arguments, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from tests.bench.watchers import submitted
from tests.fakes.http_remote_job import HttpRemoteJob
from tests.fakes.remote_harness import LoopClock, RecordingSink, remote_call
from tests.fakes.running_jobs import FakeRunningJobs
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1 import job_state_pb2
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.app.wiring.deps import SystemRandomness

LONG = {"seconds": 3_600.0, "steps": 3_600}
_AT_ONCE = 100
"""Submissions on their way."""
_SETTLE_S = 5.0
"""All have been looked at once by then, and most twice."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=45.0, help="each is asked about every 40")
    parser.add_argument("--url", help="run the jobs in this process, against this server")
    options = parser.parse_args()
    if options.url:
        print(json.dumps(asyncio.run(follow_many(options.url, options.jobs, options.seconds))))
        return
    before = machine_ticks()
    found: dict[str, Any] = {"jobs": options.jobs, "machine": machine()}
    found["alone"] = measure_alone(options.jobs, options.seconds)
    found["hub"] = measure_hub(options.jobs, options.seconds)
    found["stolen"] = round(stolen_share(before, machine_ticks()), 3)
    publish("remote_jobs", found, as_table(found), write=options.write)


def measure_alone(jobs: int, seconds: float) -> dict[str, Any]:
    with running("tests.fakes.job_server") as server:
        command = [sys.executable, "-m", "tests.bench.remote_jobs", "--url", f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(
            [*command, "--jobs", str(jobs), "--seconds", str(seconds)], capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))


def measure_hub(jobs: int, seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running("tests.fakes.job_server") as server,
        running("tests.bench.job_hub", "--folder", folder, "--jobs", f"http://127.0.0.1:{server.port}") as hub,
    ):
        return asyncio.run(_submit_many(hub, jobs, seconds))


async def _submit_many(hub: Process, jobs: int, seconds: float) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{hub.port}") as channel:
        stub = JobServiceStub(channel)
        await submitted(stub, TOOL.name, [LONG])
        await asyncio.sleep(_SETTLE_S)
        idle_mb, cpu_s, began_s = hub.resident_mb(), hub.cpu_s(), time.monotonic()
        for done in range(0, jobs, _AT_ONCE):
            await submitted(stub, TOOL.name, [LONG] * min(_AT_ONCE, jobs - done))
        accepted_s, accepted_cpu_s = time.monotonic() - began_s, hub.cpu_s() - cpu_s
        await asyncio.sleep(_SETTLE_S)
        alive_mb, cpu_s, began_s = hub.resident_mb(), hub.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (hub.cpu_s() - cpu_s) / (time.monotonic() - began_s)
        page = await stub.ListJobs(pb.ListJobsRequest(states=[job_state_pb2.JOB_STATE_RUNNING], page_size=1))
        return {
            "idle_mb": round(idle_mb, 1),
            "more_mb": round(max(alive_mb, hub.resident_mb()) - idle_mb, 1),
            "processor_share": round(share, 3),
            "accepted_s": round(accepted_s, 1),
            "accepted_cpu_ms_per_job": round(accepted_cpu_s / jobs * 1_000, 2),
            "alive": page.total_size - 1,
        }


def as_table(found: dict[str, Any]) -> str:
    alone, hub, jobs = found["alone"], found["hub"], found["jobs"]
    rows = [
        ("what", "alive", "resident more than idle", "a job", "processor, of one core"),
        ("executor and driver alone", f"{alone['alive'] - 1:,}", *_memory(alone["more_mb"], jobs), _share(alone)),
        ("a whole hub", f"{hub['alive']:,}", *_memory(hub["more_mb"], jobs), _share(hub)),
    ]
    caption = f"Goal: less than 100 MB more. Accepted in {hub['accepted_s']} s. Machine: {found['machine']}."
    return "\n".join([markdown(rows), "", caption, f"Stolen processor time {found['stolen']:.0%}."])


def _memory(more_mb: float, jobs: int) -> tuple[str, str]:
    return f"{more_mb:.1f} MB", f"{more_mb * 1_024 / jobs:.1f} KB"


def _share(side: dict[str, Any]) -> str:
    return f"{side['processor_share']:.1%}"


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
            "more_mb": round((max(alive_bytes, _resident_bytes()) - idle_bytes) / 1_024 / 1_024, 1),
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
    sinks = [RecordingSink() for _ in job_ids]
    calls = [remote_call(url, LONG, job_id=job_id) for job_id in job_ids]
    runs = [asyncio.create_task(executor.execute(call, sink)) for call, sink in zip(calls, sinks, strict=True)]
    for sink in sinks:
        await sink.until_reported("step", within_s=600)
    return runs


def _resident_bytes() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) * 1_024


if __name__ == "__main__":
    main()
