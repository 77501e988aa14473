"""What watchers cost: 2,000 streams over 200 active jobs of one hub, from a client process of its own.

    python -m tests.bench.watchers [--watchers 2000] [--jobs 200] [--seconds 20] [--rounds 10] [--write]

Each job reports five steps a second. Delivery is from the entry's own time, when it was made for the store, to
its arrival at the client; both run on one machine and share its cores. Then the streams are cancelled and opened again,
round after round, and the hub's memory is read after each.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from toolhub.v1 import call_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub

STREAMS_A_CHANNEL = 250
CONFIG = """
tools:
  trusted_namespaces: [tests.chaos]
  custom:
    - {tool: "tests.chaos.chaos_tools:WorkSteps"}
budget: {upstream_concurrency: 1000}
"""
_STEP_S = 0.2
_ROUND_S = 10.0
"""More than a round takes: the jobs outlive them all."""
_SETTLE_S = 2.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--watchers", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    before = machine_ticks()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        command = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder, "--config", str(config))
        environment = {"TOOLHUB_METRICS_LISTEN": "", "TOOLHUB_LOGS_LEVEL": "warning"}
        with running("toolhub_service", *command, environment=environment) as hub:
            found = asyncio.run(measure(hub, options.watchers, options.jobs, options.seconds, options.rounds))
    found |= {"machine": machine(), "stolen": round(stolen_share(before, machine_ticks()), 3)}
    publish("watchers", found, as_table(found), write=options.write)


async def measure(hub: Process, watchers: int, jobs: int, seconds: float, rounds: int) -> dict[str, Any]:
    async with AsyncExitStack() as open_channels:
        stubs = [
            JobServiceStub(await open_channels.enter_async_context(_channel(hub.port)))
            for _ in range(-(-watchers // STREAMS_A_CHANNEL))
        ]
        idle_mb = hub.resident_mb()
        steps = min(10_000, int((seconds + _ROUND_S * (rounds + 3)) / _STEP_S))
        asked = [{"marker": f"job-{number}", "steps": steps, "stepS": _STEP_S} for number in range(jobs)]
        ids = await submitted(stubs[0], "chaos/work.steps", asked)
        await asyncio.sleep(_SETTLE_S)
        busy_mb = hub.resident_mb()
        group = await _watch_all(stubs, ids, watchers)
        figures = await _listen(hub, group, seconds)
        watched_mb = hub.resident_mb()
        await asyncio.gather(*(watcher.end() for watcher in group))
        after = [await _again(hub, stubs, ids, watchers) for _ in range(rounds)]
    return {
        "watchers": watchers,
        "jobs": jobs,
        **figures,
        "idle_mb": round(idle_mb, 1),
        "with_jobs_mb": round(busy_mb, 1),
        "kb_a_watcher": round((watched_mb - busy_mb) * 1024 / watchers, 1),
        "after_rounds_mb": after,
    }


async def _listen(hub: Process, group: Sequence[Watcher], seconds: float) -> dict[str, Any]:
    """What comes in a time, all streams together."""
    for watcher in group:
        watcher.delays_ms.clear()
    began_s, cpu_s = time.monotonic(), hub.cpu_s()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began_s
    delays_ms = sorted(delay for watcher in group for delay in watcher.delays_ms)
    return {
        "deliveries_per_s": round(len(delays_ms) / took_s),
        "faults": sum(watcher.faults for watcher in group),
        "p50_ms": round(statistics.median(delays_ms), 1),
        "p99_ms": round(at_share(delays_ms, 0.99), 1),
        "processor_share": round((hub.cpu_s() - cpu_s) / took_s, 2),
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
        """Gaps and repeats."""

    async def begin(self) -> None:
        """Until the first entry is here. Raises what ended the stream before."""
        self._reading = asyncio.create_task(self._read())
        begun = asyncio.create_task(self._begun.wait())
        await asyncio.wait({self._reading, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            begun.cancel()
            await self._reading

    async def ended(self) -> None:
        """Until the job has. Raises what ended the stream before."""
        assert self._reading is not None
        await self._reading

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


async def submitted(stub: Any, tool: str, many: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids of jobs of the tool, one for each arguments."""

    async def one(args: Mapping[str, Any]) -> str:
        intent = call_pb2.ToolIntent(tool=tool, args_json=json.dumps(args).encode(), purpose="a bench")
        return str((await stub.SubmitJob(pb.SubmitJobRequest(intent=intent))).job.job_id)

    return await asyncio.gather(*(one(args) for args in many))


async def _watch_all(stubs: Sequence[Any], ids: Sequence[str], watchers: int) -> list[Watcher]:
    group = [Watcher(stubs[number % len(stubs)], ids[number % len(ids)]) for number in range(watchers)]
    await asyncio.gather(*(watcher.begin() for watcher in group))
    return group


async def _again(hub: Process, stubs: Sequence[Any], ids: Sequence[str], watchers: int) -> float:
    """The hub's megabytes after all have come once more and gone."""
    group = await _watch_all(stubs, ids, watchers)
    await asyncio.gather(*(watcher.end() for watcher in group))
    await asyncio.sleep(_SETTLE_S / 2)
    return round(hub.resident_mb(), 1)


def as_table(found: dict[str, Any]) -> str:
    after = found["after_rounds_mb"]
    rows = [
        ("what", "goal", "found"),
        ("append to delivery, p50", "", f"{found['p50_ms']} ms"),
        ("append to delivery, p99", "250 ms", f"{found['p99_ms']} ms"),
        ("gaps and repeats", "0", str(found["faults"])),
        ("resident a watcher", "40 KB", f"{found['kb_a_watcher']} KB"),
        ("resident: idle / with the jobs", "", f"{found['idle_mb']} / {found['with_jobs_mb']} MB"),
        (
            "resident after each round of connecting and cancelling",
            "no growth",
            " ".join(f"{each:.0f}" for each in after),
        ),
    ]
    load = f"{found['watchers']:,} watchers of {found['jobs']} jobs, {found['deliveries_per_s']:,} deliveries a second"
    caption = f"{load}, for {found['processor_share']:.0%} of one core. Machine: {found['machine']}."
    return "\n".join([markdown(rows), "", caption, f"Stolen processor time {found['stolen']:.0%}."])


def _channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


if __name__ == "__main__":
    main()
