"""What hostile callers and HTTP upstreams cost everybody else: stalls, p99, health and memory while one attacks.

    python -m tests.bench.hostile_callers [--rounds 3] [--seconds 3] [--only NAME …] [--write]

A hub of its own for each attack, with API keys. The principal `victim` calls a core tool, four at a time; `attacker`,
a process of its own, attacks at most ten times a second and serves the upstreams that misbehave. The hub's data segment
is limited to 512 MiB, half of what the Kubernetes manifest gives it: a hub that an attack ends shows 0 MB after it, and
its victim's calls as lost. `tests.bench.hostile` makes these attacks too.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, running
from tests.free_port import free_port
from toolhub.v1 import call_pb2, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.app.config_files.key_file import KeyFile

POLICY = """
extends: none
grants: [{{principals: [victim, attacker], capabilities: ["read:*", "write:fs", network]}}]
rules:
- id: nested-condition
  effect: DENY
  tools: [core/util.json.select]
  principals: [attacker]
  when: context.task_id == "condition" && args.json.exists(x, args.json.exists(y, x == y + 1000000))
egress: [{{hosts: ["127.0.0.1"], ports: [{port}], schemes: [http], cidrs: ["127.0.0.0/8"]}}]
"""
_DATA_LIMIT_BYTES = 512 * 2**20
_MESSAGE_BYTES = 4 * 2**20
_FILE_BYTES = 2**30
_AT_ONCE = 4
_PAUSE_S = 0.1
_SETTLE_S = 5.0
_CALL_S = 30.0
_REQUEST = "bench"
"""The request id of the attacker's calls: the folder with the large file hangs on it."""


@dataclass(frozen=True, slots=True)
class Attacker:
    """What an attack is made with."""

    port: int
    upstream: int
    key: str
    channel: grpc.aio.Channel

    async def invoke(self, tool: str, *, key: str | None = None, task: str = "", **args: Any) -> None:
        """One call, whose arguments are values, or as `raw` bytes of JSON. How it ends says nothing."""
        raw = args.pop("raw", None)
        intent = call_pb2.ToolIntent(tool=tool, args_json=raw or json.dumps(args).encode(), purpose="measure")
        await self.send(intent, key=key, task=task)

    async def send(
        self, intent: call_pb2.ToolIntent, *, key: str | None = None, task: str = "", channel: Any = None
    ) -> None:
        request = pb.InvokeRequest(intent=intent)
        request.context.request_id, request.context.task_id = _REQUEST, task
        stub: Any = tool_service_pb2_grpc.ToolServiceStub(channel or self.channel)
        with suppress(grpc.aio.AioRpcError):
            await stub.Invoke(request, metadata=(("x-api-key", self.key if key is None else key),), timeout=10)


Attack = Callable[[Attacker], Awaitable[None]]


async def nested_arrays(by: Attacker) -> None:
    await by.invoke("core/util.json.select", raw=_json_argument(b"[" + b"[" * 50 + b"]" * 50 + b"]", 40_000))


async def open_brackets(by: Attacker) -> None:
    await by.invoke("core/util.json.select", raw=b'{"path":"@","json":' + b"[" * (_MESSAGE_BYTES - 100))


