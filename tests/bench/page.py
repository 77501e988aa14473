"""Where figures go: a JSON file each in results/, and a table between two markers of docs/performance.md."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
_RESULTS = Path(__file__).parent / "results"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every bench takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    return parser


def publish(name: str, found: dict[str, Any], table: str, *, write: bool) -> None:
    """Keep the figures, print the table and, with `write`, put it between `<!-- name: begin -->` and `end`."""
    _RESULTS.mkdir(exist_ok=True)
    (_RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    print(table)
    if write:
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = PAGE.read_text().split(begin)
        PAGE.write_text(f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}")


def markdown(rows: Iterable[tuple[str, ...]]) -> str:
    """A table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines)


def machine() -> str:
    return f"{platform.machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}"


def at_share(ordered: list[float], share: float) -> float:
    """The value that `share` of the values, sorted, do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
