"""What watchers cost: 2,000 streams over 200 active jobs of one hub, from a client process of its own.

    python -m tests.bench.watchers [--watchers 2000] [--jobs 200] [--seconds 20] [--rounds 10]

Delivery is measured from the entry's own time, when it was put into the store, to its arrival at the client; both run
on one machine and share its cores. Then the streams are cancelled and opened again, round after round, and the hub's
memory is read after each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio

from tests.bench.processes import Process, running
from toolhub.v1 import call_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub

RESULTS = Path(__file__).parent / "results" / "watchers.json"
STREAMS_A_CHANNEL = 250
CONFIG = """
tools:
  trusted_namespaces: [tests.chaos]
  custom:
    - {tool: "tests.chaos.chaos_tools:WorkSteps"}
budget: {upstream_concurrency: 1000}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        command = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder, "--config", str(config))
        environment = {"TOOLHUB_METRICS_LISTEN": "", "TOOLHUB_LOGS_LEVEL": "warning"}
        with running("toolhub_service", *command, environment=environment) as hub:
            found = asyncio.run(measure(hub, options.watchers, options.jobs, options.seconds, options.rounds))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print("\n".join(f"{name:34} {value}" for name, value in found.items()))


async def measure(hub: Process, watchers: int, jobs: int, seconds: float, rounds: int) -> dict[str, Any]:
    async with AsyncExitStack() as open_channels:
        stubs = [
            JobServiceStub(await open_channels.enter_async_context(_channel(hub.port)))
            for _ in range(-(-watchers // STREAMS_A_CHANNEL))
        ]
        idle_mb = hub.resident_mb()
        ids = await _submit(stubs[0], jobs, seconds + 60.0 * rounds)
        await asyncio.sleep(2.0)
        busy_mb = hub.resident_mb()
        crowd = [Watcher(stubs[number % len(stubs)], ids[number % jobs]) for number in range(watchers)]
        await asyncio.gather(*(watcher.begin() for watcher in crowd))
        watched_mb = hub.resident_mb()
        began_s, cpu_s = time.monotonic(), hub.cpu_s()
        for watcher in crowd:
            watcher.delays_ms.clear()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        delays_ms = sorted(delay for watcher in crowd for delay in watcher.delays_ms)
        cpu_share = (hub.cpu_s() - cpu_s) / took_s
        settled_mb = hub.resident_mb()
        await asyncio.gather(*(watcher.end() for watcher in crowd))
        after = [await _again(hub, stubs, ids, watchers) for _ in range(rounds)]
    return {
        "watchers": watchers,
        "active jobs": jobs,
        "deliveries a second": round(len(delays_ms) / took_s),
        "gaps or repeats": sum(watcher.faults for watcher in crowd),
        "delivery p50, ms": round(statistics.median(delays_ms), 1),
        "delivery p99, ms": round(delays_ms[int(len(delays_ms) * 0.99)], 1),
        "hub's processor share": round(cpu_share, 2),
        "resident: idle, MB": round(idle_mb, 1),
        "resident: with the jobs, MB": round(busy_mb, 1),
        "resident a watcher, KB": round((max(watched_mb, settled_mb) - busy_mb) * 1024 / watchers, 1),
        "resident after each round, MB": after,
    }


class Watcher:
    """One stream."""

    def __init__(self, stub: Any, job_id: str) -> None:
        self._stub = stub
        self._job_id = job_id
        self._reading: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self.delays_ms: list[float] = []
        self.faults = 0

    async def begin(self) -> None:
        self._reading = asyncio.create_task(self._read())
        await self._begun.wait()

    async def end(self) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        last = 0
        async for message in self._stub.WatchJob(pb.WatchJobRequest(job_id=self._job_id)):
            status = message.status
            self.delays_ms.append(time.time() * 1_000 - status.at.ToMilliseconds())
            self.faults += bool(last) and status.sequence != last + 1
            last = status.sequence
            self._begun.set()


async def _submit(stub: Any, count: int, lasts_s: float) -> Sequence[str]:
    async def one(number: int) -> str:
        args = {"marker": f"job-{number}", "steps": min(10_000, int(lasts_s / 0.2)), "stepS": 0.2}
        intent = call_pb2.ToolIntent(tool="chaos/work.steps", args_json=json.dumps(args).encode(), purpose="a bench")
        return str((await stub.SubmitJob(pb.SubmitJobRequest(intent=intent))).job.job_id)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def _again(hub: Process, stubs: Sequence[Any], ids: Sequence[str], watchers: int) -> float:
    crowd = [Watcher(stubs[number % len(stubs)], ids[number % len(ids)]) for number in range(watchers)]
    await asyncio.gather(*(watcher.begin() for watcher in crowd))
    await asyncio.gather(*(watcher.end() for watcher in crowd))
    await asyncio.sleep(1.0)
    return round(hub.resident_mb(), 1)


def _channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


if __name__ == "__main__":
    main()
