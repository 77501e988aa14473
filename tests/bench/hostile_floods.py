"""What an MCP server that floods costs everybody else: the worst wait of another caller, and the memory of the hub.

    python -m tests.bench.hostile_mcp --only "http-modern comments" …

Part of `hostile_mcp`. Each row is one shape of `tests/fakes/mcp_servers/floods.py` on one road: Streamable HTTP in both
versions, and pipes. Four callers call the flooding tool again and again for the whole measurement, each with a deadline
of a few seconds, while others call a core tool. A hub that has given a program up starts it again, so that the flood
goes on.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from tests.fakes.mcp_servers.floods import HTTP, PIPES
from toolhub.v1 import call_pb2, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb

POLICY = """
extends: none
grants: [{principals: [local], capabilities: ["*", "mcp:*"]}]
roles: [{principals: [local], roles: [agent, operator]}]
"""
GENERATIONS = ("modern", "legacy")
FLOODS = [
    *(f"http-{generation} {shape}" for generation in GENERATIONS for shape in HTTP),
    *(f"stdio-legacy {shape}" for shape in PIPES),
]
WAIT_MAX_MS, MEMORY_MAX_MB = 250.0, 400.0
_FLOODERS = 4
_OTHERS = 4
_FLOOD_S = 3.0
_READY_S = 60.0


def run(floods: list[str], rounds: int, seconds: float, *, write: bool) -> None:
    found = asyncio.run(measure(floods, rounds, seconds))
    publish("hostile_floods", found, as_table(found), write=write)


async def measure(floods: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in floods}
    for name, results in measured.items():
        road, _, shape = name.partition(" ")
        with hub(road) as process:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{process.port}") as channel:
                stub: Any = tool_service_pb2_grpc.ToolServiceStub(channel)
                await until_it_answers(stub, f"{road}/echo")
                for _ in range(rounds):
                    results.append(await beside(process, stub, f"{road}/{shape}", seconds))
    return {"machine": machine(), "floods": measured}


async def beside(process: Process, stub: Any, tool: str, seconds: float) -> dict[str, float]:
    """The waits of others before and during the flood, in milliseconds, and the most memory that the hub had."""
    ticks = machine_ticks()
    quiet = await others(stub, seconds)
    ends = time.perf_counter() + seconds
    ended = 0

    async def flood() -> None:
        nonlocal ended
        while time.perf_counter() < ends:
            await stub.Invoke(_request(tool, _FLOOD_S), timeout=_FLOOD_S * 10)
            ended += 1

    flooding = [asyncio.create_task(flood()) for _ in range(_FLOODERS)]
    loud = await others(stub, seconds)
    peak_mb = process.resident_mb()
    await asyncio.wait(flooding)
    return {
        "quiet_max_ms": quiet[-1],
        "flood_p99_ms": at_share(loud, 0.99),
        "flood_max_ms": loud[-1],
        "floods": ended,
        "resident_mb": max(peak_mb, process.resident_mb()),
        "stolen": stolen_share(ticks, machine_ticks()),
    }


async def others(stub: Any, seconds: float) -> list[float]:
    """Milliseconds of each call of a core tool, the shortest first."""
    taken: list[float] = []
    ends = time.perf_counter() + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < ends:
            answer = await stub.Invoke(_request("core/util.time.now", _READY_S))
            if not answer.result.ok:
                raise SystemExit(f"a call failed beside a flood: {answer.result.error.message}")
            taken.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(0.002)

    await asyncio.gather(*(caller() for _ in range(_OTHERS)))
    return sorted(taken)


async def until_it_answers(stub: Any, tool: str) -> None:
    give_up = time.monotonic() + _READY_S
    while not (answer := (await stub.Invoke(_request(tool, _FLOOD_S))).result).ok:
        if time.monotonic() > give_up:
            raise SystemExit(f"{tool} cannot be called: {answer.error.message}")
        await asyncio.sleep(0.2)


def _request(tool: str, within_s: float) -> pb.InvokeRequest:
    args = b'{"text":"x"}' if tool.endswith("/echo") else b"{}"
    request = pb.InvokeRequest(intent=call_pb2.ToolIntent(tool=tool, args_json=args, purpose="measure"))
    request.context.budget.timeout.FromMilliseconds(round(within_s * 1e3))
    return request


@contextmanager
def hub(road: str) -> Iterator[Process]:
    """A hub with the flooding server of one road, whose source has the road's name."""
    over, generation = road.split("-")
    argv = [sys.executable, "-m", "tests.fakes.mcp_servers.floods", over, generation]
    root = str(Path(__file__).parents[2])
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        entry: dict[str, Any] = {"command": argv[0], "args": argv[1:], "cwd": root}
        if over == "http":
            server = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root, text=True)
            stack.callback(server.wait)
            stack.callback(server.kill)
            assert server.stdout is not None
            entry = {"url": server.stdout.readline().strip()}
        Path(folder, "policy.yaml").write_text(POLICY)
        Path(folder, "sources.yaml").write_text(json.dumps({"sources": {road: entry}}))
        quiet = {
            "TOOLHUB_METRICS_LISTEN": "",
            "TOOLHUB_SERVER_MCP_ENABLED": "false",
            "TOOLHUB_BUDGET_BREAKER_MIN_CALLS": "1000000",
        }
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        yield stack.enter_context(running("toolhub_service", *words, environment=quiet))


def as_table(found: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("the server floods", "calls ended", "worst ms quiet", "p99 ms during", "worst ms during", "MB", "within")
    ]
    for name, rounds in found["floods"].items():
        keys = ("floods", "quiet_max_ms", "flood_p99_ms", "flood_max_ms", "resident_mb")
        ended, quiet, p99, worst, resident = (statistics.median(each[key] for each in rounds) for key in keys)
        fits = "yes" if worst < WAIT_MAX_MS and resident < MEMORY_MAX_MB else "no"
        rows.append((name, f"{ended:.0f}", f"{quiet:.1f}", f"{p99:.1f}", f"{worst:.1f}", f"{resident:.0f}", fits))
    stolen = max(each["stolen"] for rounds in found["floods"].values() for each in rounds)
    return (
        f"{markdown(rows)}\n\n{_FLOODERS} calls flood at a time. Within: a worst wait below {WAIT_MAX_MS:.0f} ms and "
        f"less than {MEMORY_MAX_MB:.0f} MB.\nMachine: {found['machine']}. Stolen processor time at most {stolen:.0%}."
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=FLOODS, help="these floods alone")
    options = parser.parse_args()
    run(options.only, options.rounds, options.seconds, write=options.write)


if __name__ == "__main__":
    main()
