"""Forty calls in one program: the sales of a month, a file a day, summed up into a report.

An agent that called the tools itself would read every file. This answers with four lines.

    toolhub program run examples/programs/till.py --inputs '{"folder": "sales"}' --watch
"""

import asyncio

import core


async def sales(path):
    """Amount by product."""
    sold = {}
    for line in (await core.fs_readText(path=path))["text"].splitlines():
        product, _, amount = line.partition(",")
        sold[product] = sold.get(product, 0) + int(amount)
    return sold


folder = inputs["folder"]
listed = await core.fs_listDir(path=folder, maxEntries=60)
days = [entry["name"] for entry in listed["entries"] if entry["name"].endswith(".csv")]
total = {}
for day in await asyncio.gather(*[sales(f"{folder}/{name}") for name in days]):
    for product, amount in day.items():
        total[product] = total.get(product, 0) + amount
best = sorted(total, key=lambda product: -total[product])[:3]
report = "\n".join(f"{product}: {total[product]}" for product in best)
await core.fs_writeText(path=f"{folder}/report.txt", text=report, overwrite=True)
{"days": len(days), "best": best, "sold": sum(total.values())}
