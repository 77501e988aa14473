"""Opens, reads, follows and closes the sources of sources.yaml.

A source that cannot be opened (a missing secret, a package that is not installed) is reported as DOWN with the reason
and affects neither the hub nor another source.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from toolhub_service.adapters.source_kind import Opener, SourceDeps, SourceKind
from toolhub_service.app.config_files.editing import stamp_of
from toolhub_service.app.config_files.sources_file import SourcesDocument, SourcesFile, values_of
from toolhub_service.app.kinds import BY_TOOL_KIND, kind_of
from toolhub_service.app.wiring.deps import Deps, own_files
from toolhub_service.app.wiring.stores import not_installed
from toolhub_service.budget.ledger import Budgets
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.ports import Adapter, InnerCalls
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import REGISTERED_SOURCE, ToolKind, ToolSpec, ToolState
from toolhub_service.registry.discovery.sources import Sources
from toolhub_service.registry.names import check_name, check_not_reserved
from toolhub_service.runtime.route import UnreadTool
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.sandbox.hidden import HiddenPaths
from toolhub_service.sections.source_config import ClientTls, SecretRef, Source, ValueMissing, resolve_value
from toolhub_service.settings.loading import SettingsInvalid
from toolhub_service.telemetry import names
from toolhub_service.telemetry.sources import SourceTelemetry
from toolhub_service.telemetry.trace_context import current_trace_meta, current_traceparent
from toolhub_service.tools.programs.interpreter import Interpreter


def references_digest(source: Source) -> str:
    """Return SHA-256 (hex) over the secrets and certificates that a source refers to; it changes when one of them
    does."""
    found: list[str] = []
    for value in values_of(source).values():
        if isinstance(value, SecretRef):
            try:
                found.append(resolve_value(value))
            except ValueMissing as missing:
                found.append(str(missing))
    tls = getattr(source, "tls", ClientTls())
    certificates = (tls.ca_file, tls.certificate_file, tls.key_file)
    found += [str(stamp_of(Path(path).expanduser())) for path in certificates if path]
    # A digest, so that the secrets need not stay in memory for comparison. NUL is in no variable.
    return sha256("\0".join(found).encode("utf-8", "surrogateescape")).hexdigest()


_LOGIN_READ_S = 10.0
_CODE = "A tool of kind {} is code: configure it under `tools.custom` or `tools.entry_points`"


@dataclass(slots=True, kw_only=True)
class SourceRuntime:
    """Made by `make_sourcing`; `start`, then `reload` from time to time, then `close`."""

    deps: Deps
    sources: Sources
    adapters: dict[ToolKind, Adapter]
    """The pipeline's adapters: a kind's adapter is added when its first source is opened."""
    file: SourcesFile
    running: RunningJobs
    artifacts: ArtifactService
    observer: SourceTelemetry
    budgets: Budgets
    inner_calls: Callable[[GrantedCall], InnerCalls]
    programs: Interpreter
    vault: Vault
    _openers: dict[ToolKind, Opener] = field(default_factory=dict)
    _entries: dict[str, Source] = field(default_factory=dict)
    _reference_digests: dict[str, str] = field(default_factory=dict)
    """The references each was opened with, besides its entry in the file."""
    _broken: set[str] = field(default_factory=set)
    """Sources that could not be opened; retried at every reload."""
    _document: SourcesDocument | None = None
    """The file as last read; None when that was invalid, or is to be read again."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_closed: bool = False

    async def start(self) -> None:
        """Start to read the sources of the file; returns at once. Raises SettingsInvalid when the file is invalid."""
        self._document = self.file.load()
        await self._apply(self._document)
        await self.sources.start()

    async def reload(self, *, asked: bool) -> None:
        """Follow the file when it has changed, or on request; an invalid one keeps the current sources.

        Takes as long as the slowest removed source takes to close: up to half a minute.
        """
        if not asked and not self.file.has_changed():
            return
        self._document = None
        try:
            await self.follow_file()
        except SettingsInvalid as invalid:
            log = self.deps.observing.log
            log.error(names.LOG_SOURCES_REJECTED, problem=str(invalid))  # noqa: TRY400 - the message is all there is

    async def follow_file(self) -> None:
        """Apply the file, if it has changed, and retry sources that could not be opened.

        Takes as long as `reload`. Raises SettingsInvalid when the file is invalid; the current sources stay.
        """
        known = None if self.file.has_changed() else self._document
        # Reset until it is applied: after a failure or cancellation it is read again.
        self._document = None
        document = self._document = self.file.load() if known is None else known
        await self._apply(document)
        if document is not known:
            self.deps.observing.log.info(names.LOG_SOURCES_LOADED, sources=len(document.sources))

    async def close(self) -> None:
        self._is_closed = True
        async with self._lock:
            await self.sources.close()
        await self.vault.close()

    def unread(self, tool: str) -> UnreadTool | None:
        """Return what is known of a tool whose source has not been read; as `runtime.route.Unread`."""
        reason = self.sources.unread_reason(tool)
        return UnreadTool(reason, self.stand_ins(tool)) if reason else None

    def stand_ins(self, tool: str) -> tuple[ToolSpec, ...]:
        """Return the tool of that full name as policy may see it once its source offers it: with each set of
        capabilities that sources.yaml names there; empty where there is no such source."""
        name = tool.partition("/")[0]
        entry = self._entries.get(name)
        if entry is None:
            return ()
        kind = kind_of(entry).kind
        own = frozenset(entry.capabilities or (f"{kind.value}:{name}",))
        sets = {own, *(frozenset(each.capabilities) for each in entry.tools.values() if each.capabilities is not None)}
        return tuple(_stand_in(tool, kind, name, capabilities) for capabilities in sets)

    def relays(self, name: str) -> frozenset[str]:
        """Return which requests of the source's server go to the client of a call; empty where there is no source."""
        entry = self._entries.get(name)
        return frozenset() if entry is None else frozenset(kind_of(entry).relays(entry))

    async def _apply(self, document: SourcesDocument) -> None:
        """Close the sources that are gone or changed, then open the new ones; the others are left alone."""
        wanted = document.sources
        async with self._lock:
            # A reload that waited for the lock may run after `close`: it must open nothing any more.
            if self._is_closed:
                return
            changed = [
                (name, entry) for name, entry in self._entries.items() if self._has_changed(name, wanted.get(name))
            ]
            gone = [(name, entry) for name, entry in changed if not (name in self._broken and name in wanted)]
            # Concurrently, as each may take seconds to end its processes. New ones are opened once these are closed.
            await asyncio.gather(*(self._close_source(name, entry) for name, entry in gone))
            for name, entry in wanted.items():
                if name not in self._entries or name in self._broken:
                    await self._open_source(name, entry)

    def _has_changed(self, name: str, wanted: Source | None) -> bool:
        if wanted is None or wanted != self._entries[name] or name in self._broken:
            return True
        return wanted.enabled and references_digest(wanted) != self._reference_digests[name]

    async def _close_source(self, name: str, entry: Source) -> None:
        del self._entries[name]
        self._broken.discard(name)
        await self.sources.remove(name)
        opener = self._openers.get(kind_of(entry).kind)
        if opener is not None:
            opener.forget(name)
        # A later source of that name begins with a closed breaker, without the failures of another server.
        upstream = f"{kind_of(entry).name}:{name}"
        self.budgets.forget(upstream)
        self.deps.observing.metrics.forget_upstream(upstream)
        self.observer.forget_source(name)

    async def _open_source(self, name: str, entry: Source) -> None:
        """Open a source; a failed one of that name stays listed until then."""
        wrong = await self._load_kind(kind_of(entry)) if entry.enabled else ""
        if name in self._broken:
            await self._close_source(name, self._entries[name])  # there is nothing to close, so no other task runs here
        self._entries[name] = entry
        if not entry.enabled:
            self._add_unread(name, entry, SourceState.DISABLED, "switched off in sources.yaml")
            return
        self._reference_digests[name] = references_digest(entry)
        if wrong:
            self._mark_broken(name, entry, wrong)
        else:
            self._make_source(name, entry)

    async def _load_kind(self, kind: SourceKind[Any]) -> str:
        """Load the opener of a kind; return why it cannot be loaded, empty when it was."""
        if kind.kind not in self._openers:
            try:
                # In a thread, so that calls go on: the MCP SDK takes most of a second to import.
                make = await asyncio.to_thread(kind.load_opener)
            except ModuleNotFoundError:
                return not_installed(f"A source of kind {kind.name}", kind.name).message
            opener = self._openers[kind.kind] = make(self._source_deps())
            self.adapters[kind.kind] = opener.adapter
        return ""

    def _source_deps(self) -> SourceDeps:
        deps = self.deps
        return SourceDeps(
            redactor=deps.redactor,
            clock=deps.clock,
            randomness=deps.randomness,
            running=self.running,
            artifacts=self.artifacts,
            observer=self.observer,
            resource_news=deps.resource_news,
            trace=current_traceparent,
            trace_meta=current_trace_meta,
            tracer=deps.observing.tracing.tracer,
            keep_raw=deps.settings.results.show_raw,
            trusted_namespaces=deps.settings.tools.trusted_namespaces,
            inner_calls=self.inner_calls,
            programs=self.programs,
            script_python=deps.script_python,
            data_dir=deps.paths.data_dir.absolute(),
            hides=self._hidden_paths,
            ladder=deps.ladder,
            vault=self.vault,
        )

    def _hidden_paths(self) -> HiddenPaths | None:
        tools = self.deps.settings.tools
        if tools.unconfined_workers:
            return None
        return HiddenPaths(own_files(self.deps.settings), Confinement(self.deps.paths.bubblewrap).bubblewrap)

    def _make_source(self, name: str, entry: Source) -> None:
        try:
            opened = self._openers[kind_of(entry).kind].open(name, entry)
            self.sources.add(
                opened.source, refresh_s=entry.refresh_s, restored=opened.restored, registered=opened.registered
            )
        except HubFailure as refused:
            self._mark_broken(name, entry, refused.message)
        except (ValueError, OSError) as wrong:
            # Redacted, because an error of a library may quote a URL with its password.
            self._mark_broken(name, entry, self.deps.redactor.text(str(wrong)))

    def _mark_broken(self, name: str, entry: Source, reason: str) -> None:
        self._broken.add(name)
        text = f"{reason.removesuffix('.')}; it is looked at again on SIGHUP and on `toolhub sources refresh`"
        self.observer.on_reading(self._add_unread(name, entry, SourceState.DOWN, text))

    def _add_unread(self, name: str, entry: Source, state: SourceState, reason: str) -> SourceStatus:
        opener = self._openers.get(kind_of(entry).kind)
        endpoint = opener.endpoint(name, entry) if opener is not None else ""
        kind = kind_of(entry)
        status = SourceStatus(name, kind.kind, state, reason, endpoint=endpoint, trust=kind.trust_of(entry))
        self.sources.add_disabled(status)
        return status


