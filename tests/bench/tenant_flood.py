"""What a flood of one tenant costs another: one call at a time of tenant B, alone and beside 64 callers of tenant A.

    python -m tests.bench.tenant_flood [--rounds 5] [--seconds 4] [--only NAME …] [--write]

One hub with keys and tenants, both loads by ghz. B calls `core/util.time.now` at a steady pace; A floods with the same,
with a call that has an effect, and with more calls than its share of `server.max_in_flight`. Each round measures B
alone and beside each flood in turn, so that a busy machine slows all of them.
"""

from __future__ import annotations

import base64
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.load import PROTO_ROOT, ghz_path
from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.bench.processes import Process, machine_ticks, running, stolen_share
from toolhub_service.app.config_files.key_file import KeyFile

_POLICY: Final = """
extends: none
tenants:
  - {name: acme, principals: ["acme-*"]}
  - {name: globex, principals: ["globex-*"]}
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
"""
_CALLERS: Final = 64
_PACE_PER_S: Final = 50
_WARM_UP_S: Final = 2.0
_AROUND_S: Final = 1.0
"""For which A floods before B begins, and after it has ended."""
_NOW: Final = ("core/util.time.now", {"timezone": "Europe/Berlin"})
_WRITE: Final = ("core/fs.writeText", {"path": "a.txt", "text": "x", "overwrite": True})


@dataclass(frozen=True, slots=True)
class Flood:
    tool: tuple[str, dict[str, Any]] = _NOW
    max_in_flight: int = 1_000
    """Of the hub: A gets half."""


FLOODS: Final = {
    "reads": Flood(),
    "writes": Flood(_WRITE),
    "calls beyond its share": Flood(max_in_flight=16),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[*FLOODS], help="these floods alone")
    options = parser.parse_args()
    found = {"machine": machine(), "floods": {name: measure(FLOODS[name], options) for name in options.only}}
    publish("tenant_flood", found, as_table(found), write=options.write)


def measure(flood: Flood, options: Any) -> list[dict[str, float]]:
    """B alone and beside the flood, in turn, at one hub."""
    with hub(flood.max_in_flight) as (process, keys):
        quiet(process, keys, _WARM_UP_S)
        beside(process, keys, flood, _WARM_UP_S)
        rounds = []
        for _ in range(options.rounds):
            ticks = machine_ticks()
            alone = quiet(process, keys, options.seconds)
            found = beside(process, keys, flood, options.seconds)
            found |= {f"alone_{name}": value for name, value in alone.items()}
            rounds.append(found | {"stolen": stolen_share(ticks, machine_ticks())})
        return rounds


@contextmanager
def hub(max_in_flight: int) -> Iterator[tuple[Process, dict[str, str]]]:
    """And a key for a principal of each tenant."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(_POLICY)
        path = Path(folder, "keys.yaml")
        file = KeyFile(path)
        keys = {name: file.create(f"{name}-bot") for name in ("acme", "globex")}
        chosen = {
            "TOOLHUB_METRICS_LISTEN": "",
            "TOOLHUB_SERVER_MAX_IN_FLIGHT": str(max_in_flight),
            "TOOLHUB_AUTH_API_KEYS_FILE": str(path),
        }
        words = ("serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        with running("toolhub_service", *words, environment=chosen) as process:
            yield process, keys


def quiet(process: Process, keys: dict[str, str], seconds: float) -> dict[str, float]:
    with ghz(process.port, keys["globex"], _NOW, seconds, "--concurrency", "1", "--rps", str(_PACE_PER_S)) as load:
        return latencies(load)


def beside(process: Process, keys: dict[str, str], flood: Flood, seconds: float) -> dict[str, float]:
    many = ("--concurrency", str(_CALLERS), "--connections", "4")
    with ghz(process.port, keys["acme"], flood.tool, seconds + 2 * _AROUND_S, *many) as load:
        time.sleep(_AROUND_S)
        found = quiet(process, keys, seconds)
        told = json.loads(load.communicate()[0])
    refused = told["statusCodeDistribution"].get("ResourceExhausted", 0)
    return found | {"flood_per_s": told["rps"], "refused": refused / told["count"]}


@contextmanager
def ghz(
    port: int, key: str, tool: tuple[str, dict[str, Any]], seconds: float, *options: str
) -> Iterator[subprocess.Popen[str]]:
    args = base64.b64encode(json.dumps(tool[1]).encode()).decode()
    command = [
        *(ghz_path(), "--insecure", "--format", "json", "--call", "toolhub.v1.ToolService/Invoke"),
        *("--import-paths", str(PROTO_ROOT), "--proto", str(PROTO_ROOT / "toolhub/v1/tool_service.proto")),
        *("--data", json.dumps({"intent": {"tool": tool[0], "args_json": args}})),
        *("--metadata", json.dumps({"authorization": f"Bearer {key}"})),
        *("--duration", f"{seconds}s", "--duration-stop", "wait", *options, f"127.0.0.1:{port}"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        yield child


def latencies(load: subprocess.Popen[str]) -> dict[str, float]:
    """p50 and p99 in milliseconds of B's calls. Raises SystemExit where one of them failed."""
    calls = json.loads(load.communicate()[0])["details"] or []
    if not calls:
        raise SystemExit("no call of the other tenant was made: give it more --seconds")
    failed = [call for call in calls if call["status"] != "OK"]
    if failed:
        raise SystemExit(f"{len(failed)} calls of the other tenant failed: {failed[0]}")
    taken = sorted(call["latency"] / 1e6 for call in calls)
    return {"p50_ms": at_share(taken, 0.5), "p99_ms": at_share(taken, 0.99)}


def as_table(found: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("A floods with", "calls/s", "refused", "B's p50 ms, alone", "beside", "B's p99 ms, alone", "beside")
    ]
    rows[0] += ("ratio of p50, min and median", "ratio of p99, min and median")
    for name, rounds in found["floods"].items():
        figures = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        row = [name, f"{figures['flood_per_s']:.0f}", f"{figures['refused']:.0%}"]
        row += [f"{figures[key]:.1f}" for key in ("alone_p50_ms", "p50_ms", "alone_p99_ms", "p99_ms")]
        for key in ("p50_ms", "p99_ms"):
            ratios = [each[key] / each[f"alone_{key}"] for each in rounds]
            row.append(f"{min(ratios):.1f}, {statistics.median(ratios):.1f}")
        rows.append(tuple(row))
    stolen = max(each["stolen"] for rounds in found["floods"].values() for each in rounds)
    return f"{markdown(rows)}\n\nMachine: {found['machine']}. Stolen processor time at most {stolen:.0%}."


if __name__ == "__main__":
    main()
