"""The life of a serving process: start, follow the policy and key files, leave on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from contextlib import suppress

from toolhub_service.app.hub import Hub, open_hub
from toolhub_service.app.key_file import KeyFile, KeyFileInvalid
from toolhub_service.app.paths import Paths
from toolhub_service.domain.event import Event, EventType
from toolhub_service.policy.live import Change
from toolhub_service.settings.document import Settings


class StartRefused(Exception):
    """The hub cannot start; the message says why and what to do."""


async def serve(settings: Settings, *, worker: int | None = None, ready: Callable[[Hub], None]) -> None:
    """Serve until a signal. `ready` is told once calls are accepted.

    Raises StartRefused when the policy file is invalid, and what `open_hub` raises.
    """
    hub = await open_hub(settings, worker=worker)
    change = hub.policy_file.load()
    if not change.applied:
        raise StartRefused(change.problem)
    hub.observing.policy_reloaded(change)
    stop, reload = _on_signals()
    _settle_memory()
    await hub.start()
    await _remember(hub, EventType.HUB_STARTED, policy_revision=change.revision)
    ready(hub)
    follower = asyncio.create_task(_follow_files(hub, reload))
    try:
        await stop.wait()
    finally:
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower
        await _remember(hub, EventType.HUB_STOPPED, policy_revision=hub.policy.revision)
        await hub.close()


def _settle_memory() -> None:
    """What the start has made lives as long as the process: the collector need not look at it again and again.

    Measured (docs/performance.md): frequent full collections cost a governed call about a twentieth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """(stop, reload) events set by SIGTERM or SIGINT, and by SIGHUP."""
    loop, stop, reload = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    return stop, reload


async def _follow_files(hub: Hub, reload: asyncio.Event) -> None:
    """Reload policy and keys on SIGHUP, and when a file has changed since the last look."""
    every_s = hub.settings.policy.reload_s or None
    key_file = Paths(hub.settings).key_file()
    while True:
        asked = await _asked(reload, every_s)
        if asked or hub.policy_file.changed():
            await _told(hub, hub.policy_file.load())
        _reload_keys(hub, key_file)


async def _asked(reload: asyncio.Event, every_s: float | None) -> bool:
    """True after SIGHUP, False when it is only time to look."""
    try:
        await asyncio.wait_for(reload.wait(), every_s)
    except TimeoutError:
        return False
    reload.clear()
    return True


async def _told(hub: Hub, change: Change) -> None:
    type = EventType.CONFIG_LOADED if change.applied else EventType.CONFIG_REJECTED
    hub.observing.policy_reloaded(change)
    await _remember(hub, type, policy_revision=change.revision, problem=change.problem)


def _reload_keys(hub: Hub, file: KeyFile) -> None:
    try:
        hub.keys.replace(file.read())
    except (OSError, KeyFileInvalid) as broken:
        hub.observing.keys_unreadable(broken)


async def _remember(hub: Hub, type: EventType, *, policy_revision: str, problem: str = "") -> None:
    event = Event(
        type=type,
        at_unix_ms=hub.clock.unix_ms(),
        policy_revision=policy_revision,
        outcome="refused" if problem else "ok",
        attributes={"problem": problem} if problem else {},
    )
    await hub.audit.append_durably(event)
