"""How well and how fast tools are found: recall and latency on public tool corpora, as a table.

    python -m tests.bench.search_quality [corpus ...]

R@k is the share of relevant tools among the first k hits; ms is the time of one query.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.corpora import FOLDER
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.search import ToolSearch

CORPORA = ("metatool", "bfcl", "sealtools_in", "toolalpaca", "restbench_tmdb")


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    relevant: frozenset[str]


@dataclass(frozen=True, slots=True)
class Quality:
    recall_at: dict[int, float]
    hit_at_1: float
    p50_ms: float
    p99_ms: float
    queries: int


class CorpusCatalog(ToolCatalog):
    """A catalog that takes the corpora's own tool names, which have no namespace."""

    def put(self, specs: Sequence[ToolSpec]) -> None:
        self._tools = {spec.name: spec for spec in specs}


def load_tools(corpus: str, folder: Path = FOLDER) -> list[ToolSpec]:
    return [_spec(row) for row in _rows(folder / "search" / corpus / "tools.jsonl.gz")]


def load_queries(corpus: str, folder: Path = FOLDER) -> list[Query]:
    (path,) = (folder / "search" / corpus).glob("queries*.jsonl.gz")
    return [Query(row["query"], frozenset(row["relevant"])) for row in _rows(path)]


def search_over(tools: Sequence[ToolSpec]) -> ToolSearch:
    catalog = CorpusCatalog(check_schema=lambda schema: None)
    catalog.put(tools)
    return ToolSearch(catalog)


def measure(search: ToolSearch, queries: Sequence[Query]) -> Quality:
    recall = {1: 0.0, 5: 0.0, 10: 0.0}
    first = 0
    times_ms = []
    for query in queries:
        start = time.perf_counter()
        names = [hit.tool.name for hit in search.search(query.text, limit=10).hits]
        times_ms.append((time.perf_counter() - start) * 1000)
        first += bool(names) and names[0] in query.relevant
        for k in recall:
            recall[k] += len(query.relevant & set(names[:k])) / len(query.relevant)
    times_ms.sort()
    count = len(queries)
    return Quality(
        recall_at={k: total / count for k, total in recall.items()},
        hit_at_1=first / count,
        p50_ms=times_ms[count // 2],
        p99_ms=times_ms[count * 99 // 100],
        queries=count,
    )


def main(corpora: Sequence[str]) -> None:
    print(
        f"{'corpus':16}{'tools':>7}{'queries':>9}{'R@1':>7}{'R@5':>7}{'R@10':>7}{'hit@1':>7}{'p50 ms':>8}{'p99 ms':>8}"
    )
    for corpus in corpora or CORPORA:
        tools, queries = load_tools(corpus), load_queries(corpus)
        quality = measure(search_over(tools), queries)
        recall = "".join(f"{quality.recall_at[k]:7.3f}" for k in (1, 5, 10))
        times = f"{quality.p50_ms:8.2f}{quality.p99_ms:8.2f}"
        print(f"{corpus:16}{len(tools):7}{len(queries):9}{recall}{quality.hit_at_1:7.3f}{times}")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _spec(row: dict[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=row["name"],
        kind=ToolKind.MCP,
        description=row["description"],
        input_schema=row.get("input_schema", {"type": "object"}),
        output_schema={},
        tags=tuple(row.get("tags", ())),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
