"""A hub with one tool that runs on the scripted job server, in this process or in one that can be killed.

`python -m tests.rpc.remote_hub --folder DIR --jobs URL` says `serving on ADDRESS` and serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.fakes.http_remote_job import HttpJobAdapter, HttpRemoteJob, remote_tool
from tests.fakes.remote_harness import BRISK
from tests.hub import OPEN_POLICY, RunningHub, channel_to, settings_of
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller, PollTerms
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import Hub, open_hub
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.tool import ToolKind
from toolhub_service.runtime.pipeline import Pipeline

TOOL: Final = remote_tool()
IMPATIENT: Final = {"jobs": {"heartbeat_s": 0.1, "dead_after_s": 0.5}}
"""A dead process is noticed within a second."""
_POLLS: Final = PollTerms(first_s=0.005, longest_s=0.05)


def install(hub: Hub, client: httpx.AsyncClient, url: str) -> None:
    """Offer the tool. Before the hub starts, for it may have jobs of it already."""
    pipeline: Any = hub.long_work.runs.invoker
    assert isinstance(pipeline, Pipeline)
    randomness = SystemRandomness()
    remote = HttpRemoteJob(client, url, Poller(randomness, _POLLS))
    executor = RemoteExecutor(remote, hub.long_work.runs, hub.clock, randomness, BRISK)
    adapters: Any = pipeline.adapters
    adapters[ToolKind.N8N] = HttpJobAdapter(executor)
    hub.toolbox.catalog.register(TOOL)


@asynccontextmanager
async def remote_hub(folder: Path, url: str) -> AsyncIterator[RunningHub]:
    """Over what an earlier one has left in the folder."""
    settings = settings_of(folder, IMPATIENT)
    hub = await open_hub(settings)
    Paths(settings).policy.write_text(OPEN_POLICY)
    assert hub.policy_file.load().applied
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=10.0) as client:
        install(hub, client, url)
        await hub.start()
        try:
            address = f"127.0.0.1:{hub.server.port}"
            async with channel_to(address) as channel:
                yield RunningHub(hub, address, channel)
        finally:
            await hub.close()


class HubProcess:
    """The same in a process of its own, which kill -9 can reach."""

    def __init__(self, folder: Path, url: str) -> None:
        self._command = [sys.executable, "-m", "tests.rpc.remote_hub", "--folder", str(folder), "--jobs", url]
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            self.address = (await self._process.stdout.readline()).decode().split()[-1]

    async def end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", required=True)
    asked = parser.parse_args()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with remote_hub(asked.folder, asked.jobs) as running:
        print(f"serving on {running.address}", flush=True)
        await over.wait()


if __name__ == "__main__":
    asyncio.run(_main())
