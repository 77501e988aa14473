"""The hub as an MCP server against a bare FastMCP server, and against FastMCP's proxy; in turn, in one run.

    make bench BENCHES=mcp_server
    python -m tests.bench.mcp_server [--rounds 5] [--seconds 4] [--write]

tools/call over streamable HTTP, 2026-07-28, with JSON answers on connections that are kept. The hub takes each call
through all nine steps, with the audit log on disk, metrics, and traces that are not sampled; FastMCP's server has the
same tool and nothing else. Then a tool of another MCP server: through the hub's endpoint, and through FastMCP's proxy
with one connected client for all calls. Processor time is that of the process that answers, from /proc.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.http_load import drive as driven_here
from tests.bench.mcp_calls import PEERS
from tests.bench.page import arguments, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from tests.free_port import free_port

ERA = "2026-07-28"
POLICY = "grants: [{principals: [local], capabilities: ['mcp:*']}]\n"
_META = "io.modelcontextprotocol/"
_CONNECTIONS = (1, 8)
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class CalledServer:
    """A server that is called."""

    process: Process
    port: int
    tool: str
    args: dict[str, Any]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    if not PEERS.exists():
        print(f"FastMCP is missing: {PEERS.parents[1]}. `make bench` installs it; without it there is no comparison.")
    found = measure(options.rounds, options.seconds)
    publish("mcp_server", found, as_table(found), write=options.write)


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        sides = {name: stack.enter_context(side()) for name, side in PAIRS.items() if _can_run(name)}
        for name, side in sides.items():
            until_it_answers(name, side)
            drive(side, _CONNECTIONS[-1], seconds / 2)
        measured: dict[str, list[dict[str, Any]]] = {f"{name}, {n}": [] for name in sides for n in _CONNECTIONS}
        for _ in range(rounds):
            for connections in _CONNECTIONS:
                for name, side in sides.items():
                    measured[f"{name}, {connections}"].append(drive(side, connections, seconds))
    return {"machine": machine(), "sides": measured}


def drive(side: CalledServer, connections: int, seconds: float) -> dict[str, Any]:
    """One round. The figures of http_load, besides `cpu_ms` a call and `stolen`."""
    ticks, cpu_s = machine_ticks(), side.process.cpu_s()
    command = [sys.executable, "-m", "tests.bench.http_load", str(side.port), str(connections), str(seconds)]
    completed = subprocess.run(command, check=True, capture_output=True, input=request(side))
    found: dict[str, Any] = json.loads(completed.stdout)
    cpu_ms = (side.process.cpu_s() - cpu_s) / found["calls"] * 1e3
    return found | {"cpu_ms": cpu_ms, "stolen": stolen_share(ticks, machine_ticks())}


def request(side: CalledServer) -> bytes:
    meta = {"protocolVersion": ERA, "clientInfo": {"name": "bench", "version": "1"}, "clientCapabilities": {}}
    params = {
        "name": side.tool,
        "arguments": side.args,
        "_meta": {_META + name: value for name, value in meta.items()},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{side.port}\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {ERA}\r\nmcp-method: tools/call\r\n"
        f"mcp-name: {side.tool}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def until_it_answers(name: str, side: CalledServer) -> None:
    """A source is read while the hub already serves."""
    give_up = time.monotonic() + _READY_S
    while driven_here(side.port, request(side), 1, 0.0)["failed"]:
        if time.monotonic() > give_up:
            raise SystemExit(f"{name} does not answer a call of {side.tool} as it should")
        time.sleep(0.2)


@contextmanager
def hub(tool: str, args: dict[str, Any], upstream: int = 0) -> Iterator[CalledServer]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        if upstream:
            Path(folder, "sources.yaml").write_text(f'sources: {{web: {{url: "http://127.0.0.1:{upstream}/mcp"}}}}\n')
        port = free_port()
        environment = {
            "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0",
            "TOOLHUB_SERVER_MCP_LISTEN": f"127.0.0.1:{port}",
            "TOOLHUB_TRACING_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
            "TOOLHUB_TRACING_SAMPLE_RATIO": "0",
        }
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        with running("toolhub_service", *words, environment=environment) as process:
            yield CalledServer(process, port, tool, args)


@contextmanager
def through_hub() -> Iterator[CalledServer]:
    with running("tests.bench.mcp_echo") as upstream, hub("web__echo", {"text": "x"}, upstream.port) as side:
        yield side


@contextmanager
def fastmcp() -> Iterator[CalledServer]:
    with running("tests.bench.fastmcp_server", python=str(PEERS)) as process:
        yield CalledServer(process, process.port, "now", {"timezone": "Europe/Berlin"})


@contextmanager
def through_fastmcp() -> Iterator[CalledServer]:
    with running("tests.bench.mcp_echo") as upstream:
        url = f"http://127.0.0.1:{upstream.port}/mcp"
        with running("tests.bench.fastmcp_server", url, python=str(PEERS)) as process:
            yield CalledServer(process, process.port, "echo", {"text": "x"})


HUB, FASTMCP = "hub, governed", "FastMCP, bare"
HUB_HOP, FASTMCP_HOP = "hub, tool of an MCP server", "FastMCP's proxy"
PAIRS: dict[str, Callable[[], Any]] = {
    HUB: lambda: hub("core__util_time_now", {"timezone": "Europe/Berlin"}),
    FASTMCP: fastmcp,
    HUB_HOP: through_hub,
    FASTMCP_HOP: through_fastmcp,
}


def _can_run(name: str) -> bool:
    return PEERS.exists() or not name.startswith("FastMCP")


def as_table(found: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("side, connections", "calls/s", "CPU ms a call", "p50 ms", "p99 ms")]
    for name, rounds in found["sides"].items():
        per_s, cpu, p50, p99 = (_median(rounds, key) for key in ("per_s", "cpu_ms", "p50_ms", "p99_ms"))
        rows.append((name, f"{per_s:.0f}", f"{cpu:.2f}", f"{p50:.2f}", f"{p99:.2f}"))
    every = [each for rounds in found["sides"].values() for each in rounds]
    lines = [markdown(rows), ""]
    for ours, theirs in ((HUB, FASTMCP), (HUB_HOP, FASTMCP_HOP)):
        for connections in _CONNECTIONS:
            pair = [found["sides"].get(f"{name}, {connections}") for name in (ours, theirs)]
            if None not in pair:
                lines.append(f"{ours} / {theirs}, {connections}: {_ratios(*pair)}.")
    lines.append(f"Machine: {found['machine']}. Medians of {len(next(iter(found['sides'].values())))} rounds.")
    lines.append(f"Failed calls: {sum(each['failed'] for each in every)}.")
    lines.append(f"Stolen processor time at most {max(each['stolen'] for each in every):.0%}.")
    return "\n".join(lines)


def _median(rounds: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(each[key] for each in rounds))


def _ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Of the rounds that ran one after the other."""
    ratios = []
    for key, word in (("per_s", "calls/s"), ("cpu_ms", "CPU a call"), ("p99_ms", "p99")):
        each = sorted(one[key] / other[key] for one, other in zip(ours, theirs, strict=True))
        ratios.append(f"{word} {statistics.median(each):.2f} ({each[0]:.2f}–{each[-1]:.2f})")
    return ", ".join(ratios)


if __name__ == "__main__":
    main()
