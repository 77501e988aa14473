"""One load generator for both sides, not bound by Python: ghz (https://ghz.sh)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import Process, machine_ticks, stolen_share

PROTO_ROOT = Path(__file__).parents[2] / "proto"
ARGS = b'{"timezone":"Europe/Berlin"}'
CONCURRENCY = 16
CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Round:
    """What one side did in one round."""

    calls: int
    failed: int
    calls_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_call: float
    stolen: float
    """Share of processor time taken by the host's other guests; above 0.10 the round is not worth much."""


def ghz_path() -> str:
    """The generator. Raises SystemExit with advice when it is missing."""
    beside = Path(sys.executable).parent / "ghz"
    found = str(beside) if beside.is_file() else shutil.which("ghz")
    if found is None:
        raise SystemExit("ghz is missing: `make bench` builds it when Go can be had")
    return found


def drive(process: Process, duration_s: float, connections: int = CONNECTIONS) -> Round:
    """Load `core/util.time.now` for a while; every answer's status is counted by ghz."""
    command = [
        *(ghz_path(), "--insecure", "--format", "json", "--call", "toolhub.v1.ToolService/Invoke"),
        *("--import-paths", str(PROTO_ROOT), "--proto", str(PROTO_ROOT / "toolhub/v1/tool_service.proto")),
        *("--concurrency", str(CONCURRENCY), "--connections", str(connections), "--duration", f"{duration_s}s"),
        *("--duration-stop", "wait", "--data", _request_json(), f"127.0.0.1:{process.port}"),
    ]
    ticks, cpu_s = machine_ticks(), process.cpu_s()
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    cpu_s = process.cpu_s() - cpu_s
    codes = report["statusCodeDistribution"]
    percentiles = {entry["percentage"]: entry["latency"] / 1e6 for entry in report["latencyDistribution"]}
    return Round(
        calls=report["count"],
        failed=report["count"] - codes.get("OK", 0),
        calls_per_s=report["rps"],
        p50_ms=percentiles[50],
        p99_ms=percentiles[99],
        cpu_us_per_call=cpu_s * 1e6 / report["count"],
        stolen=stolen_share(ticks, machine_ticks()),
    )


def _request_json() -> str:
    args = base64.b64encode(ARGS).decode()
    return json.dumps({"intent": {"tool": "core/util.time.now", "args_json": args}})
