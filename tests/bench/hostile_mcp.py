"""What hostile MCP clients cost everybody else: p99 of other calls beside quiet moments, new connections, what is left.
Hostile MCP servers follow, one row for each shape and road (`tests.bench.hostile_floods`).

    make bench BENCHES=hostile_mcp
    python -m tests.bench.hostile_mcp [--rounds 10] [--seconds 3] [--streams 100000] [--only NAME …] [--write]

One hub with API keys. `victim` calls a core tool on four connections that are kept, and on a new one ten times a
second; `attacker`, a process of its own, makes one attack of `tests/security/mcp_attackers.py`, at most ten turns a
second. At the end streams for changes are asked for until so many have been. Descriptors must be as many after the last
round as after the second; the bench fails otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.bench import hostile_floods
from tests.bench.http_load import is_result
from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from tests.free_port import free_port
from tests.security.mcp_attackers import ATTACKS, call, connected
from toolhub_service.app.config_files.key_file import KeyFile

POLICY = """
extends: none
grants: [{principals: [victim, attacker], capabilities: ["read:*"]}]
roles: [{principals: [victim, attacker], roles: [agent]}]
"""
_STREAMS = "streams for changes"
_AT_ONCE = 4
_COUNT = 50
_PAUSE_S = 0.1
_SETTLE_S = 2.0
_WARM = 2


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--streams", type=int, default=0, help="ask for so many at the end")
    every = [*ATTACKS, *hostile_floods.FLOODS]
    parser.add_argument("--only", nargs="+", metavar="NAME", default=every, help="these attacks alone")
    parser.add_argument("--attack", nargs=3, metavar=("PORT", "KEY", "NAME"), help="make one attack until killed")
    options = parser.parse_args()
    if options.attack:
        port, key, name = options.attack
        asyncio.run(attack(int(port), key, name))
        return
    if floods := [name for name in options.only if name in hostile_floods.FLOODS]:
        hostile_floods.run(floods, options.rounds, options.seconds, write=options.write)
    clients = [name for name in options.only if name not in hostile_floods.FLOODS]
    if not clients:
        return
    found = asyncio.run(measure(clients, options.rounds, options.seconds, options.streams))
    publish("hostile_mcp", found, as_table(found), write=options.write)
    held = [each["descriptors"] for each in found["left"]]
    if len(held) > _WARM and held[-1] > held[_WARM - 1]:
        raise SystemExit(f"descriptors are left behind, by round: {held}")


async def attack(port: int, key: str, name: str) -> None:
    while True:
        await ATTACKS[name](port, key, _COUNT)
        print("again", flush=True)
        await asyncio.sleep(_PAUSE_S)


async def measure(attacks: list[str], rounds: int, seconds: float, streams: int) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in attacks}
    left = []
    with hub() as (process, port, victim, attacker):
        await others(port, victim, seconds)
        for _ in range(rounds):
            for name, results in measured.items():
                results.append(await beside(process, port, victim, attacker, name, seconds))
            await asyncio.sleep(_SETTLE_S)
            left.append({"descriptors": float(descriptors(process)), "resident_mb": process.resident_mb()})
        if streams:
            results = measured[f"{streams:,} {_STREAMS}"] = []
            results.append(await beside(process, port, victim, attacker, _STREAMS, seconds, streams // _COUNT))
    return {"machine": machine(), "attacks": measured, "left": left}


async def beside(
    process: Process, port: int, victim: str, attacker: str, name: str, seconds: float, turns: int = 1
) -> dict[str, float]:
    """The victim's figures before an attack and during it, for `seconds` and so many turns of the attack."""
    ticks = machine_ticks()
    quiet, _ = await others(port, victim, seconds)
    taken: list[float] = []
    lost, peak_mb = 0, 0.0
    async with attacking(port, attacker, name) as made:
        while True:
            each, refused = await others(port, victim, seconds)
            taken, lost, peak_mb = [*taken, *each], lost + refused, max(peak_mb, process.resident_mb())
            if made() >= turns:
                break
    return {
        "turns": made(),
        "quiet_p99_ms": at_share(sorted(quiet), 0.99),
        "attack_p99_ms": at_share(sorted(taken), 0.99),
        "attack_max_ms": max(taken),
        "lost": lost,
        "resident_mb": peak_mb,
        "stolen": stolen_share(ticks, machine_ticks()),
    }


