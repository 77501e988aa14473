"""A hub within `toolhub mcp`, when none is running: on the same data folder, reached only by its standard input."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from toolhub_service.app.hub import Hub, open_hub
from toolhub_service.app.serving import follow
from toolhub_service.app.start_refusals import load_first_policy
from toolhub_service.domain.event import EventType
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.settings.document import Settings
from toolhub_service.transport.server import ANSWERS_S

# Clients that stop a program wait a few seconds, then kill it.
_GRACE_S: Final = 1.0
_WRITE_S: Final = 0.2
"""For the last answers to pass through the SDK to standard output."""


async def serve_stdio(settings: Settings, api_key: str) -> None:
    """Serve until standard input ends, SIGTERM or SIGINT. Raises what `open_hub` raises, and StartRefused."""
    with TemporaryDirectory(prefix="toolhub-mcp-") as folder:  # mode 700: no other user reaches its socket
        hub = await open_hub(_private(settings, Path(folder)))
        try:
            await _serve(hub, api_key)
        finally:
            await hub.close()


def _private(settings: Settings, folder: Path) -> Settings:
    """Return settings with no listener that another process could reach."""
    server = replace(
        settings.server,
        listen=f"unix:{folder / 'hub.sock'}",
        workers=1,
        drain_notice_s=0.0,
        # The HTTP endpoint would take the port of a serving hub.
        mcp=replace(settings.server.mcp, enabled=False),
    )
    return replace(settings, server=server, metrics=replace(settings.metrics, listen=""))


async def _serve(hub: Hub, api_key: str) -> None:
    change = load_first_policy(hub.policy_file)
    hub.observing.policy_reloaded(change)
    await hub.start()
    await hub.audit_event(EventType.HUB_STARTED, policy_revision=change.revision)
    headers = [("authorization", f"Bearer {api_key}")] if api_key else []
    serving = await asyncio.to_thread(importlib.import_module, "toolhub_service.mcp_server.stdio")
    identify = partial(hub.mcp.access.at_once, headers, "stdio", "stdio")
    answering = asyncio.create_task(serving.serve(hub.mcp.engine, identify))
    follower = asyncio.create_task(follow(hub, asyncio.Event()))
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await _answer_all(hub.pipeline, min(_GRACE_S, hub.settings.server.drain_s))
            # Reading standard input cannot be interrupted: its task is cancelled instead.
            answering.cancel()
            await asyncio.wait({answering})
        if not answering.cancelled() and (failed := answering.exception()) is not None:
            raise failed
    finally:
        for task in (answering, follower, stopping):
            task.cancel()
        await asyncio.wait({answering, follower, stopping})
        # The last answer may still be in Python's buffer when the process ends.
        sys.stdout.flush()


async def _answer_all(pipeline: Pipeline, grace_s: float) -> None:
    """Return when the calls in flight are answered: those that do not end within the grace with what may have
    happened."""
    await pipeline.wait_until_idle(grace_s)
    pipeline.cut_off()
    await pipeline.wait_until_idle(ANSWERS_S)
    await asyncio.sleep(_WRITE_S)
