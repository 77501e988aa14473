"""Ladders of one level, and a program run by one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.missing import give_up
from toolhub_service.sandbox.kernel_walls import landlock_abi
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.process import Finished, run_process
from toolhub_service.sandbox.request import Level, SandboxRequest

NOBODY = 65_534


async def ladder_of(level: Level, *hidden: Path, shown: tuple[Path, ...] = (), user: int | None = NOBODY) -> Ladder:
    """A ladder whose best level is that; the test is skipped, in one line, where it does not work."""
    bubblewrap = None if level == "bubblewrap" else ""
    ladder = Ladder(
        [str(path) for path in hidden], shown=[str(path) for path in shown], user=user, bubblewrap=bubblewrap
    )
    if await ladder.level() != level:
        reason = f"{level} does not work here: {ladder.reasons.get(level)}"
        if level == "bubblewrap":
            give_up(f"{reason}; apt-get install bubblewrap, and allow user namespaces")
        assert not landlock_abi()
        pytest.skip(f"{reason}; Linux 5.13 with CONFIG_SECURITY_LANDLOCK has it")
    return ladder


async def ran(ladder: Ladder, request: SandboxRequest, *, given: bytes = b"", within_s: float = 60.0) -> Finished:
    async with ladder.confine(request) as confined:
        return await run_process(
            confined.program,
            deadline_s=asyncio.get_running_loop().time() + within_s,
            keep_bytes=100_000,
            on_output=lambda lines, stream: None,
            given=given,
        )
