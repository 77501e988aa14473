"""How well and how fast tools are found: recall and latency on public tool corpora, as a table.

    python -m tests.bench.search_quality [corpus ...] [--write]

R@k is the share of relevant tools among the first k hits; ms is the CPU time of one query. For MetaTool, which has many
queries a tool, a part of the queries (by digest) is then used as purposes of earlier calls, ten a tool, and the rest is
asked without and with them. The hub's own tools are asked for in English and Chinese (`core_queries.yaml`).
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.corpora import FOLDER
from toolhub_service.app.offline import NoJobs
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.app.wiring.tools import open_toolbox
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.analyser import Analyser
from toolhub_service.search.search import ToolSearch
from toolhub_service.search.usage_index import IndexedUse, TenantUsage
from toolhub_service.settings.document import Settings

CORPORA = {
    "metatool": "MetaTool",
    "bfcl": "BFCL",
    "sealtools_in": "Seal-Tools",
    "toolalpaca": "ToolAlpaca",
    "restbench_tmdb": "RestBench TMDB",
}
_OWN_QUERIES = Path(__file__).with_name("core_queries.yaml")
LEARNT_FROM = "metatool"
PURPOSES = 10
_DAY_MS = 24 * 3600 * 1000
_NOW = 1_700_000_000_000


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


def own_tools() -> list[ToolSpec]:
    """The hub's own tools, as its registry holds them."""
    with tempfile.TemporaryDirectory() as folder:
        toolbox = open_toolbox(Settings(data_dir=folder), SystemClock(), Redactor(), NoJobs())
        try:
            return list(toolbox.catalog.all())
        finally:
            asyncio.run(toolbox.close())


def own_queries(language: str, *, tuned_for: bool) -> list[Query]:
    """What is asked of the hub's own tools in `english` or `chinese`: what search was tuned for, or the rest."""
    wordings = slice(0, 2) if language == "english" else slice(2, 4)
    asked: dict[str, list[list[str]]] = yaml.safe_load(_OWN_QUERIES.read_text())
    return [
        Query(text, frozenset({tool}))
        for tool, wishes in asked.items()
        for wish in wishes[0 if tuned_for else 1 :: 2]
        for text in wish[wordings]
    ]


def search_over(tools: Sequence[ToolSpec], usage: TenantUsage | None = None) -> ToolSearch:
    catalog = CorpusCatalog(check_schema=lambda schema: None)
    catalog.put(tools)
    return ToolSearch(catalog, learnt=lambda tenant: usage, unix_ms=lambda: _NOW)


def measure(search: ToolSearch, queries: Sequence[Query]) -> Quality:
    recall = {1: 0.0, 3: 0.0, 5: 0.0, 10: 0.0}
    first = 0
    times_ms = []
    search.search(queries[0].text)  # the first of a process loads numpy
    for query in queries:
        start = time.thread_time()
        names = [hit.tool.name for hit in search.search(query.text, tenant="someone", limit=10).hits]
        times_ms.append((time.thread_time() - start) * 1000)
        first += bool(names) and names[0] in query.relevant
        for k in recall:
            recall[k] += len(query.relevant & set(names[:k])) / len(query.relevant)
    times_ms.sort()
    count = len(queries)
    return Quality(
        recall_at={k: total / count for k, total in recall.items()},
        hit_at_1=first / count,
        p50_ms=at_share(times_ms, 0.5),
        p99_ms=at_share(times_ms, 0.99),
        queries=count,
    )


def past_and_asked(queries: Sequence[Query]) -> tuple[list[Query], list[Query]]:
    """Distinct queries in two parts by their digest: seven tenths that may serve as purposes, and the rest."""
    distinct = {query.text: query for query in queries}
    past: list[Query] = []
    asked: list[Query] = []
    for text in sorted(distinct, key=_digest):
        (past if _digest(text)[0] < 179 else asked).append(distinct[text])
    return past, asked


def usage_of(past: Sequence[Query], purposes: int) -> TenantUsage:
    """What a tenant's tools would have been used for: so many of the queries of each."""
    analyser = Analyser()
    usage = TenantUsage(_NOW, 30 * _DAY_MS, 180 * _DAY_MS)
    used: defaultdict[str, int] = defaultdict(int)
    for query in past:
        for tool in query.relevant:
            if used[tool] < purposes:
                terms = tuple(dict.fromkeys(analyser.terms(query.text)))
                used[tool] += usage.put(tool, IndexedUse("agent", terms, _NOW), _NOW)
    return usage


def rows(corpora: Sequence[str]) -> Iterator[tuple[str, int, Quality]]:
    """What was asked, of how many tools, and how well it was found."""
    own = own_tools()
    for language in ("english", "chinese"):
        for tuned_for, which in ((True, "looked at while tuning"), (False, "not looked at")):
            name = f"the hub's own tools, {language.title()}, {which}"
            yield name, len(own), measure(search_over(own), own_queries(language, tuned_for=tuned_for))
    for corpus in corpora:
        tools, queries = load_tools(corpus), load_queries(corpus)
        yield CORPORA[corpus], len(tools), measure(search_over(tools), queries)
        if corpus == LEARNT_FROM:
            past, asked = past_and_asked(queries)
            for purposes in (0, PURPOSES):
                name = f"{CORPORA[corpus]}, {purposes or 'no'} earlier purposes a tool"
                yield name, len(tools), measure(search_over(tools, usage_of(past, purposes)), asked)


def as_table(found: Sequence[tuple[str, int, Quality]]) -> str:
    head = ("corpus", "tools", "queries", "R@1", "R@3", "R@5", "R@10", "CPU p50 ms", "p99 ms")
    lines = [
        (
            name,
            f"{tools:,}",
            f"{quality.queries:,}",
            *(f"{quality.recall_at[k]:.3f}" for k in (1, 3, 5, 10)),
            f"{quality.p50_ms:.2f}",
            f"{quality.p99_ms:.2f}",
        )
        for name, tools, quality in found
    ]
    return markdown([head, *lines])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("corpora", nargs="*", choices=[[], *CORPORA], metavar="corpus")
    options = parser.parse_args()
    if not (FOLDER / "search").is_dir():
        print("skipped: the corpora are not here; set TEST_CORPORA to the folder that holds them")
        return
    found = list(rows(options.corpora or tuple(CORPORA)))
    figures = {name: asdict(quality) | {"tools": tools} for name, tools, quality in found}
    publish("search_quality", figures | {"machine": machine()}, as_table(found), write=options.write)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


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
    main()
