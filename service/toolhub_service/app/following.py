"""What a serving hub looks after: its policy, a shadow of it, its API keys, and the gauges that nobody else sets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice

from toolhub_service.app.file_modes import FilesLoose, problem_of
from toolhub_service.app.hub import Hub
from toolhub_service.app.key_file import KeyFile, KeyFileInvalid
from toolhub_service.app.paths import Paths
from toolhub_service.app.policy_file import ShadowFile
from toolhub_service.app.policy_names import known_names
from toolhub_service.budget.breaker import BreakerState
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.event import EventType
from toolhub_service.policy.live import Change
from toolhub_service.policy.unmatched import unmatched

_GAUGE = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_WARNINGS_MAX = 20
"""Of a policy, in one line of the log."""
_LOOK_S = 2.0
"""Between looks at what is no file, where files are followed only on SIGHUP."""


async def follow(hub: Hub, reload: asyncio.Event) -> None:
    """Until cancelled: reload files on SIGHUP (`reload`) and when they have changed since the last look."""
    reload_s = hub.settings.policy.reload_s
    key_file = Paths(hub.settings).key_file()
    shadow = ShadowFile(hub.settings.policy.shadow_file, hub.policy)
    _load_shadow(hub, shadow)
    told_faults = 0
    sources = _SourceLooks(hub)
    try:
        await _warn(hub)
        while True:
            asked = await _asked(reload, reload_s or _LOOK_S)
            try:
                if (faults := hub.policy.shadow_faults) > told_faults:
                    hub.observing.shadow_failed(faults - told_faults)
                    told_faults = faults
                if asked or reload_s:
                    reload_keys(hub, key_file)
                    await _look(hub, shadow, asked=asked)
                    sources.look(asked=asked)
                _set_gauges(hub)
                await hub.server.tell_effects(are_possible=hub.audit.is_well)
            except Exception as error:  # noqa: BLE001 - revoked keys must be refused after the next look, whatever this met
                hub.observing.look_failed(error)
    finally:
        await sources.ended()


class _SourceLooks:
    """One look at sources.yaml after another, beside those at keys and policy: a source that goes may take half a
    minute to close, and a revoked key waits for none."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._task: asyncio.Task[None] | None = None
        self._is_asked = False

    def look(self, *, asked: bool) -> None:
        self._is_asked |= asked
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="sources.yaml")

    async def ended(self) -> None:
        """A source is not left half closed; what takes so long is bounded."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _look(self) -> None:
        asked, self._is_asked = self._is_asked, False
        try:
            await self._hub.sourcing.look(asked=asked)
        except Exception as error:  # noqa: BLE001 - the next look comes all the same
            self._hub.observing.look_failed(error)


async def _look(hub: Hub, shadow: ShadowFile, *, asked: bool) -> None:
    if asked or hub.policy_file.changed():
        await _told(hub, hub.policy_file.load())
    if asked or shadow.changed():
        _load_shadow(hub, shadow)


def _set_gauges(hub: Hub) -> None:
    for upstream, state in hub.budgets.breaker_states():
        hub.observing.metrics.breaker_state(upstream, _GAUGE[state])


async def _asked(reload: asyncio.Event, every_s: float) -> bool:
    """True after SIGHUP, False when it is only time to look."""
    try:
        await asyncio.wait_for(reload.wait(), every_s)
    except TimeoutError:
        return False
    reload.clear()
    return True


async def _told(hub: Hub, change: Change) -> None:
    hub.observing.policy_reloaded(change)
    type = EventType.CONFIG_LOADED if change.applied else EventType.CONFIG_REJECTED
    if change.applied:
        await _warn(hub)
    with suppress(ToolFailure):  # the audit log tells of its own failure; the policy is in force all the same
        await hub.remember(type, policy_revision=change.revision, problem=change.problem)


async def _warn(hub: Hub) -> None:
    """Log what the policy says of nothing known; in a thread, for a policy and a catalog may both be large."""

    def look() -> list[str]:
        known = known_names(hub.settings, hub.toolbox.catalog.all())
        found = unmatched(hub.policy.snapshot.document, known)
        return [f"{path}: {problem}" for path, problem in islice(found, _WARNINGS_MAX + 1)]

    if warnings := await asyncio.to_thread(look):
        are_all = len(warnings) <= _WARNINGS_MAX
        hub.observing.policy_unmatched(warnings[:_WARNINGS_MAX], are_all=are_all)


def _load_shadow(hub: Hub, shadow: ShadowFile) -> None:
    change = shadow.load()
    if change is not None:
        hub.observing.shadow_loaded(change)


def reload_keys(hub: Hub, file: KeyFile) -> None:
    """Keys made since are accepted, revoked ones refused; an unreadable file keeps those there are."""
    if loose := problem_of(Paths(hub.settings).api_keys, hub.settings):
        hub.observing.keys_unreadable(FilesLoose(loose))
        return
    try:
        hub.keys.replace(file.read())
    except (OSError, KeyFileInvalid) as broken:
        hub.observing.keys_unreadable(broken)
