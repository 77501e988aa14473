"""What a call to a real n8n takes, alone and through the hub, beside what was recorded once.

    python -m tests.acceptance.n8n_figures [--calls 30] [--write]

The same webhook, called one after the other; the first calls of each are not counted, for n8n loads lazily. A caller
of the hub waits for policy, schemas, the audit log and evidence besides. The hub runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx

from tests import fixtures
from tests.acceptance.n8n_hub import POLICY, sources
from tests.acceptance.page import put
from tests.acceptance.real_n8n import RealN8n, real_n8n
from tests.bench.page import at_share, markdown
from tests.bench.processes import Process, running
from tests.hub import request
from tests.rpc.real_servers import write_sources
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

AT_ONCE: Final = 50
WARM: Final = 5
READY_S: Final = 60.0
CALL_S: Final = 60.0
WEBHOOKS: Final = {"hub-last": "last", "hub-code": "code", "hub-immediate": "started"}
"""Tools by the path of their webhook."""
ARGS: Final = {"a": 1, "b": 2}

Call = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds."""

    p50: float
    p95: float

    def __str__(self) -> str:
        return f"{self.p50:.0f} / {self.p95:.0f}"


async def measure(calls: int) -> str:
    """The whole block of the page."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        async with real_n8n(Path(folder, "n8n")) as n8n:
            ready_s = time.monotonic() - began
            with hub_over(Path(folder), n8n) as hub:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{hub.port}") as channel:
                    rows = await compared(n8n, channel, calls)
                    at_once = await fifty(n8n, channel)
                resident = f"n8n with its task runner {n8n.resident_mb():.0f} MB, the hub {hub.resident_mb():.0f} MB"
    head = ("", "n8n alone, p50 / p95 ms", "through the hub, p50 / p95 ms", "recorded, n8n alone")
    return f"""{markdown([head, *rows])}

{at_once}
From an empty folder to a served n8n with all workflows {ready_s:.0f} s. Resident after that: {resident}.
n8n {n8n.version}, {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}."""


@contextmanager
def hub_over(folder: Path, n8n: RealN8n) -> Iterator[Process]:
    home = write_sources(folder, sources(n8n)).parent
    (home / "policy.yaml").write_text(POLICY)
    words = ("toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(home))
    with running(*words, environment={"TOOLHUB_METRICS_LISTEN": ""}) as hub:
        yield hub


async def compared(n8n: RealN8n, channel: grpc.aio.Channel, calls: int) -> list[tuple[str, ...]]:
    tools: Any = ToolServiceStub(channel)
    await until_it_answers(tools)
    then, rows = recorded(), list[tuple[str, ...]]()
    async with n8n.client() as client:
        for webhook, tool in WEBHOOKS.items():
            alone = await timed(partial(posted, client, webhook), calls)
            through = await timed(partial(invoked, tools, f"flows/{tool}"), calls)
            rows.append((webhook, str(alone), str(through), then.get(f"latency {webhook}", "–")))
        accepted = await timed(partial(posted, client, "hub-async", seconds=0), calls)
        rows.append(("hub-async, until 202", str(accepted), "–", then.get("latency hub-async", "–")))
        followed = await timed(partial(job_ended, tools, JobServiceStub(channel)), max(calls // 3, 5))
        rows.append(("hub-async, until its job has ended", "–", str(followed), "–"))
        newest = (await n8n.executions("hub-last"))[0]["id"]
        looked = await timed(lambda _: n8n.ask("GET", f"/executions/{newest}"), calls)
        rows.append(("GET execution", str(looked), "–", then.get("latency GET execution", "–")))
    return rows


async def fifty(n8n: RealN8n, channel: grpc.aio.Channel) -> str:
    tools: Any = ToolServiceStub(channel)
    async with n8n.client() as client:
        began = time.perf_counter()
        await asyncio.gather(*(posted(client, "hub-last", n) for n in range(AT_ONCE)))
        alone_s = time.perf_counter() - began
    began = time.perf_counter()
    await asyncio.gather(*(invoked(tools, "flows/last", 10_000 + n) for n in range(AT_ONCE)))
    return (
        f"{AT_ONCE} calls at once: {alone_s:.2f} s by n8n alone, {time.perf_counter() - began:.2f} s through the hub, "
        f"{recorded().get('wall', '–')} s as recorded."
    )


async def timed(once: Call, calls: int) -> Latencies:
    """Each call has a number of its own, so that none is taken for another one."""
    spent = []
    for number in range(calls + WARM):
        began = time.perf_counter()
        await once(number)
        spent.append((time.perf_counter() - began) * 1e3)
    ordered = sorted(spent[WARM:])
    return Latencies(at_share(ordered, 0.50), at_share(ordered, 0.95))


async def posted(client: httpx.AsyncClient, webhook: str, number: int, **more: Any) -> None:
    (await client.post(f"/webhook/{webhook}", json=ARGS | _own(number) | more)).raise_for_status()


async def invoked(tools: Any, tool: str, number: int) -> None:
    args = ARGS if tool == "flows/code" else _own(number)
    answer = await tools.Invoke(request(tool, args, idempotency_key=f"{tool}-{number}"), timeout=CALL_S)
    assert answer.result.ok, answer.result.error


async def job_ended(tools: Any, jobs: Any, number: int) -> None:
    call = request("flows/work", {"seconds": 0} | _own(number))
    answer = await tools.Invoke(call, timeout=CALL_S)
    watch = jobs.WatchJob(pb.WatchJobRequest(job_id=answer.result.job.job_id), timeout=CALL_S)
    statuses = [each.status async for each in watch]
    assert statuses[-1].result.ok, statuses[-1].error


async def until_it_answers(tools: Any) -> None:
    async with asyncio.timeout(READY_S):
        while not (await tools.Invoke(request("flows/last"), timeout=CALL_S)).result.ok:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.2)


def recorded() -> dict[str, str]:
    """Figures of the recorded run by their labels; none where the recordings are not here."""
    if not fixtures.are_here("n8n", "transcript_calls2.json"):
        return {}
    entries: Sequence[dict[str, Any]] = fixtures.load_json("n8n", "transcript_calls2.json")
    figures = {entry["label"]: str(Latencies(entry["p50"], entry["p95"])) for entry in entries if "p50" in entry}
    (wall_s,) = [entry["wall"] for entry in entries if "wall" in entry]
    return figures | {"wall": f"{wall_s:.2f}"}


def _own(number: int) -> dict[str, Any]:
    return {"call": number}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/acceptance.md")
    options = parser.parse_args()
    block = asyncio.run(measure(options.calls))
    print(block)
    if options.write:
        put("n8n_figures", block)


if __name__ == "__main__":
    main()