async def small_values(by: Attacker) -> None:
    await by.invoke("core/util.json.select", raw=_json_argument(b"0", _MESSAGE_BYTES // 2 - 100))


async def wide_object(by: Attacker) -> None:
    body = b",".join(b'"k%d":0' % number for number in range(350_000))
    await by.invoke("core/util.json.select", raw=b'{"path":"@","json":{' + body + b"}}")


async def wide_struct(by: Attacker) -> None:
    intent = call_pb2.ToolIntent(tool="core/util.json.select", purpose="measure")
    intent.args_struct.update({"path": "@", "json": {f"k{number}": 0 for number in range(190_000)}})
    await by.send(intent)


async def nested_condition(by: Attacker) -> None:
    await by.invoke("core/util.json.select", task="condition", path="@", json=list(range(20_000)))


async def hash_of_a_large_file(by: Attacker) -> None:
    await by.invoke("core/fs.sha256", path="large.bin")


async def without_a_key(by: Attacker) -> None:
    await _flood(by, calls=200, connections=10, key="")


async def large_calls(by: Attacker) -> None:
    await _flood(by, calls=64, connections=8, key=by.key)


async def _flood(by: Attacker, calls: int, connections: int, key: str) -> None:
    body = b'{"text":"' + b"x" * (_MESSAGE_BYTES - 100) + b'"}'
    intent = call_pb2.ToolIntent(tool="core/util.hash.sha256Text", args_json=body, purpose="measure")
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{by.port}", options=options) for _ in range(connections)]
    try:
        await asyncio.gather(*(by.send(intent, key=key, channel=channels[each % connections]) for each in range(calls)))
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def idle_connections(by: Attacker) -> None:
    opened = await asyncio.gather(
        *(asyncio.open_connection("127.0.0.1", by.port) for _ in range(1_000)), return_exceptions=True
    )
    await asyncio.sleep(1)
    for connection in opened:
        if not isinstance(connection, BaseException):
            connection[1].close()


def upstream(path: str, tool: str) -> Attack:
    async def attack(by: Attacker) -> None:
        await by.invoke(tool, url=f"http://127.0.0.1:{by.upstream}/{path}")

    return attack


ATTACKS: dict[str, Attack] = {
    "200 calls of 4 MiB without a key": without_a_key,
    "64 calls of 4 MiB at once": large_calls,
    "1,000 connections without a word": idle_connections,
    "40,000 arrays nested 50 deep": nested_arrays,
    "4 MiB of opening brackets": open_brackets,
    "2,000,000 small values": small_values,
    "an object of 350,000 keys": wide_object,
    "a Struct of 190,000 fields": wide_struct,
    "a nested condition over 20,000 elements": nested_condition,
    "the hash of a file of 1 GiB": hash_of_a_large_file,
    "an upstream's body in chunks of a byte": upstream("drip", "core/http.fetchText"),
    "an upstream's deep JSON": upstream("deep", "core/http.fetchJson"),
    "an upstream's wide JSON": upstream("wide", "core/http.fetchJson"),
    "an upstream's 4 MB of words": upstream("words", "core/http.fetchText"),
}
_BODIES: dict[str, Callable[[], bytes]] = {
    "deep": lambda: b"[" + b",".join([b"[" * 50 + b"]" * 50] * 40_000) + b"]",
    "wide": lambda: b"{" + b",".join(b'"k%d":0' % number for number in range(350_000)) + b"}",
    "words": lambda: b"password is a word, and so is token " * 110_000,
}


def _json_argument(element: bytes, count: int) -> bytes:
    return b'{"path":"length(@)","json":[' + b",".join([element] * count) + b"]}"


async def serve_upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request a connection."""
    with suppress(OSError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode().strip("/")
        start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        if path == "drip":
            writer.write(start + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1_000_000 + b"0\r\n\r\n")
        else:
            body = _BODIES[path]()
            writer.write(start + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
    writer.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(ATTACKS), help="these attacks alone")
    parser.add_argument("--attack", nargs=4, metavar=("PORT", "UPSTREAM", "KEY", "NAME"), help="attack until killed")
    options = parser.parse_args()
    if options.attack:
        port, upstream_port, key, name = options.attack
        asyncio.run(attack(int(port), int(upstream_port), key, ATTACKS[name]))
    else:
        run(options.only, options.rounds, options.seconds, write=options.write)


def run(attacks: list[str], rounds: int, seconds: float, *, write: bool) -> None:
    """Measure, print and keep the figures of these attacks."""
    found = asyncio.run(measure(attacks, rounds, seconds))
    publish("hostile_callers", found, as_table(found), write=write)


async def attack(port: int, upstream_port: int, key: str, turn: Attack) -> None:
    """Attack until killed; says `again` for each turn that has ended."""
    server = await asyncio.start_server(serve_upstream, "127.0.0.1", upstream_port)
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        by = Attacker(port, upstream_port, key, channel)
        print("ready", flush=True)
        while True:
            await turn(by)
            print("again", flush=True)
            await asyncio.sleep(_PAUSE_S)


async def measure(attacks: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in attacks}
    for _ in range(rounds):
        for name, results in measured.items():
            with hub() as (server, upstream_port, victim, attacker):
                address = f"127.0.0.1:{server.port}"
                async with grpc.aio.insecure_channel(address) as calls, grpc.aio.insecure_channel(address) as probes:
                    await others(calls, victim, seconds)
                    quiet = await others(calls, victim, seconds)
                    before = server.resident_mb()
                    async with attacking(server.port, upstream_port, attacker, name) as process:
                        loud, seen = await asyncio.gather(
                            others(calls, victim, seconds), watch(server, probes, seconds)
                        )
                    made = (await process.communicate())[0].count(b"again")
                    await asyncio.sleep(_SETTLE_S)
                    results.append(
                        {
                            "attacks": made,
                            "quiet_p99_ms": quiet[0],
                            "attack_p99_ms": loud[0],
                            "attack_max_ms": loud[1],
                            "lost": loud[2] + seen.lost,
                            "health_max_ms": seen.health_max_ms,
                            "resident_mb_before": before,
                            "resident_mb_peak": seen.peak_mb,
                            "resident_mb_after": server.resident_mb(),
                        }
                    )
                    print(name, {key: round(value, 1) for key, value in results[-1].items()}, file=sys.stderr)
    return {"machine": machine(), "attacks": measured}


@contextmanager
def hub() -> Iterator[tuple[Process, int, str, str]]:
    """And the upstream's port, the victim's key and the attacker's."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        Path(folder, "policy.yaml").write_text(POLICY.format(port=port))
        keys = KeyFile(Path(folder, "api-keys.yaml"))
        victim, attacker = keys.create("victim"), keys.create("attacker")
        large = Path(folder, "workspaces", "attacker", _REQUEST, "large.bin")
        large.parent.mkdir(parents=True, mode=0o700)
        with large.open("wb") as file:
            os.truncate(file.fileno(), _FILE_BYTES)  # sparse: takes no disk, and is read like any other
        quiet = {"TOOLHUB_METRICS_LISTEN": "", "TOOLHUB_AUTH_MODES": "api-key"}
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        with running("toolhub_service", *words, environment=quiet) as process:
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (_DATA_LIMIT_BYTES, _DATA_LIMIT_BYTES))
            yield process, port, victim, attacker


async def others(channel: grpc.aio.Channel, key: str, seconds: float) -> tuple[float, float, int]:
    """p99 and longest in milliseconds of the victim's calls, and how many of them failed."""
    stub: Any = tool_service_pb2_grpc.ToolServiceStub(channel)
    request = pb.InvokeRequest(intent=call_pb2.ToolIntent(tool="core/util.time.now", args_json=b"{}"))
    taken: list[float] = []
    lost = 0
    ends = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal lost
        while (began := time.perf_counter()) < ends:
            try:
                answer = await stub.Invoke(request, metadata=(("x-api-key", key),), timeout=_CALL_S)
                lost += not answer.result.ok
            except grpc.aio.AioRpcError:
                lost += 1
                await asyncio.sleep(_PAUSE_S)
            taken.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(caller() for _ in range(_AT_ONCE)))
    taken.sort()
    return at_share(taken, 0.99), taken[-1], lost


