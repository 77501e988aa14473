"""What the catalog, the search and the core adapter cost, in microseconds.

python -m tests.bench.registry_speed
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable

from tests.ports.adapter_suite import SILENT, granted
from tests.unit.adapters.small_tools import Echo
from toolhub_service.adapters.core import CoreAdapter
from toolhub_service.adapters.workspaces import Workspaces
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.search import ToolSearch

WORDS = [
    a + b for a in "read write list find send make drop join sort plot".split() for b in "ify able ing ward er".split()
]
TOOLS = 10_000


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
    specs = synthetic_tools(TOOLS)
    catalog = ToolCatalog(check_schema=lambda schema: None)
    start = time.perf_counter()
    catalog.register_all(specs)
    print(f"register {TOOLS:,} tools             {(time.perf_counter() - start) * 1e3:10.0f} ms")
    start = time.perf_counter()
    search = ToolSearch(catalog)
    print(f"index {TOOLS:,} tools                {(time.perf_counter() - start) * 1e3:10.0f} ms")
    name = specs[5000].name
    print(f"catalog.get                       {per_call_us(lambda: catalog.get(name), 100_000):10.2f} µs")
    print(f"catalog.all                       {per_call_us(catalog.all, 100_000):10.2f} µs")
    _print_search(search)
    _print_change(catalog, specs[1])
    asyncio.run(_print_execute())


def _print_search(search: ToolSearch) -> None:
    chance = random.Random(11)
    times_ms = []
    for _ in range(2_000):
        query = " ".join(chance.choices(WORDS, k=8)) + f" rare{chance.randrange(TOOLS)}"
        start = time.thread_time()
        search.search(query, allowed=lambda spec: True, viewer="someone")
        times_ms.append((time.thread_time() - start) * 1e3)
    times_ms.sort()
    print(f"search, 9 words, CPU p50 / p99    {times_ms[1000]:7.2f} / {times_ms[1980]:.2f} ms")


def _print_change(catalog: ToolCatalog, spec: ToolSpec) -> None:
    def change() -> None:
        catalog.unregister(spec.name)
        catalog.register(spec)

    print(f"remove and add one, indexed       {per_call_us(change, 200):10.0f} µs")


async def _print_execute() -> None:
    with tempfile.TemporaryDirectory() as root:
        tool = Echo()
        adapter = CoreAdapter([], Workspaces(root), custom_tools=[tool])
        call = granted(adapter.custom_specs()[0], {"text": "x"})
        start = time.perf_counter()
        for _ in range(20_000):
            await adapter.execute(call, SILENT)
        print(f"execute a trivial tool            {(time.perf_counter() - start) / 20_000 * 1e6:10.2f} µs")


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
