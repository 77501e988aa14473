"""What strangers without a key cost everybody else, at each port: idle connections, smuggled requests, HTTP/2 floods.

    python -m tests.bench.hostile_ports [--rounds 3] [--seconds 3] [--only NAME …] [--write]

A hub of its own for each attack, with API keys and 512 MiB of data segment, as in `tests.bench.hostile_callers`, whose
victim calls a core tool over gRPC, and whose health is checked twenty times a second. The attacker has a process of its
own and four connections that send as fast as they are read, or as many idle ones a second as the row says. Attacks
`behind Envoy` go through the shipped deploy/envoy.yaml, and so do the victim's calls. `tests.bench.hostile` makes these
attacks too.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio

from tests.bench import hostile_callers
from tests.bench.hostile_callers import others, watch
from tests.bench.page import arguments, machine, publish
from tests.bench.processes import Process, running
from tests.e2e.envoy_proxy import envoy
from tests.free_port import free_port
from tests.security import http2_attackers as http2
from toolhub_service.app.config_files.key_file import KeyFile

POLICY = """
extends: none
grants: [{principals: [victim], capabilities: ["read:*"]}]
"""
_DATA_LIMIT_BYTES = 512 * 2**20
_SETTLE_S = 2.0
_IDLE_A_SECOND = 1_000
_KEPT = 3_000
_SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Ports(NamedTuple):
    grpc: int
    mcp: int
    metrics: int


Attack = Callable[[Ports], Awaitable[None]]


async def idle_connections(port: int, sent: bytes) -> None:
    """A thousand new ones a second, each with these bytes; the oldest are let go."""
    opened: list[asyncio.StreamWriter] = []
    while True:
        for _ in range(_IDLE_A_SECOND // 50):
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                opened.append(writer)
        for writer in opened[:-_KEPT]:
            writer.transport.abort()
        del opened[:-_KEPT]
        await asyncio.sleep(0.02)


async def requests_without_end(port: int, request: bytes, connections: int = 4) -> None:
    """The same bytes again and again; a connection that is closed is opened anew."""

    async def one() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                reading = asyncio.create_task(_thrown_away(reader))
                try:
                    while not reading.done():
                        writer.write(request * 16)
                        await writer.drain()
                finally:
                    reading.cancel()
                    writer.transport.abort()
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(connections)))


async def _thrown_away(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass


def _post(*fields: str) -> bytes:
    return "\r\n".join(["POST /mcp HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


_TWO_LENGTHS = _post("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + _SMUGGLED
_CHUNKS = _post("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 900 + b"0\r\n\r\n"

_OF_MCP: dict[str, Callable[[int], Awaitable[None]]] = {
    "idle connections": partial(idle_connections, sent=b""),
    "connections with a byte": partial(idle_connections, sent=b"P"),
    "requests without a key": partial(requests_without_end, request=_post("Content-Length: 2") + b"{}"),
    "two framings": partial(requests_without_end, request=_TWO_LENGTHS),
    "bare LF": partial(requests_without_end, request=_SMUGGLED.replace(b"\r\n", b"\n")),
    "HTTP/9.9": partial(requests_without_end, request=_SMUGGLED.replace(b"1.1", b"9.9")),
    "chunks of a byte": partial(requests_without_end, request=_CHUNKS),
}
_OF_GRPC = (
    "RPCs",
    "RPCs of no service",
    "health checks",
    "RPCs that are reset",
    "CONTINUATION frames",
    "heads that are too long",
    "pings",
    "settings",
)


def _at_mcp(attack: Callable[[int], Awaitable[None]]) -> Attack:
    return lambda ports: attack(ports.mcp)


def _at_grpc(name: str) -> Attack:
    return lambda ports: http2.flood_without_pause(ports.grpc, http2.FLOODS[name])


_BEHIND = ", behind Envoy"
ATTACKS: dict[str, Attack] = {
    **{f"MCP: {name}": _at_mcp(attack) for name, attack in _OF_MCP.items()},
    "metrics: idle connections": lambda ports: idle_connections(ports.metrics, b""),
    **{f"gRPC: {name}": _at_grpc(name) for name in _OF_GRPC},
    **{f"gRPC: {name}{_BEHIND}": _at_grpc(name) for name in _OF_GRPC},
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(ATTACKS), help="these attacks alone")
    parser.add_argument("--attack", nargs=4, metavar=("GRPC", "MCP", "METRICS", "NAME"), help="attack until killed")
    options = parser.parse_args()
    if options.attack:
        *ports, name = options.attack
        asyncio.run(attack(Ports(*map(int, ports)), name))
    else:
        run(options.only, options.rounds, options.seconds, write=options.write)


def run(attacks: list[str], rounds: int, seconds: float, *, write: bool) -> None:
    """Measure, print and keep the figures of these attacks."""
    found = asyncio.run(measure(attacks, rounds, seconds))
    publish("hostile_ports", found, hostile_callers.as_table(found, counts_turns=False), write=write)


async def attack(ports: Ports, name: str) -> None:
    print("ready", flush=True)
    await ATTACKS[name](ports)


async def measure(attacks: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in attacks}
    for _ in range(rounds):
        for name, results in measured.items():
            results.append(await beside(name, seconds))
            print(name, {key: round(value, 1) for key, value in results[-1].items()}, file=sys.stderr)
    return {"machine": machine(), "attacks": measured}


async def beside(name: str, seconds: float) -> dict[str, float]:
    """The victim's figures before an attack and during it."""
    async with AsyncExitStack() as stack:
        server, ports, key, folder = stack.enter_context(hub())
        if name.endswith(_BEHIND):
            proxy = await stack.enter_async_context(
                envoy(folder, [f"127.0.0.1:{ports.grpc}"], mcp=[f"127.0.0.1:{ports.mcp}"])
            )
            ports = ports._replace(grpc=int(proxy.address.rpartition(":")[2]))
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (_DATA_LIMIT_BYTES, _DATA_LIMIT_BYTES))
        address = f"127.0.0.1:{ports.grpc}"
        own = [("grpc.use_local_subchannel_pool", 1)]
        calls = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=own))
        probes = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=own))
        await others(calls, key, seconds)
        quiet = await others(calls, key, seconds)
        before = server.resident_mb()
        async with attacking(ports, name):
            loud, seen = await asyncio.gather(others(calls, key, seconds), watch(server, probes, seconds))
        await asyncio.sleep(_SETTLE_S)
        return {
            "quiet_p99_ms": quiet[0],
            "attack_p99_ms": loud[0],
            "attack_max_ms": loud[1],
            "lost": loud[2] + seen.lost,
            "health_max_ms": seen.health_max_ms,
            "resident_mb_before": before,
            "resident_mb_peak": seen.peak_mb,
            "resident_mb_after": server.resident_mb(),
        }


@contextmanager
def hub() -> Iterator[tuple[Process, Ports, str, Path]]:
    """And its ports, the victim's key and a folder for what stands before it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(POLICY)
        key = KeyFile(folder / "api-keys.yaml").create("victim")
        mcp, metrics = free_port(), free_port()
        environment = {
            "TOOLHUB_AUTH_MODES": "api-key",
            "TOOLHUB_SERVER_MCP_LISTEN": f"127.0.0.1:{mcp}",
            "TOOLHUB_METRICS_LISTEN": f"127.0.0.1:{metrics}",
        }
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", name)
        with running("toolhub_service", *words, environment=environment) as process:
            yield process, Ports(process.port, mcp, metrics), key, folder


@asynccontextmanager
async def attacking(ports: Ports, name: str) -> AsyncIterator[None]:
    command = (sys.executable, "-m", "tests.bench.hostile_ports", "--attack", *map(str, ports), name)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise SystemExit(f"the attack `{name}` could not be made")
    try:
        yield
    finally:
        if process.returncode is not None:
            raise SystemExit(f"the attack `{name}` has ended")
        process.kill()
        await process.wait()


if __name__ == "__main__":
    main()