@dataclass(slots=True)
class AttackEffect:
    health_max_ms: float = 0.0
    peak_mb: float = 0.0
    lost: int = 0
    """Health checks that failed."""


async def watch(server: Process, channel: grpc.aio.Channel, seconds: float) -> AttackEffect:
    """Ask health twenty times a second, over a connection of its own, and look at the hub's memory."""
    stub, seen, ends = health_pb2_grpc.HealthStub(channel), AttackEffect(), time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=_CALL_S)
        except grpc.aio.AioRpcError:
            seen.lost += 1
        seen.health_max_ms = max(seen.health_max_ms, (time.perf_counter() - began) * 1e3)
        seen.peak_mb = max(seen.peak_mb, server.resident_mb())
        await asyncio.sleep(0.05)
    return seen


@asynccontextmanager
async def attacking(port: int, upstream_port: int, key: str, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """From its readiness on."""
    words = (str(port), str(upstream_port), key, name)
    command = (sys.executable, "-m", "tests.bench.hostile_callers", "--attack", *words)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise SystemExit(f"the attack `{name}` could not be made")
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


def as_table(found: dict[str, Any], *, counts_turns: bool = True) -> str:
    times = ("times",) if counts_turns else ()
    head = (
        "the attacker sends",
        *times,
        "p99 ms quiet",
        "during",
        "ratio",
        "longest ms",
        "health ms",
        "lost",
        "MB",
        "most",
        "after",
    )
    rows: list[tuple[str, ...]] = [head]
    for name, rounds in found["attacks"].items():
        of = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        worst = {key: max(each[key] for each in rounds) for key in rounds[0]}
        rows.append(
            (
                name,
                *((f"{of['attacks']:.0f}",) if counts_turns else ()),
                f"{of['quiet_p99_ms']:.1f}",
                f"{of['attack_p99_ms']:.1f}",
                f"{of['attack_p99_ms'] / of['quiet_p99_ms']:.1f}",
                f"{worst['attack_max_ms']:.0f}",
                f"{worst['health_max_ms']:.0f}",
                f"{worst['lost']:.0f}",
                f"{of['resident_mb_before']:.0f}",
                f"{worst['resident_mb_peak']:.0f}",
                f"{worst['resident_mb_after']:.0f}",
            )
        )
    return f"{markdown(rows)}\n\nMachine: {found['machine']}."


if __name__ == "__main__":
    main()
