"""What it costs to make a call a job: submitted, run and followed to its end, on the hub's own file and on Redis.

    python -m tests.bench.jobs [--seconds 8] [--rounds 3] [--write]

The call is `core/util.time.now`. A client process keeps 32 of them on their way: each is submitted, watched to its end,
and followed by the next. Then one job that reports 20 steps a second is watched: delivery is from the entry's own time,
when it was made to be put into the store, to its arrival at the client.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from tests.bench.watchers import CONFIG, Watcher, submitted
from tests.services.redis_server import RedisServer
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1 import job_state_pb2
from toolhub.v1.job_service_pb2_grpc import JobServiceStub

STORES = ("hub.db", "Redis")
AT_ONCE = 32
_STEP_S = 0.05
_WARM_S = 2.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    before = machine_ticks()
    seen: dict[str, list[dict[str, float]]] = {store: [] for store in STORES}
    with ExitStack() as stack:
        hubs = {store: stack.enter_context(_hub_on(store)) for store in STORES}
        for hub in hubs.values():
            asyncio.run(_drive(hub, _WARM_S))
        for _ in range(options.rounds):
            for store, hub in hubs.items():
                seen[store].append(asyncio.run(_drive(hub, options.seconds)))
    stolen = stolen_share(before, machine_ticks())
    found = {"machine": machine(), "at once": AT_ONCE, "rounds": seen, "stolen": round(stolen, 3)}
    publish("jobs", found, as_table(found), write=options.write)


@contextmanager
def _hub_on(store: str) -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "config.yaml").write_text(CONFIG)
        environment = {"TOOLHUB_METRICS_LISTEN": "", "TOOLHUB_LOGS_LEVEL": "warning"}
        if store == "Redis":
            server = RedisServer(Path(folder))
            server.start()
            stack.callback(server.kill)
            environment["TOOLHUB_STORES_REDIS_URL"] = server.url
        command = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder, "--config", f"{folder}/config.yaml")
        yield stack.enter_context(running("toolhub_service", *command, environment=environment))


async def _drive(hub: Process, seconds: float) -> dict[str, float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{hub.port}") as channel:
        stub = JobServiceStub(channel)
        accepted_ms: list[float] = []
        done_ms: list[float] = []
        began_s, cpu_s = time.monotonic(), hub.cpu_s()
        over_s = began_s + seconds
        await asyncio.gather(*(_one_after_another(stub, over_s, accepted_ms, done_ms) for _ in range(AT_ONCE)))
        took_s, cpu_s = time.monotonic() - began_s, hub.cpu_s() - cpu_s
        delays_ms = await _watched(stub, seconds)
    return {
        "jobs_per_s": len(done_ms) / took_s,
        "cpu_ms_per_job": cpu_s / len(done_ms) * 1_000,
        "accepted_p50_ms": statistics.median(accepted_ms),
        "done_p50_ms": statistics.median(done_ms),
        "done_p99_ms": at_share(sorted(done_ms), 0.99),
        "watch_p50_ms": statistics.median(delays_ms),
        "watch_p99_ms": at_share(sorted(delays_ms), 0.99),
    }


async def _one_after_another(stub: Any, over_s: float, accepted_ms: list[float], done_ms: list[float]) -> None:
    while (began_s := time.monotonic()) < over_s:
        (job_id,) = await submitted(stub, "core/util.time.now", [{}])
        accepted_ms.append((time.monotonic() - began_s) * 1_000)
        last = job_state_pb2.JOB_STATE_UNSPECIFIED
        async for message in stub.WatchJob(pb.WatchJobRequest(job_id=job_id)):
            last = message.status.state
        if last != job_state_pb2.JOB_STATE_SUCCEEDED:
            raise SystemExit(f"a job ended as {job_state_pb2.JobState.Name(last)}")
        done_ms.append((time.monotonic() - began_s) * 1_000)


async def _watched(stub: Any, seconds: float) -> Sequence[float]:
    """How late each entry of one job came, in milliseconds."""
    steps = max(1, int(seconds / _STEP_S))
    (job_id,) = await submitted(stub, "chaos/work.steps", [{"marker": "one", "steps": steps, "stepS": _STEP_S}])
    watcher = Watcher(stub, job_id)
    await watcher.begin()
    await watcher.ended()
    return watcher.delays_ms[1:]  # the first one is the state at the start


def as_table(found: dict[str, Any]) -> str:
    rows = [("store", "jobs/s", "CPU a job", "accepted p50", "done p50", "done p99", "watched p50", "watched p99")]
    for store, rounds in found["rounds"].items():
        middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        rates = [each["jobs_per_s"] for each in rounds]
        times = ("accepted_p50_ms", "done_p50_ms", "done_p99_ms", "watch_p50_ms", "watch_p99_ms")
        rows.append(
            (
                store,
                f"{middle['jobs_per_s']:.0f} ({min(rates):.0f}–{max(rates):.0f})",
                f"{middle['cpu_ms_per_job']:.2f} ms",
                *(f"{middle[name]:.1f} ms" for name in times),
            )
        )
    caption = (
        f"Machine: {found['machine']}. Medians of {len(rates)} rounds, {found['at once']} jobs on their way at once."
    )
    return "\n".join([markdown(rows), "", caption, f"Stolen processor time {found['stolen']:.0%}."])


if __name__ == "__main__":
    main()