async def others(port: int, key: str, seconds: float) -> tuple[list[float], int]:
    """Milliseconds of the victim's calls on kept connections, and how many of those on new ones were not answered."""
    asked, ends = call(key, "core__util_time_now", {}), time.perf_counter() + seconds
    taken: list[float] = []
    lost = 0

    async def kept() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < ends:
            writer.write(asked)
            if not is_result(await _answer(reader)):
                raise SystemExit("a call failed beside an attack")
            taken.append((time.perf_counter() - began) * 1e3)
        writer.close()

    async def new() -> None:
        nonlocal lost
        while time.perf_counter() < ends:
            try:
                async with connected(port) as (reader, writer):
                    writer.write(asked)
                    lost += not is_result(await _answer(reader))
            except (OSError, asyncio.IncompleteReadError):
                lost += 1
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(new(), *(kept() for _ in range(_AT_ONCE)))
    return taken, lost


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(int(length.partition(b":")[2]))


@asynccontextmanager
async def attacking(port: int, key: str, name: str) -> AsyncIterator[Any]:
    """From its first turn on. Gives what counts its turns."""
    command = (sys.executable, "-m", "tests.bench.hostile_mcp", "--attack", str(port), key, name)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise SystemExit(f"the attack `{name}` could not be made")
    turns = 1

    async def count(lines: asyncio.StreamReader) -> None:
        nonlocal turns
        while await lines.readline():
            turns += 1

    counting = asyncio.create_task(count(process.stdout))
    try:
        yield lambda: turns
    finally:
        if process.returncode is not None:
            raise SystemExit(f"the attack `{name}` has ended")
        process.kill()
        await process.wait()
        await counting


@contextmanager
def hub() -> Iterator[tuple[Process, int, str, str]]:
    """And its port for MCP, the victim's key and the attacker's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        port = free_port()
        environment = {
            "TOOLHUB_METRICS_LISTEN": "",
            "TOOLHUB_AUTH_MODES": json.dumps(["api-key"]),
            "TOOLHUB_SERVER_MCP_LISTEN": f"127.0.0.1:{port}",
        }
        keys = KeyFile(Path(folder, "api-keys.yaml"))
        victim, attacker = keys.create("victim"), keys.create("attacker")
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        with running("toolhub_service", *words, environment=environment) as process:
            yield process, port, victim, attacker


def descriptors(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))  # noqa: PTH208 - names alone: they vanish while one looks


def as_table(found: dict[str, Any]) -> str:
    head = ("hostile clients send", "turns of 50", "p99 ms quiet", "p99 ms during", "ratio", "new ones lost", "MB")
    rows: list[tuple[str, ...]] = [head]
    for name, rounds in found["attacks"].items():
        keys = ("turns", "quiet_p99_ms", "attack_p99_ms", "resident_mb")
        turns, quiet, loud, resident = (statistics.median(each[key] for each in rounds) for key in keys)
        lost = sum(each["lost"] for each in rounds)
        rows.append(
            (name, f"{turns:.0f}", f"{quiet:.1f}", f"{loud:.1f}", f"{loud / quiet:.1f}", f"{lost}", f"{resident:.0f}")
        )
    stolen = max(each["stolen"] for rounds in found["attacks"].values() for each in rounds)
    left = " → ".join(f"{each['descriptors']:.0f} and {each['resident_mb']:.0f} MB" for each in found["left"])
    return (
        f"{markdown(rows)}\n\nDescriptors and memory after each round: {left}.\n"
        f"Machine: {found['machine']}. Stolen processor time at most {stolen:.0%}."
    )


if __name__ == "__main__":
    main()
