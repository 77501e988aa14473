"""What a governed call to an MCP tool costs: the SDK's client alone, through the hub, through FastMCP's proxy; in turn.

    python -m tests.bench.mcp_calls [--rounds 3] [--calls 600] [--write]

The same trivial tool of the same server, by streamable HTTP and by stdio. Processor time is that of the process in the
caller's place: the client's own, the hub's, the proxy's. FastMCP is left out where it is not installed: it is a peer,
no dependency.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from mcp import Client, StdioServerParameters

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from toolhub.v1 import call_pb2, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb

POLICY = "grants: [{principals: [local], capabilities: ['mcp:*']}]\n"
SOURCES = """sources:
  web: {{url: "http://127.0.0.1:{port}/mcp"}}
  pipe: {{command: {python}, args: [-m, tests.bench.mcp_echo, --stdio], cwd: {folder}}}
"""
ARGS = {"text": "how much is the fish"}
PEERS = Path(sys.prefix, "peers", "bin", "python")
"""Where `make bench` installs what it compares with."""
_AT_ONCE = 16
_READY_S = 30.0

Once = Callable[[], Awaitable[object]]
CpuTime = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Measured:
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Processor time a call, one after the other."""
    per_s: float
    """Calls a second, 16 at once."""
    stolen: float


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=600)
    options = parser.parse_args()
    found = asyncio.run(measure(options.rounds, options.calls))
    publish("mcp_calls", found, as_table(found), write=options.write)


async def measure(rounds: int, calls: int) -> dict[str, Any]:
    with running("tests.bench.mcp_echo") as server, hub_over(server) as hub, proxy_of(server) as proxy:
        async with sides(server, hub, proxy) as all_sides:
            for once, _ in all_sides.values():
                await drive(once, time.process_time, calls // 4)
            measured: dict[str, list[Measured]] = {name: [] for name in all_sides}
            for _ in range(rounds):
                for name, (once, cpu) in all_sides.items():
                    measured[name].append(await drive(once, cpu, calls))
    return {"machine": machine(), "sides": {name: [asdict(side) for side in each] for name, each in measured.items()}}


@contextmanager
def hub_over(server: Process) -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        text = SOURCES.format(port=server.port, python=sys.executable, folder=Path(__file__).parents[2])
        Path(folder, "sources.yaml").write_text(text)
        quiet = {"TOOLHUB_METRICS_LISTEN": ""}
        with running(
            "toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", folder, environment=quiet
        ) as hub:
            yield hub


@contextmanager
def proxy_of(server: Process) -> Iterator[Process | None]:
    """FastMCP's, with one client for all calls: its faster way."""
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{server.port}/mcp"
        yield (
            stack.enter_context(running("tests.bench.fastmcp_server", url, python=str(PEERS)))
            if PEERS.exists()
            else None
        )


@asynccontextmanager
async def sides(server: Process, hub: Process, proxy: Process | None) -> AsyncIterator[dict[str, tuple[Once, CpuTime]]]:
    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(Client(f"http://127.0.0.1:{server.port}/mcp"))
        stdio = StdioServerParameters(command=sys.executable, args=["-m", "tests.bench.mcp_echo", "--stdio"])
        pipe = await stack.enter_async_context(Client(stdio))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{hub.port}"))
        stub: Any = tool_service_pb2_grpc.ToolServiceStub(channel)
        for tool in ("web/echo", "pipe/echo"):
            await until_it_answers(stub, tool)
        found: dict[str, tuple[Once, CpuTime]] = {
            "HTTP, SDK client alone": (lambda: called(web), time.process_time),
            "HTTP, through the hub": (lambda: invoked(stub, "web/echo"), hub.cpu_s),
            "stdio, SDK client alone": (lambda: called(pipe), time.process_time),
            "stdio, through the hub": (lambda: invoked(stub, "pipe/echo"), hub.cpu_s),
        }
        if proxy is not None:
            through = await stack.enter_async_context(Client(f"http://127.0.0.1:{proxy.port}/mcp"))
            found["HTTP, through FastMCP's proxy"] = (lambda: called(through), proxy.cpu_s)
        yield found


async def drive(once: Once, cpu: CpuTime, calls: int) -> Measured:
    ticks, cpu_s, taken = machine_ticks(), cpu(), []
    for _ in range(calls):
        began = time.perf_counter()
        await once()
        taken.append((time.perf_counter() - began) * 1e3)
    cpu_s = cpu() - cpu_s
    began = time.perf_counter()
    await asyncio.gather(*(_several(once, calls // _AT_ONCE) for _ in range(_AT_ONCE)))
    per_s = (calls // _AT_ONCE) * _AT_ONCE / (time.perf_counter() - began)
    taken.sort()
    return Measured(
        p50_ms=at_share(taken, 0.5),
        p99_ms=at_share(taken, 0.99),
        cpu_ms=cpu_s / calls * 1e3,
        per_s=per_s,
        stolen=stolen_share(ticks, machine_ticks()),
    )


async def _several(once: Once, calls: int) -> None:
    for _ in range(calls):
        await once()


async def called(client: Client) -> None:
    result = await client.call_tool("echo", ARGS)
    if result.is_error:
        raise SystemExit(f"the server does not answer as it should: {result}")


async def invoked(stub: Any, tool: str) -> None:
    answer = await stub.Invoke(_request(tool))
    if not answer.result.ok:
        raise SystemExit(f"the hub does not answer as it should: {answer}")


async def until_it_answers(stub: Any, tool: str) -> None:
    """A source is read while the hub already serves."""
    give_up = time.monotonic() + _READY_S
    while not (answer := (await stub.Invoke(_request(tool))).result).ok:
        if time.monotonic() > give_up:
            raise SystemExit(f"{tool} cannot be called: {answer.error.message}")
        await asyncio.sleep(0.2)


def _request(tool: str) -> pb.InvokeRequest:
    return pb.InvokeRequest(
        intent=call_pb2.ToolIntent(tool=tool, args_json=json.dumps(ARGS).encode(), purpose="measure")
    )


def as_table(found: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("side", "p50 ms", "p99 ms", "CPU ms a call", "calls/s, 16 at once")]
    medians: dict[str, dict[str, float]] = {}
    for name, rounds in found["sides"].items():
        each = medians[name] = {key: statistics.median(side[key] for side in rounds) for key in rounds[0]}
        rows.append((name, *(f"{each[key]:.2f}" for key in ("p50_ms", "p99_ms", "cpu_ms")), f"{each['per_s']:.0f}"))
    lines = [markdown(rows), ""]
    for way in ("HTTP", "stdio"):
        alone, hub = medians[f"{way}, SDK client alone"], medians[f"{way}, through the hub"]
        lines.append(
            f"{way}: the hub adds {hub['p50_ms'] - alone['p50_ms']:.2f} ms p50 and "
            f"{hub['cpu_ms'] - alone['cpu_ms']:.2f} ms CPU a call to what the SDK's client alone takes."
        )
    stolen = max(side["stolen"] for rounds in found["sides"].values() for side in rounds)
    lines.append(f"Machine: {found['machine']}. Stolen processor time at most {stolen:.0%}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
