"""The supervisor of `--workers N` leaves no worker behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from toolhub_service.app.workers import Supervisor

_WORKER = "import signal; print('ready', flush=True); signal.pause()"
WITHIN_S = 60.0


async def test_a_worker_that_was_being_started_at_sigterm_is_stopped_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker is killed, and the signal comes while the supervisor starts it again."""
    start, started = asyncio.create_subprocess_exec, list[int]()

    async def start_slowly(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        started.append(process.pid)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            while supervisor.is_serving():  # noqa: ASYNC110 — a signal handler of the loop sets no event of ours
                await asyncio.sleep(0)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    ended: list[int] = []
    supervisor = Supervisor(
        [sys.executable, "-c", _WORKER],
        1,
        os.environ,
        ended=ended.append,
        all_ready=lambda: os.kill(started[0], signal.SIGKILL),
    )
    async with asyncio.timeout(WITHIN_S):
        assert await supervisor.run()
    assert len(started) == 2
    assert ended == started
