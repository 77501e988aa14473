"""Tools from elsewhere: the sources of sources.yaml, opened, read, followed, and closed.

A source that cannot be opened (a secret that is not there, a package that is not installed) is told as DOWN with the
reason and stops neither the hub nor another source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from toolhub_service.app.file_modes import problem_of
from toolhub_service.app.means import Means
from toolhub_service.app.source_footing import footing
from toolhub_service.app.source_opening import Opener
from toolhub_service.app.sources_file import SourcesFile
from toolhub_service.app.storing import Stores, not_installed
from toolhub_service.app.toolbox import Toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Adapter, AuditLog
from toolhub_service.domain.source import SourceState, SourceStatus, Trust
from toolhub_service.domain.tool import ToolKind
from toolhub_service.registry.discovery import Sources
from toolhub_service.settings.loading import SettingsInvalid
from toolhub_service.settings.sources import AnySource, LangChainSource, McpSource, SourcesDocument
from toolhub_service.settings.workflow_sources import ComfyUiSource, N8nSource
from toolhub_service.telemetry import names
from toolhub_service.telemetry.source_telemetry import SourceTelemetry

_KINDS: Final[dict[type[AnySource], ToolKind]] = {
    McpSource: ToolKind.MCP,
    LangChainSource: ToolKind.LANGCHAIN,
    N8nSource: ToolKind.N8N,
    ComfyUiSource: ToolKind.COMFYUI,
}


@dataclass(slots=True)
class Sourcing:
    """Made by `make_sourcing`; `start`, then `look` from time to time, then `close`."""

    means: Means
    sources: Sources
    adapters: dict[ToolKind, Adapter]
    """The pipeline's own: what a kind needs is put in when its first source is opened."""
    file: SourcesFile
    running: RunningJobs
    artifacts: ArtifactDesk
    observer: SourceTelemetry
    budgets: Budgets
    _openers: dict[ToolKind, Opener] = field(default_factory=dict)
    _entries: dict[str, AnySource] = field(default_factory=dict)
    _footings: dict[str, str] = field(default_factory=dict)
    """What each was opened with that does not stand in the file."""
    _broken: set[str] = field(default_factory=set)
    """Sources that could not be opened: tried again at every reload."""
    _document: SourcesDocument | None = None
    """What the file said last; None where that was not valid, or is to be read again."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_closed: bool = False

    async def start(self) -> None:
        """Begin to read what the file names; returns at once. Raises SettingsInvalid when the file is not valid."""
        self._document = self.file.load()
        await self._apply(self._document)
        await self.sources.start()

    async def look(self, *, asked: bool) -> None:
        """Follow the file when it has changed, or when somebody asks. An invalid one keeps the sources there are.

        Takes as long as the slowest source that goes takes to close: up to half a minute.
        """
        if not asked and not self.file.changed():
            return
        self._document = None
        try:
            await self.follow_file()
        except SettingsInvalid as invalid:
            log = self.means.observing.log
            log.error(names.LOG_SOURCES_REJECTED, problem=str(invalid))  # noqa: TRY400 - the message is all there is

    async def follow_file(self) -> None:
        """Do what the file says now, and try again to open what could not be opened; read only where it has changed.

        Takes as long as `look`. Raises SettingsInvalid when it is not valid; the sources there are stay.
        """
        known = None if self.file.changed() else self._document
        self._document = None
        document = self._document = self.file.load() if known is None else known
        await self._apply(document)
        if document is not known:
            self.means.observing.log.info(names.LOG_SOURCES_LOADED, sources=len(document.sources))

    async def close(self) -> None:
        self._is_closed = True
        async with self._turn:
            await self.sources.close()

    async def _apply(self, document: SourcesDocument) -> None:
        """Take away what is gone or another, then bring what is new: a source that did not change is left alone."""
        wanted = document.sources
        async with self._turn:
            if self._is_closed:
                return
            others = [(name, entry) for name, entry in self._entries.items() if self._is_other(name, wanted.get(name))]
            gone = [(name, entry) for name, entry in others if not (name in self._broken and name in wanted)]
            await asyncio.gather(*(self._take_away(name, entry) for name, entry in gone))
            for name, entry in wanted.items():
                if name not in self._entries or name in self._broken:
                    await self._bring(name, entry)

    def _is_other(self, name: str, wanted: AnySource | None) -> bool:
        if wanted is None or wanted != self._entries[name] or name in self._broken:
            return True
        return wanted.enabled and footing(wanted) != self._footings[name]

    async def _take_away(self, name: str, entry: AnySource) -> None:
        del self._entries[name]
        self._broken.discard(name)
        await self.sources.remove(name)
        opener = self._openers.get(_kind(entry))
        if opener is not None:
            opener.forget(name)
        upstream = f"{_kind(entry).value}:{name}"
        self.budgets.forget(upstream)
        self.means.observing.metrics.upstream_gone(upstream)
        self.observer.removed(name)

    async def _bring(self, name: str, entry: AnySource) -> None:
        """Begin with it; one of that name that could not be opened is known until the very moment of its return."""
        wrong = await self._prepare(_kind(entry)) if entry.enabled else ""
        if name in self._broken:
            await self._take_away(name, self._entries[name])  # there is nothing to close, so it lets nobody else run
        self._entries[name] = entry
        if not entry.enabled:
            self._not_read(name, entry, SourceState.DISABLED, "switched off in sources.yaml")
            return
        self._footings[name] = footing(entry)
        if wrong:
            self._cannot(name, entry, wrong)
        else:
            self._open(name, entry)

    async def _prepare(self, kind: ToolKind) -> str:
        """Have what opens sources of the kind; why there is none, empty when there is."""
        if kind not in self._openers:
            try:
                # In a thread, for calls go on meanwhile: the MCP SDK takes most of a second to import.
                make = await asyncio.to_thread(_maker, kind)
            except ModuleNotFoundError:
                return not_installed(f"A source of kind {kind.value}", kind.value).message
            opener = self._openers[kind] = make(self)
            self.adapters[kind] = opener.adapter
        return ""

    def _open(self, name: str, entry: AnySource) -> None:
        try:
            opened = self._openers[_kind(entry)].open(name, entry)
            self.sources.add(opened.source, refresh_s=entry.refresh_s, restored=opened.restored)
        except HubFailure as refused:
            self._cannot(name, entry, refused.message)
        except (ValueError, OSError) as wrong:
            self._cannot(name, entry, self.means.redactor.text(str(wrong)))

    def _cannot(self, name: str, entry: AnySource, reason: str) -> None:
        self._broken.add(name)
        told = f"{reason.removesuffix('.')}; it is looked at again on SIGHUP and on `toolhub sources refresh`"
        self.observer.refreshed(self._not_read(name, entry, SourceState.DOWN, told))

    def _not_read(self, name: str, entry: AnySource, state: SourceState, reason: str) -> SourceStatus:
        opener = self._openers.get(_kind(entry))
        endpoint = opener.endpoint(name, entry) if opener is not None else ""
        trust = Trust(entry.trust) if isinstance(entry, McpSource | N8nSource) else Trust.ALWAYS
        status = SourceStatus(name, _kind(entry), state, reason, endpoint=endpoint, trust=trust)
        self.sources.add_disabled(status)
        return status


def make_sourcing(
    means: Means,
    toolbox: Toolbox,
    stores: Stores,
    audit: AuditLog,
    budgets: Budgets,
    adapters: dict[ToolKind, Adapter],
    running: RunningJobs,
    artifacts: ArtifactDesk,
) -> Sourcing:
    observer = SourceTelemetry(audit, means.observing.metrics, means.observing.log, means.clock)
    sources = Sources(
        toolbox.catalog,
        stores.pins,
        means.clock,
        means.randomness,
        observer,
        builtins=toolbox.sources,
        breaker_of=_breakers(budgets),
        is_disabled=toolbox.is_disabled,
    )
    required, judge = bool(means.settings.sources.file), partial(problem_of, settings=means.settings)
    file = SourcesFile(means.paths.sources, required=required, judge=judge)
    return Sourcing(means, sources, adapters, file, running, artifacts, observer, budgets)


def _breakers(budgets: Budgets) -> Callable[[str], str]:
    """The state of an upstream's breaker; empty where nothing was called yet."""

    def of(upstream: str) -> str:
        return next((state.name for key, state in budgets.breaker_states() if key == upstream), "")

    return of


def _maker(kind: ToolKind) -> Callable[[Sourcing], Opener]:
    """Imports what sources of the kind need. Raises ModuleNotFoundError."""
    if kind is ToolKind.MCP:
        from toolhub_service.app.mcp_opening import McpOpener

        return lambda own: McpOpener(own.means, own.running, own.artifacts)
    if kind is ToolKind.N8N:
        from toolhub_service.app.n8n_opening import N8nOpener

        return lambda own: N8nOpener(own.means, own.running, own.artifacts)
    if kind is ToolKind.COMFYUI:
        from toolhub_service.app.comfyui_opening import ComfyUiOpener

        return lambda own: ComfyUiOpener(own.means, own.running, own.artifacts)
    from toolhub_service.app.langchain_opening import LangChainOpener

    return lambda own: LangChainOpener(own.means, own.observer)


def _kind(entry: AnySource) -> ToolKind:
    return _KINDS[type(entry)]
