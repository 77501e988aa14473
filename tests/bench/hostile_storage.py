"""One caller writes until it is refused: what another caller waits for meanwhile, on a small disk and beyond a bound.

    python -m tests.bench.hostile_storage

Needs root for the small disk (a tmpfs of its own); without it only the bound is measured.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hub import running_hub
from tests.rpc.principals import BY_KEY, Client, Principals

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
storage: [{principals: [greedy], workspace_bytes: 200000000}]
"""
WRITE, NOW = "core/fs.writeText", "core/util.time.now"
FILE_BYTES = 1_000_000
PAUSE_S = 0.01


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path | None]:
    """A disk of its own; None where it cannot be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


async def fill(greedy: Client) -> tuple[int, str]:
    """Write until the first refusal; return how many files were written, and the limit."""
    for number in range(10_000):
        args = {"path": f"{number}.txt", "text": "x" * FILE_BYTES}
        answer = await greedy.call(WRITE, args, request_id="work")
        if not answer.ok:
            return number, str(answer.error.details["limit"])
    raise AssertionError("nothing was refused")


async def measured(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    async with running_hub(folder, policy=POLICY, settings={**BY_KEY, **settings}) as hub:
        people = Principals(hub, names=("greedy", "modest"))
        greedy, modest = people.at(hub, "greedy"), people.at(hub, "modest")
        filling = asyncio.create_task(fill(greedy))
        waits_s: list[float] = []
        failures = 0
        while not filling.done() or len(waits_s) < 100:
            began_s = time.perf_counter()
            failures += not (await modest.call(NOW)).ok
            waits_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(PAUSE_S)
        files, limit = await filling
        wrote = (await modest.call(WRITE, {"path": "mine.txt", "text": "x" * 1_000}, request_id="work")).ok
        return {
            "files_before_refusal": files,
            "limit": limit,
            "other_worst_ms": round(1_000 * max(waits_s), 1),
            "other_p50_ms": round(1_000 * sorted(waits_s)[len(waits_s) // 2], 1),
            "other_failures": failures,
            "other_still_writes": wrote,
        }


async def run() -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="toolhub-bench-") as name:
        rows = {"beyond a bound": await measured(Path(name) / "bound", {})}
        with small_disk(Path(name), "256m") as disk:
            if disk is not None:
                rows["on a disk of 256 MiB"] = await measured(disk, {})
        return rows


if __name__ == "__main__":
    for row, figures in asyncio.run(run()).items():
        print(f"{row}: {figures}")
