"""What a hostile MCP server costs everybody else: p99 of other calls while it attacks, beside quiet moments in between.
Hostile callers and HTTP upstreams follow (`tests.bench.hostile_callers`), and strangers (`tests.bench.hostile_ports`).

    python -m tests.bench.hostile [--rounds 3] [--seconds 3] [--only NAME …] [--write]

One hub, a healthy MCP server and a hostile one, each a process of its own, both by pipes. The other calls go to a core
tool and to the healthy server, four at a time. An attack is a call of the hostile server, or a reading of it after it
has become another, again and again, at most ten a second; it is made by a process of its own, so that what is measured
waits for the hub alone. What the server is stands in a file: after a list that cannot be read the hub calls none of its
tools, not even one that would make it good again. Each attack must get through, or the figure beside its name is that
of another.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from tests.bench import hostile_callers, hostile_ports
from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from tests.fakes.mcp_servers.hostile import stdio_command
from toolhub.v1 import call_pb2, registry_service_pb2, registry_service_pb2_grpc, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb

POLICY = """
grants: [{principals: [local], capabilities: ["*", "mcp:*"]}]
roles: [{principals: [local], roles: [agent, operator]}]
"""
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a result of 100 MB": ("huge_result", {}),
    "a result of 7 MB": ("huge_result", {"megabytes": 7}),
    "an error of 100 MB": ("huge_error", {}),
    "7 MB of empty lists": ("crowded_result", {"megabytes": 7}),
    "nesting without end": ("deep_result", {}),
    "progress without end": ("endless_progress", {}),
    "no answer": ("never", {}),
    "garbage": ("garbage", {"kind": "not-json"}),
    "20,000 lines on standard error": ("stderr_flood", {}),
}
LISTS = {
    "a changed definition": "changed",
    "a renamed tool": "renamed",
    "a shadowed core tool": "shadow",
    "a description of 10 MB": "huge-description",
    "exponential schemas": "exponential",
    "cyclic references": "cyclic",
    "ten schemas of 200 kB": "heavy-schemas leaves",
    "5,000 tools": "many",
    "1,000 notices of change a second": "storm",
}
_GOOD = "calls"
_AT_ONCE = 4
_PAUSE_S = 0.1
_ATTACK_S = 1.0
"""What a call of the hostile server is given."""
_READY_S = 30.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    every = [*CALLS, *LISTS, *hostile_callers.ATTACKS, *hostile_ports.ATTACKS]
    parser.add_argument("--only", nargs="+", metavar="NAME", default=every, help="these attacks alone")
    parser.add_argument("--attack", nargs=3, metavar=("PORT", "CONTROL", "NAME"), help="make one attack until killed")
    options = parser.parse_args()
    if options.attack:
        port, control, name = options.attack
        asyncio.run(attack(int(port), Path(control), name))
    else:
        if servers := [name for name in options.only if name in CALLS or name in LISTS]:
            found = asyncio.run(measure(servers, options.rounds, options.seconds))
            publish("hostile", found, as_table(found), write=options.write)
        if callers := [name for name in options.only if name in hostile_callers.ATTACKS]:
            hostile_callers.run(callers, options.rounds, options.seconds, write=options.write)
        if strangers := [name for name in options.only if name in hostile_ports.ATTACKS]:
            hostile_ports.run(strangers, options.rounds, options.seconds, write=options.write)


async def measure(attacks: Iterable[str], rounds: int, seconds: float) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in attacks}
    with hub() as (server, control):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub: Any = tool_service_pb2_grpc.ToolServiceStub(channel)
            for tool in ("good/echo", "bad/echo"):
                await until_it_answers(stub, tool)
            await others(stub, seconds)
            for _ in range(rounds):
                for name, results in measured.items():
                    ticks = machine_ticks()
                    quiet = await others(stub, seconds)
                    async with attacking(server.port, control, name) as process:
                        loud = await others(stub, seconds)
                    made = (await process.communicate())[0].count(b"again")
                    stolen = stolen_share(ticks, machine_ticks())
                    results.append(
                        {
                            "quiet_p99_ms": quiet[0],
                            "attack_p99_ms": loud[0],
                            "quiet_max_ms": quiet[1],
                            "attack_max_ms": loud[1],
                            "attacks": made,
                            "stolen": stolen,
                        }
                    )
    return {"machine": machine(), "attacks": measured}


@contextmanager
def hub() -> Iterator[tuple[Process, Path]]:
    """And the file that says what the hostile server is."""
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder, "words")
        send_command(control, _GOOD)
        command, *args = stdio_command(control=control)
        good = {"command": sys.executable, "args": ["-m", "tests.bench.mcp_echo", "--stdio"], "cwd": _root()}
        bad = {"command": command, "args": args}
        Path(folder, "policy.yaml").write_text(POLICY)
        Path(folder, "sources.yaml").write_text(json.dumps({"sources": {"good": good, "bad": bad}}))
        quiet = {"TOOLHUB_METRICS_LISTEN": "", "TOOLHUB_BUDGET_BREAKER_MIN_CALLS": "1000000"}
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        with running("toolhub_service", *words, environment=quiet) as process:
            yield process, control


def _root() -> str:
    return str(Path(__file__).parents[2])


async def others(stub: Any, seconds: float) -> tuple[float, float]:
    """p99 and longest in milliseconds of the calls that have nothing to do with the hostile server."""
    taken: list[float] = []
    ends = time.perf_counter() + seconds

    async def caller(tool: str, args: dict[str, Any]) -> None:
        while (began := time.perf_counter()) < ends:
            answer = await stub.Invoke(_request(tool, args, _READY_S))
            if not answer.result.ok:
                raise SystemExit(f"{tool} failed beside an attack: {answer.result.error.message}")
            taken.append((time.perf_counter() - began) * 1e3)

    calls: tuple[tuple[str, dict[str, Any]], ...] = (("core/util.time.now", {}), ("good/echo", {"text": "x"}))
    await asyncio.gather(*(caller(*calls[number % 2]) for number in range(_AT_ONCE)))
    taken.sort()
    return at_share(taken, 0.99), taken[-1]


@asynccontextmanager
async def attacking(port: int, control: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """From its first turn on; the server is good again when it ends. The process says `again` for each turn."""
    command = (sys.executable, "-m", "tests.bench.hostile", "--attack", str(port), str(control), name)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=_root())
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise SystemExit(f"the attack `{name}` could not be made")
    try:
        yield process
    finally:
        process.kill()
        await process.wait()
        send_command(control, _GOOD)


async def attack(port: int, control: Path, name: str) -> None:
    options = [("grpc.max_receive_message_length", 16 * 1024 * 1024)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub: Any = tool_service_pb2_grpc.ToolServiceStub(channel)
        registry: Any = registry_service_pb2_grpc.RegistryServiceStub(channel)
        await become(registry, control, _GOOD)
        await until_it_answers(stub, "bad/echo")
        while True:
            print("again", flush=True)
            if name in CALLS:
                tool, args = CALLS[name]
                await stub.Invoke(_request(f"bad/{tool}", args), timeout=_ATTACK_S * 10)
            else:
                await become(registry, control, f"{_GOOD} {LISTS[name]}")
                await become(registry, control, _GOOD)
            await asyncio.sleep(_PAUSE_S)


async def become(registry: Any, control: Path, words: str) -> None:
    """Have the hostile server say this, and the hub read it."""
    send_command(control, words)
    await registry.RefreshSources(registry_service_pb2.RefreshSourcesRequest(sources=["bad"]))


def send_command(control: Path, words: str) -> None:
    control.write_text(words)


async def until_it_answers(stub: Any, tool: str) -> None:
    give_up = time.monotonic() + _READY_S
    while not (answer := (await stub.Invoke(_request(tool, {"text": "x"}))).result).ok:
        if time.monotonic() > give_up:
            raise SystemExit(f"{tool} cannot be called: {answer.error.message}")
        await asyncio.sleep(0.2)


def _request(tool: str, args: dict[str, Any], within_s: float = _ATTACK_S) -> pb.InvokeRequest:
    request = pb.InvokeRequest(
        intent=call_pb2.ToolIntent(tool=tool, args_json=json.dumps(args).encode(), purpose="measure")
    )
    request.context.budget.timeout.FromMilliseconds(round(within_s * 1e3))
    return request


def as_table(found: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("the hostile server sends", "times", "p99 ms quiet", "p99 ms during", "ratio")]
    for name, rounds in found["attacks"].items():
        keys = ("attacks", "quiet_p99_ms", "attack_p99_ms")
        made, quiet, loud = (statistics.median(each[key] for each in rounds) for key in keys)
        rows.append((name, f"{made:.0f}", f"{quiet:.1f}", f"{loud:.1f}", f"{loud / quiet:.1f}"))
    stolen = max(each["stolen"] for rounds in found["attacks"].values() for each in rounds)
    return f"{markdown(rows)}\n\nMachine: {found['machine']}. Stolen processor time at most {stolen:.0%}."


if __name__ == "__main__":
    main()