def _stand_in(tool: str, kind: ToolKind, source: str, capabilities: frozenset[str]) -> ToolSpec:
    return ToolSpec(
        name=tool,
        kind=kind,
        description="",
        input_schema={},
        output_schema={},
        source=source,
        capabilities=capabilities,
        state=ToolState.UNAVAILABLE,
    )


class ConfiguredSources(msgspec.Struct, frozen=True):
    """Implements `SourceService`. A refresh applies sources.yaml first, so that

    a new entry is found, a source whose secret has appeared is opened, and the caller, not only the log, learns of an
    invalid file.
    """

    sourcing: SourceRuntime
    _reloads: set[asyncio.Task[None]] = msgspec.field(default_factory=set)

    def statuses(self) -> Sequence[SourceStatus]:
        return self.sourcing.sources.statuses()

    def relays(self, source: str) -> frozenset[str]:
        return self.sourcing.relays(source)

    def stand_ins(self, tool: str) -> Sequence[ToolSpec]:
        return self.sourcing.stand_ins(tool)

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        """Refresh sources.

        Also raises HubFailure FAILED_PRECONDITION when the file is invalid; then nothing was read.
        """
        reload = asyncio.create_task(self.sourcing.follow_file(), name="sources.yaml")
        self._reloads.add(reload)
        reload.add_done_callback(self._on_reloaded)
        try:
            await asyncio.shield(reload)  # a cancelled caller must not leave a source half closed
        except SettingsInvalid as invalid:
            message = f"{invalid}. Nothing was read, and the sources there are stay: `toolhub sources check` helps"
            raise HubFailure(Reason.SOURCES_INVALID, message) from invalid
        return await self.sourcing.sources.refresh(sources)

    async def read_after_login(self, source: str) -> None:
        """Read a source that waited for a login, and return when that is done, or has taken `_LOGIN_READ_S`: the call
        that follows a login shall find the tools."""
        if all(status.state is not SourceState.NEEDS_LOGIN for status in self.statuses() if status.name == source):
            return
        with suppress(TimeoutError):  # it goes on
            async with asyncio.timeout(_LOGIN_READ_S):
                await self.sourcing.sources.refresh([source])

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        return await self.sourcing.sources.pins(where, after=after, limit=limit)

    async def approved_version(self, pin: Pin) -> Pin | None:
        return await self.sourcing.sources.approved_version(pin)

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        return await self.sourcing.sources.decide(source, tool, digest, approve=approve, by=by, comment=comment)

    async def register(self, specs: Sequence[ToolSpec], *, replace: bool, by: str) -> Sequence[ToolSpec]:
        return await self.sourcing.sources.register([self._with_source(spec) for spec in specs], replace=replace, by=by)

    async def unregister(self, tool: str) -> bool:
        return await self.sourcing.sources.unregister(tool)

    def _with_source(self, spec: ToolSpec) -> ToolSpec:
        """Return the tool with the configured source that it belongs to.

        Raises HubFailure FAILED_PRECONDITION, which says what to configure, or PERMISSION_DENIED or INVALID_ARGUMENT
        for its name.
        """
        check_name(spec.name)
        check_not_reserved(spec.name)
        kind, name = BY_TOOL_KIND.get(spec.kind), spec.name.partition("/")[0]
        if kind is None or kind.registering:
            why = kind.registering if kind is not None else _CODE.format(spec.kind.value)
            message = f"{spec.name} is not registered. {why}."
            raise HubFailure(Reason.SOURCE_NOT_CONFIGURED, message, source=name, tool=spec.name)
        if spec.source not in (REGISTERED_SOURCE, name):
            message = f"a tool of the source `{spec.source}` is named `{spec.source}/…`, not `{spec.name}`"
            raise HubFailure(Reason.TOOL_NAME_INVALID, message, tool=spec.name)
        status = next((each for each in self.statuses() if each.name == name and each.kind is spec.kind), None)
        if status is None or status.state is SourceState.DISABLED:
            message = (
                f"{spec.name} is not registered: there is no source `{name}` of kind {kind.name} that is switched on. "
                f"Where its tools run is configured, never registered: add it to sources.yaml (`toolhub sources add "
                f"{name} --kind {kind.name}`)."
            )
            raise HubFailure(Reason.SOURCE_NOT_CONFIGURED, message, tool=spec.name, source=name)
        return dataclasses.replace(spec, source=name)

    def _on_reloaded(self, reload: asyncio.Task[None]) -> None:
        self._reloads.discard(reload)
        if not reload.cancelled():
            reload.exception()  # reported to the caller, if it still waits
