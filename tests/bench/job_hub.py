"""A hub with one tool whose jobs run on the scripted job server, asked at the intervals of real drivers.

`python -m tests.bench.job_hub --folder DIR --jobs URL` says `serving on ADDRESS` and serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.http_remote_job import HttpJobAdapter, HttpRemoteJob, remote_tool
from tests.hub import OPEN_POLICY, settings_of
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.hub import Hub, open_hub
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.tool import ToolKind
from toolhub_service.runtime.pipeline import Pipeline

TOOL = remote_tool()
CONNECTIONS = 8
SETTINGS = {"jobs": {"max_running": 20_000}, "budget": {"upstream_concurrency": 20_000}}
"""Alive is what they are to be, not waiting for room."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", required=True)
    asked = parser.parse_args()
    asyncio.run(_serve(asked.folder, asked.jobs))


async def _serve(folder: Path, url: str) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    settings = settings_of(folder, SETTINGS)
    hub = await open_hub(settings)
    Paths(settings).policy.write_text(OPEN_POLICY)
    hub.policy_file.load()
    limits = httpx.Limits(max_connections=CONNECTIONS)
    async with httpx.AsyncClient(limits=limits, trust_env=False, verify=False, timeout=60.0) as client:
        _offer(hub, client, url)
        await hub.start()
        print(f"serving on 127.0.0.1:{hub.server.port}", flush=True)
        await over.wait()
        await hub.close()


def _offer(hub: Hub, client: httpx.AsyncClient, url: str) -> None:
    pipeline: Any = hub.long_work.runs.invoker
    assert isinstance(pipeline, Pipeline)
    randomness = SystemRandomness()
    remote = HttpRemoteJob(client, url, Poller(randomness))
    adapters: Any = pipeline.adapters
    adapters[ToolKind.N8N] = HttpJobAdapter(RemoteExecutor(remote, hub.long_work.runs, hub.clock, randomness))
    hub.toolbox.catalog.register(TOOL)


if __name__ == "__main__":
    main()
