"""The life of a serving process: start, follow the policy and key files, stop on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from tempfile import TemporaryDirectory

from toolhub_service.app.config_files.key_file import KeyFile, KeyFileInvalid, KeyUses
from toolhub_service.app.config_files.modes import FilesLoose, problem_of
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.policy_files import ShadowFile, known_names
from toolhub_service.app.expiry_watch import ClockWatch, ExpiryWatch
from toolhub_service.app.hub import Hub, open_hub
from toolhub_service.app.key_care import KeyCare
from toolhub_service.app.start_refusals import load_first_policy
from toolhub_service.budget.breaker import BreakerState
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.event import EventType
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.policy.advice.unmatched_names import find_unmatched_names
from toolhub_service.policy.live import Change
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.sandbox.kernel_walls import landlock_abi
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry import names

_GAUGE = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
# Limit for the unknown names of a policy in one log line.
_WARNINGS_MAX = 20
# Interval of checks other than of files, when files are followed only on SIGHUP.
_POLL_S = 2.0


async def follow(hub: Hub, reload: asyncio.Event) -> None:
    """Until cancelled, reload files on SIGHUP (`reload`) and when they have changed."""
    reload_s = hub.settings.policy.reload_s
    key_file = Paths(hub.settings).key_file()
    shadow = ShadowFile(hub.settings.policy.shadow_file, hub.policy)
    _load_shadow(hub, shadow)
    reported_faults = 0
    sources = _SourceReloads(hub)
    expiry = ExpiryWatch(hub.deps.certificates, hub.observing, hub.clock)
    clock = ClockWatch(hub.audit.events.newest_unix_ms, hub.observing, hub.clock)
    care = KeyCare(hub.keys, KeyUses(Paths(hub.settings).api_key_uses), hub.observing, hub.clock)
    try:
        await _compare_clock(hub, clock)
        await _warn_of_unknown_names(hub)
        while True:
            asked = await _wait_for_reload(reload, reload_s or _POLL_S)
            try:
                if (faults := hub.policy.shadow_faults) > reported_faults:
                    # Counted by the policy and reported here: a verdict must not wait for a log.
                    hub.observing.shadow_failed(faults - reported_faults)
                    reported_faults = faults
                if asked or reload_s:
                    _follow_keys(hub, key_file, asked=asked)
                    await reload_certificates(hub, asked=asked)
                    await _reload_policy(hub, shadow, asked=asked)
                    sources.begin(asked=asked)
                await care.check()
                expiry.check()
                await clock.check()
                for upstream, state in hub.budgets.breaker_states():
                    hub.observing.metrics.breaker_state(upstream, _GAUGE[state])
                hub.observing.metrics.oldest_call(hub.pipeline.oldest_call_s())
                hub.mcp.engine.telemetry.open_now(*hub.mcp.listener.open_now())
                await hub.server.report_effects(are_possible=hub.audit.is_well)
            except Exception as error:  # noqa: BLE001 - revoked keys must be refused at the next reload, whatever this met
                hub.observing.reload_failed(error)
    finally:
        await care.close()
        await sources.wait()


async def _compare_clock(hub: Hub, clock: ClockWatch) -> None:
    """Compare it once before anything is followed: a log that cannot be read must not end the hub."""
    try:
        await clock.check()
    except Exception as error:  # noqa: BLE001 - compared again a minute later
        hub.observing.reload_failed(error)


class _SourceReloads:
    """Reloads sources.yaml, one reload after another, in its own task."""

    # Removing a source may take half a minute, and revoked keys must not wait for that.

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._task: asyncio.Task[None] | None = None
        self._is_asked = False

    def begin(self, *, asked: bool) -> None:
        self._is_asked |= asked
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload(), name="sources.yaml")

    async def wait(self) -> None:
        """Wait for the reload, so that no source is left half closed; its duration is bounded."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _reload(self) -> None:
        asked, self._is_asked = self._is_asked, False
        try:
            await self._hub.sourcing.reload(asked=asked)
        except Exception as error:  # noqa: BLE001 - the next reload comes all the same
            self._hub.observing.reload_failed(error)


async def _reload_policy(hub: Hub, shadow: ShadowFile, *, asked: bool) -> None:
    if asked or hub.policy_file.has_changed():
        await _record_policy(hub, hub.policy_file.load())
    if asked or shadow.has_changed():
        _load_shadow(hub, shadow)


async def _wait_for_reload(reload: asyncio.Event, every_s: float) -> bool:
    """Return True after SIGHUP, False when it is only time to check the files."""
    try:
        await asyncio.wait_for(reload.wait(), every_s)
    except TimeoutError:
        return False
    reload.clear()
    return True


async def _record_policy(hub: Hub, change: Change) -> None:
    hub.observing.policy_reloaded(change)
    type = EventType.CONFIG_LOADED if change.applied else EventType.CONFIG_REJECTED
    if change.applied:
        await _warn_of_unknown_names(hub)
    with suppress(ToolFailure):  # the audit log reports its own failure; the policy is in force anyway
        await hub.audit_event(type, policy_revision=change.revision, problem=change.problem)


async def _warn_of_unknown_names(hub: Hub) -> None:
    """Log unknown names in the policy; in a thread, because a policy and a catalog may both be large."""

    def unknown_names() -> list[str]:
        known = known_names(hub.settings, hub.toolbox.catalog.all())
        found = find_unmatched_names(hub.policy.snapshot.document, known)
        return [f"{path}: {problem}" for path, problem in islice(found, _WARNINGS_MAX + 1)]

    if warnings := await asyncio.to_thread(unknown_names):
        are_all = len(warnings) <= _WARNINGS_MAX
        hub.observing.policy_unmatched(warnings[:_WARNINGS_MAX], are_all=are_all)


