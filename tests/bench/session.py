"""What sessions gain: the hub's InvokeSession against bare echoes, unary and of sessions, in turn, in one run.

    python -m tests.bench.session [--rounds 3] [--seconds 8] [--write]

The whole chain is on: audit log on disk, metrics, default policy. Writes tests/bench/results/session.json and, with
--write, the table in docs/performance.md.
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

from tests.bench.governed_call import PAGE, spread
from tests.bench.load import Round
from tests.bench.processes import Process, running
from tests.bench.session_client import UNARY, Load, built

RESULTS = Path(__file__).parent / "results" / "session.json"
BEGIN, END = "<!-- session: begin -->", "<!-- session: end -->"
BATCHES = (1, 16, 64, 256)


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
    """Both servers up, warmed, then driven in turn: unary, then each size of batch on both."""
    with (
        tempfile.TemporaryDirectory() as data_dir,
        running("tests.bench.echo_server") as echo,
        running("toolhub_service", "serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir) as hub,
        built() as load,
    ):
        for side, batch in ((echo, UNARY), (echo, BATCHES[-1]), (hub, UNARY), (hub, BATCHES[-1])):
            load.drive(side, batch, min(2.0, seconds))
        seen = [_round(load, echo, hub, seconds) for _ in range(rounds)]
        return {
            "machine": f"{platform.machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}",
            "others": round(load.others, 3),
            "resident_after_mb": round(hub.resident_mb(), 1),
            "rounds": [{name: asdict(one) for name, one in each.items()} for each in seen],
        }


def _round(load: Load, echo: Process, hub: Process, seconds: float) -> dict[str, Round]:
    seen = {"echo unary": load.drive(echo, UNARY, seconds), "hub unary": load.drive(hub, UNARY, seconds)}
    for batch in BATCHES:
        seen[f"echo {batch}"] = load.drive(echo, batch, seconds)
        seen[f"hub {batch}"] = load.drive(hub, batch, seconds)
    return seen


def as_table(found: dict[str, Any]) -> str:
    """Markdown: a line for unary calls and for each size of message."""
    rounds = [{name: Round(**one) for name, one in each.items()} for each in found["rounds"]]
    rows = [
        ("calls a message", "echo, calls/s", "echo, CPU", "hub, calls/s", "hub, CPU", "hub / unary echo", "p50", "p99")
    ]
    for name in ("unary", *map(str, BATCHES)):
        floor, hub = [each[f"echo {name}"] for each in rounds], [each[f"hub {name}"] for each in rounds]
        ratio = spread([each[f"hub {name}"].calls_per_s / each["echo unary"].calls_per_s for each in rounds])
        rows.append(
            (
                name,
                *(f"{_median(floor, 'calls_per_s'):,.0f}", f"{_median(floor, 'cpu_us_per_call'):.0f} µs"),
                *(f"{_median(hub, 'calls_per_s'):,.0f}", f"{_median(hub, 'cpu_us_per_call'):.0f} µs"),
                f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f})",
                *(f"{_median(hub, 'p50_ms'):.1f} ms", f"{_median(hub, 'p99_ms'):.1f} ms"),
            )
        )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    every = [one for each in rounds for one in each.values()]
    return "\n".join(
        [
            *lines,
            "",
            f"Machine: {found['machine']}. Medians of {len(rounds)} rounds; p50 and p99 are of a whole message.",
            f"Resident {found['resident_after_mb']} MB after load. Failed calls: {sum(one.failed for one in every)}.",
            f"Stolen processor time at most {max(one.stolen for one in every):.0%}.",
            f"Other work took up to {found['others']:.0%} of the machine's processors during a drive.",
        ]
    )


def _median(rounds: Sequence[Round], figure: str) -> float:
    return float(statistics.median(getattr(one, figure) for one in rounds))


if __name__ == "__main__":
    main()
