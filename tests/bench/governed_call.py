"""What governance costs: the hub against a bare echo, in turn, in one run; ratios with their spread.

    python -m tests.bench.governed_call [--rounds 3] [--seconds 8] [--write]

Writes tests/bench/results/governed_call.json and, with --write, the table in docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc

from tests.bench.load import ARGS, CONCURRENCY, Round, drive
from tests.bench.processes import Process, running
from toolhub.v1 import call_pb2, step_pb2, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb

RESULTS = Path(__file__).parent / "results" / "governed_call.json"
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- governed_call: begin -->", "<!-- governed_call: end -->"
_SAMPLED_CALLS = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    found = measure(options.rounds, options.seconds)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    table = as_table(found)
    print(table)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}")


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Both servers up, warmed, then driven in turn."""
    with (
        tempfile.TemporaryDirectory() as data_dir,
        running("tests.bench.echo_server") as echo,
        running("toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir) as hub,
    ):
        started = {"start_s": round(hub.start_s, 3), "resident_mb": round(hub.resident_mb(), 1)}
        check_answers(hub)
        for side in (echo, hub):
            drive(side, min(2.0, seconds))
        pairs = [(drive(echo, seconds), drive(hub, seconds)) for _ in range(rounds)]
        return {
            "machine": f"{platform.machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}",
            "hub": started | {"resident_after_mb": round(hub.resident_mb(), 1)},
            "rounds": [{"echo": asdict(one), "hub": asdict(other)} for one, other in pairs],
            "ratios": {
                name: spread([other / one for one, other in values]) for name, values in _figures(pairs).items()
            },
            "chain_cpu_us": spread([other.cpu_us_per_call - one.cpu_us_per_call for one, other in pairs]),
            "step_us": step_medians(hub),
            "workers": measure_workers(rounds, seconds, hub),
        }


def measure_workers(rounds: int, seconds: float, hub: Process) -> dict[str, Any]:
    """Two workers on one port in turn with the hub of one, over connections enough to be spread by chance."""
    with (
        tempfile.TemporaryDirectory() as data_dir,
        running(
            *("toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir, "--workers", "2"),
            environment={"TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"},  # the other hub has the default port
        ) as two,
    ):
        drive(two, min(2.0, seconds), CONCURRENCY)
        pairs, shares = [], []
        for _ in range(rounds):
            one, before_s = drive(hub, seconds, CONCURRENCY), two.workers_cpu_s()
            pairs.append((one, drive(two, seconds, CONCURRENCY)))
            spent_s = [spent - before_s[pid] for pid, spent in two.workers_cpu_s().items()]
            shares.append(max(spent_s) / sum(spent_s))
        return {name: spread([other / one for one, other in values]) for name, values in _figures(pairs).items()} | {
            "processor time of the busier worker": spread(shares)
        }


def check_answers(hub: Process) -> None:
    """The load generator only counts statuses: look at one answer."""
    with grpc.insecure_channel(f"127.0.0.1:{hub.port}") as channel:
        answer = tool_service_pb2_grpc.ToolServiceStub(channel).Invoke(_request()).result
    if not answer.ok or b"epochMs" not in answer.result_json or len(answer.durations) < 8:
        raise SystemExit(f"the hub does not answer as it should: {answer}")


def step_medians(hub: Process) -> dict[str, float]:
    """Median microseconds of each step over calls made one after the other."""
    seen: dict[str, list[int]] = {}
    with grpc.insecure_channel(f"127.0.0.1:{hub.port}") as channel:
        stub = tool_service_pb2_grpc.ToolServiceStub(channel)
        for _ in range(_SAMPLED_CALLS):
            for step in stub.Invoke(_request()).result.durations:
                seen.setdefault(step_pb2.StepName.Name(step.step), []).append(step.duration_us)
    return {name.removeprefix("STEP_NAME_").lower(): statistics.median(values) for name, values in seen.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": round(min(values), 3), "median": round(statistics.median(values), 3), "max": round(max(values), 3)}


def as_table(found: dict[str, Any]) -> str:
    """Markdown: a line a figure."""
    rows: list[tuple[str, ...]] = [("hub / echo", "min", "median", "max")]
    for name, values in found["ratios"].items():
        rows.append((name, *(f"{values[key]:.2f}" for key in ("min", "median", "max"))))
    chain = found["chain_cpu_us"]
    rows.append(("server CPU of the chain, µs a call", *(f"{chain[key]:.0f}" for key in ("min", "median", "max"))))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * 4)
    steps = ", ".join(f"{name} {value:.0f}" for name, value in found["step_us"].items())
    echo = [Round(**pair["echo"]) for pair in found["rounds"]]
    hub = [Round(**pair["hub"]) for pair in found["rounds"]]
    return "\n".join(
        [
            *lines,
            "",
            *("| two workers / one | min | median | max |", "|---|---|---|---|"),
            *(
                f"| {name} | " + " | ".join(f"{values[key]:.2f}" for key in ("min", "median", "max")) + " |"
                for name, values in found["workers"].items()
            ),
            "",
            f"Machine: {found['machine']}. Echo {_range(echo)}; hub {_range(hub)}.",
            f"Steps, median µs: {steps}.",
            f"Start to SERVING {found['hub']['start_s']} s.",
            f"Resident {found['hub']['resident_mb']} MB at start, {found['hub']['resident_after_mb']} MB after load.",
            f"Failed calls: {sum(one.failed for one in hub)}.",
            f"Stolen processor time at most {max(one.stolen for one in [*echo, *hub]):.0%}.",
        ]
    )


def _range(rounds: Sequence[Round]) -> str:
    rates = [one.calls_per_s for one in rounds]
    cpu = statistics.median(one.cpu_us_per_call for one in rounds)
    return f"{min(rates):.0f}–{max(rates):.0f} calls/s, {cpu:.0f} µs CPU a call"


def _figures(pairs: Sequence[tuple[Round, Round]]) -> dict[str, list[tuple[float, float]]]:
    return {
        "throughput": [(one.calls_per_s, other.calls_per_s) for one, other in pairs],
        "p50": [(one.p50_ms, other.p50_ms) for one, other in pairs],
        "p99": [(one.p99_ms, other.p99_ms) for one, other in pairs],
        "server CPU a call": [(one.cpu_us_per_call, other.cpu_us_per_call) for one, other in pairs],
    }


def _request() -> pb.InvokeRequest:
    return pb.InvokeRequest(intent=call_pb2.ToolIntent(tool="core/util.time.now", args_json=ARGS))


if __name__ == "__main__":
    main()