def _load_shadow(hub: Hub, shadow: ShadowFile) -> None:
    change = shadow.load()
    if change is not None:
        hub.observing.shadow_loaded(change)


def _follow_keys(hub: Hub, file: KeyFile, *, asked: bool) -> None:
    if asked or file.has_changed():
        reload_keys(hub, file)


def reload_keys(hub: Hub, file: KeyFile) -> None:
    """Accept new keys and refuse revoked ones; an unreadable file keeps the previous ones."""
    if loose := problem_of(Paths(hub.settings).api_keys, hub.settings):
        hub.observing.keys_unreadable(FilesLoose(loose))
        return
    try:
        hub.keys.replace(file.read())
    except (OSError, KeyFileInvalid) as broken:
        hub.observing.keys_unreadable(broken)


async def reload_certificates(hub: Hub, *, asked: bool) -> None:
    """Apply the files to new handshakes; unusable files leave the previous certificates in force."""
    check = partial(problem_of, settings=hub.settings)
    for change in await asyncio.to_thread(hub.deps.certificates.reload, asked=asked, problem_of=check):
        hub.observing.certificate_changed(change)


# For each thread, gRPC's included: the usual 8 MiB of some dozens count against a limit on data and are hardly used.
_THREAD_STACK_BYTES = 2 * 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of malloc.h."""


async def serve(settings: Settings, *, worker: int | None = None, ready: Callable[[Hub], None]) -> None:
    """Serve until a signal; `ready` is called once calls are accepted.

    Raises StartRefused when the policy file is invalid, and what `open_hub` raises.
    """
    _set_process_limits()
    hub = await open_hub(settings, worker=worker)
    try:
        await _serve(hub, ready, is_worker=worker is not None)
    finally:
        await hub.close()


async def _serve(hub: Hub, ready: Callable[[Hub], None], *, is_worker: bool) -> None:
    change = load_first_policy(hub.policy_file)
    hub.observing.policy_reloaded(change)
    await warn_of_commands(hub)
    stop, reload = _on_signals()
    if is_worker:
        _stop_with_supervisor(stop)
    # Before the first call: objects made at the start live as long as the process.
    _freeze_collector()
    await hub.start()
    await hub.audit_event(EventType.HUB_STARTED, policy_revision=change.revision)
    ready(hub)
    follower = asyncio.create_task(follow(hub, reload))
    try:
        await stop.wait()
    finally:
        # Before the hub is closed, because a reload under way would open what is just being closed.
        follower.cancel()
        await asyncio.wait({follower})
        with suppress(ToolFailure):  # the audit log reports its own failure, and the hub stops anyway
            await hub.audit_event(EventType.HUB_STOPPED, policy_revision=hub.policy.revision)


async def warn_of_commands(hub: Hub) -> None:
    """Warn when the policy allows commands that nothing would keep from the hub's disk and network."""
    # Trying bubblewrap starts a process: the start avoids that when it would have no effect.
    if landlock_abi() or not hub.policy.snapshot.document.commands:
        return
    with TemporaryDirectory(prefix="toolhub-") as folder:
        level = await Confinement(Paths(hub.settings).bubblewrap).level(Sandbox(), folder)
    if level == "rlimits":
        advice = "Install bubblewrap, or set `sandbox: {require_bubblewrap: true}` in the policy."
        hub.observing.log.warning(names.LOG_UNCONFINED, advice=advice)


def _set_process_limits() -> None:
    """Allow as many descriptors as possible, and have large blocks mapped one by one.

    The C library raises its threshold for what it maps by itself to the largest block that was freed, at most 32 MiB,
    and keeps smaller blocks. With a fixed threshold, blocks of messages are mapped and returned when they are freed
    (mallopt(3)).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _set_thread_stacks()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none, and keeps nothing
    if mallopt is not None:
        for parameter, value in ((_M_MMAP_THRESHOLD, 128 * 1024), (_M_TRIM_THRESHOLD, 1024 * 1024), (_M_ARENA_MAX, 2)):
            mallopt(parameter, value)


def _set_thread_stacks() -> None:
    """Set the stack size of threads that start from now on (pthread_setattr_default_np(3))."""
    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(128)  # a pthread_attr_t has at most 56 bytes on Linux' platforms
    set_default = getattr(library, "pthread_setattr_default_np", None)
    if set_default is not None and library.pthread_attr_init(attributes) == 0:
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_THREAD_STACK_BYTES))
        set_default(attributes)
        library.pthread_attr_destroy(attributes)


def _freeze_collector() -> None:
    """Freeze the objects made at the start, which live as long as the process: the collector need not traverse them.

    Measured (docs/performance.md): frequent full collections cost a governed call about a twentieth of its time. The
    middle generation is collected while it is small: the total cost is the same, and a pause is 13 ms at most rather
    than 50 while a source's lists of tools fill it. The young one is collected while it is in the processor's caches:
    gRPC leaves six objects a call in a cycle, and collecting 20,000 of them took 12 to 40 ms at once.
    """
    # Frozen objects are never traversed again, and a full collection no longer blocks the loop for as long. No
    # collection before: finding half a megabyte of garbage among them takes 0.1 s.
    gc.freeze()
    gc.set_threshold(2_000, 50, 200)


def _stop_with_supervisor(stop: asyncio.Event) -> None:
    """Stop when standard input ends: then the supervisor is gone, and nobody else would stop this worker."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def on_end() -> None:
        # A pipe stays readable at its end: the reader would be called without pause.
        loop.remove_reader(descriptor)
        stop.set()

    loop.add_reader(descriptor, on_end)


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return (stop, reload) events, set by SIGTERM or SIGINT, and by SIGHUP."""
    loop, stop, reload = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    return stop, reload
