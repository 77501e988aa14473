"""What the catalog, the search, learning from use and the core adapter cost.

    python -m tests.bench.registry_speed [--write]

Synthetic tools whose words are few and common, which is the hard case: nine words of a query meet most of the tools.
Times are CPU. A search is one of a caller whose policy has been judged before; with uses: a tenth of the tools has
ten purposes each.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.page import arguments, at_share, machine, markdown, publish
from tests.ports.adapter_suite import SILENT, granted
from tests.unit.adapters.small_tools import Echo
from toolhub_service.adapters.core import CoreAdapter, Workspaces
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.analyser import Analyser
from toolhub_service.search.search import ToolSearch
from toolhub_service.search.usage_index import IndexedUse, TenantUsage

STEMS = "read write list find send make drop join sort plot film hotel price mail stock".split()
WORDS = STEMS + [a + b for a in STEMS for b in "ify able ward".split()]
SIZES = (10_000, 100_000)
QUERIES = 2_000
_NOW = 1_700_000_000_000
_DAY_MS = 24 * 3600 * 1000


def per_call_us(run: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            run()
        best = min(best, (time.perf_counter() - start) / times)
    return best * 1e6


def synthetic_tools(count: int) -> list[ToolSpec]:
    """Descriptions of 12 common words (Zipf) and one rare one, four described parameters."""
    chance = random.Random(7)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    return [_synthetic(chance, weights, number) for number in range(count)]


def main() -> None:
    options = arguments(__doc__).parse_args()
    found: dict[str, Any] = {}
    for size in SIZES:
        found |= {f"{what}, {size:,} tools": figure for what, figure in measured(size).items()}
    found["execute a trivial tool, µs"] = asyncio.run(execute_us())
    rows = [(what, f"{figure:,.2f}" if figure < 10 else f"{figure:,.0f}") for what, figure in found.items()]
    publish(
        "registry_speed", found | {"machine": machine()}, markdown([("what", "figure"), *rows]), write=options.write
    )


def measured(size: int) -> dict[str, float]:
    """The figures of one catalog, by name and unit."""
    specs = synthetic_tools(size)
    catalog = ToolCatalog(check_schema=lambda schema: None)
    found = {"register all, ms": timed_ms(lambda: catalog.register_all(specs))}
    usage = TenantUsage(_NOW, 30 * _DAY_MS, 180 * _DAY_MS)
    searches: list[ToolSearch] = []
    found["index all, ms"] = timed_ms(
        lambda: searches.append(ToolSearch(catalog, learnt=lambda tenant: usage, unix_ms=lambda: _NOW))
    )
    (search,) = searches
    name = specs[size // 2].name
    found["look up one, µs"] = per_call_us(lambda: catalog.get(name), 100_000)
    found |= searched(search, size, "search, nine words")
    found["learn one use, µs"] = learn_us(usage, specs)
    found |= searched(search, size, "search with uses, nine words", tenant="someone")
    found |= changed(catalog, search, specs)
    asyncio.run(search.close())
    return found


def timed_ms(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def searched(search: ToolSearch, size: int, what: str, tenant: str = "") -> dict[str, float]:
    """CPU of one search, median and p99."""
    chance = random.Random(11)
    times_ms = []
    for _ in range(QUERIES):
        query = " ".join(chance.choices(WORDS, k=8)) + f" rare{chance.randrange(size)}"
        start = time.thread_time()
        search.search(query, allowed=lambda spec: True, viewer="someone", tenant=tenant)
        times_ms.append((time.thread_time() - start) * 1e3)
    times_ms.sort()
    return {f"{what}, CPU p50, ms": at_share(times_ms, 0.5), f"{what}, CPU p99, ms": at_share(times_ms, 0.99)}


def learn_us(usage: TenantUsage, specs: list[ToolSpec]) -> float:
    """The mean of ten purposes, read and learnt, for every tenth tool, at most 10,000 tools' worth."""
    chance = random.Random(13)
    analyser = Analyser()
    uses = [
        (spec.name, f"{' '.join(chance.choices(WORDS, k=9))} case{chance.randrange(500)}")
        for spec in specs[:10_000:10]
        for _ in range(10)
    ]
    start = time.perf_counter()
    for tool, purpose in uses:
        usage.put(tool, IndexedUse("agent", tuple(dict.fromkeys(analyser.terms(purpose))), _NOW), _NOW)
    return (time.perf_counter() - start) / len(uses) * 1e6


def changed(catalog: ToolCatalog, search: ToolSearch, specs: list[ToolSpec]) -> dict[str, float]:
    """Add or remove one tool, and the first search after it, which works out anew what a change made stale."""
    chance = random.Random(17)
    changes_ms, searches_ms = [], []
    for spec in chance.sample(specs, 20):
        for change in (partial(catalog.unregister, spec.name), partial(catalog.register, spec)):
            changes_ms.append(timed_ms(change))
            searches_ms.append(timed_ms(lambda: search.search("read a mail", tenant="someone")))
    return {"add or remove one, worst of 40, ms": max(changes_ms), "first search after it, ms": sorted(searches_ms)[20]}


async def execute_us() -> float:
    with tempfile.TemporaryDirectory() as root:
        tool = Echo()
        adapter = CoreAdapter([], Workspaces(root), custom_tools=[tool])
        call = granted(adapter.custom_specs()[0], {"text": "x"})
        start = time.perf_counter()
        for _ in range(20_000):
            await adapter.execute(call, SILENT)
        return (time.perf_counter() - start) / 20_000 * 1e6


def _synthetic(chance: random.Random, weights: list[float], number: int) -> ToolSpec:
    words = chance.choices(WORDS, weights, k=12)
    properties = {word: {"type": "string", "description": " ".join(chance.choices(WORDS, k=5))} for word in words[:4]}
    return ToolSpec(
        name=f"source{number % 50}/{words[0]}.n{number}",
        kind=ToolKind.MCP,
        description=" ".join(words) + f" rare{number}",
        input_schema={"type": "object", "properties": properties},
        output_schema={},
        source=f"source{number % 50}",
    )


if __name__ == "__main__":
    main()
