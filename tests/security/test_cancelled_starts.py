"""Calls that are cancelled while their program is being started leave no process and no descriptor behind."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.fakes.commands import confinement_of
from tests.kills import KILLS
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.process import run_process

AT_ONCE = 16
STARTS = 100 * KILLS


def processes_of(mark: str) -> list[int]:
    """Those whose environment or command line holds the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count, its own descriptor with it


async def run(argv: tuple[str, ...], mark: str) -> None:
    await run_process(
        Program(argv, {"MARK": mark}, "/"),
        deadline_s=asyncio.get_running_loop().time() + 600,
        keep_bytes=100,
        on_output=lambda lines, stream: None,
    )


async def cancelled_at_random(count: int, seed: int, start: Callable[[], Awaitable[None]]) -> int:
    """Start so many and cancel each within four milliseconds or some turns of the loop; how many were cancelled."""
    chance, room, cancelled = random.Random(seed), asyncio.Semaphore(AT_ONCE), 0

    async def one(turns: int, pause_s: float) -> None:
        nonlocal cancelled
        async with room:
            running = asyncio.ensure_future(start())
            for _ in range(turns):
                await asyncio.sleep(0)
            if pause_s:
                await asyncio.sleep(pause_s)
            running.cancel()
            if chance.random() < 0.2:  # a deadline and a caller that hangs up
                await asyncio.sleep(0)
                running.cancel()
            try:
                await running
            except asyncio.CancelledError:
                cancelled += 1

    shots = [(chance.randrange(12), chance.choice((0.0, chance.random() * 0.004))) for _ in range(count)]
    await asyncio.gather(*(one(*shot) for shot in shots))
    return cancelled


async def nothing_is_left(mark: str, descriptors: int) -> None:
    """A process that was sent SIGKILL and given to init may need a moment to be gone."""
    async with asyncio.timeout(60):
        while processes_of(mark) or open_descriptors() > descriptors:  # noqa: ASYNC110 - no event of ours
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_starts_cancelled_at_random_leave_nothing() -> None:
    """Fails at befa727: 5,000 starts leave descriptors of pipes that asyncio had not yet connected."""
    mark, descriptors = uuid4().hex, open_descriptors()
    argv = ("/bin/sleep", "600")
    assert await cancelled_at_random(STARTS, 20_261_123, lambda: run(argv, mark)) == STARTS
    await nothing_is_left(mark, descriptors)


@pytest.mark.slow
async def test_sandboxes_cancelled_while_they_are_set_up_leave_nothing(tmp_path: Path) -> None:
    """Fails at befa727: a sandbox that has just made a session of its own outlives its starter's death."""
    mark, descriptors = uuid4().hex, open_descriptors()
    confinement = confinement_of("bubblewrap")
    argv = confinement.wrap_command("bubblewrap", ("/bin/sleep", "600"), Sandbox(), str(tmp_path), str(tmp_path))
    assert await cancelled_at_random(10 * KILLS, 7, lambda: run(argv, mark)) == 10 * KILLS
    await nothing_is_left(mark, descriptors)
