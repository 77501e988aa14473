"""Wires the hub's own tools, built-in and custom ones without the disabled, and the search of all tools."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import msgspec

from toolhub_service import __version__
from toolhub_service.adapters.build_tool import Parts, ToolDescription, build_tool
from toolhub_service.adapters.core import CORE_SOURCE, CUSTOM_SOURCE, CoreAdapter, Workspaces, WorkspaceSharing
from toolhub_service.adapters.custom import CustomTools, ToolReference, is_trusted, load_custom_tools
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.credentials import open_hosts
from toolhub_service.app.wiring.deps import Deps, make_ladder, own_files
from toolhub_service.app.wiring.endpoints import endpoint_tools, make_databases
from toolhub_service.app.wiring.storage import Storage
from toolhub_service.app.wiring.stores import Stores
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.job_ports import JobService
from toolhub_service.domain.memory import MemoryStore
from toolhub_service.domain.ports import Clock, Resolver
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolKind, ToolState
from toolhub_service.egress.client import EgressClient
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.sql.check import load_parsers
from toolhub_service.guards.urls import parse_url
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.schema.compiled import check_schema
from toolhub_service.schema.relaxing import compile_relaxed
from toolhub_service.search.embedding import Embedder, ToolMeanings
from toolhub_service.search.search import ToolSearch
from toolhub_service.search.usage import UsageLearning
from toolhub_service.sections.source_config import SecretRef, SourceValues
from toolhub_service.settings.document import Settings
from toolhub_service.stores.memory.items import InProcessItems
from toolhub_service.telemetry import names
from toolhub_service.tools.database.connection import Database
from toolhub_service.tools.database.db_tools import db_tools
from toolhub_service.tools.desktop.screenshot import DesktopScreenshot
from toolhub_service.tools.disk_space.workspace_usage import WorkspaceUsage
from toolhub_service.tools.exec_run import ExecRun
from toolhub_service.tools.files.tools import fs_tools
from toolhub_service.tools.http.exchange import HttpServices
from toolhub_service.tools.http.host_credentials import HostCredentials
from toolhub_service.tools.http.tools import http_tools
from toolhub_service.tools.job_tools import job_tools
from toolhub_service.tools.memory_tools import MemoryRoom, MemoryTerms, Unbounded, memory_tools
from toolhub_service.tools.programs.bounds import ProgramLimits
from toolhub_service.tools.programs.interpreter import Interpreter
from toolhub_service.tools.programs.program_run import ProgramRun
from toolhub_service.tools.tool import Tool
from toolhub_service.tools.tool_describe import ToolDescribe
from toolhub_service.tools.util_tools import util_tools
from toolhub_service.tools.web.fetch import WebFetch
from toolhub_service.tools.web.page_reader import PageReader
from toolhub_service.tools.web.screenshot import WebScreenshot, find_browser
from toolhub_service.tools.web.search import SearchEngine, WebSearch, brave, searxng

_DAY_S = 86_400.0


class Searching(msgspec.Struct, frozen=True):
    """Made by `make_searching`; `start`, then `close`."""

    search: ToolSearch
    learning: UsageLearning | None
    """None when search.learn is off."""
    meanings: ToolMeanings | None
    """None when no embedder is configured."""
    notify: Callable[[str], None]
    """Called with each problem."""

    async def start(self) -> None:
        """Start indexing, learning and embedding in the background; returns at once."""
        await self.search.start(self.notify)
        if self.learning is not None:
            await self.learning.start()
        if self.meanings is not None:
            await self.meanings.start()

    async def close(self) -> None:
        if self.meanings is not None:
            await self.meanings.close()
        if self.learning is not None:
            await self.learning.close()
        await self.search.close()


def make_searching(deps: Deps, catalog: ToolCatalog, stores: Stores) -> Searching:
    """Return the search. Raises HubFailure when the configured embedder is unavailable."""
    redact, clock = deps.redactor.text, deps.clock

    def notify(problem: str) -> None:
        deps.observing.log.warning(names.LOG_SEARCH_TROUBLE, problem=problem)

    learning = None
    if deps.settings.search.learn:
        learning = UsageLearning(stores.usage, clock=clock, redact=redact, notify=notify)
        deps.observing.calls.learn = learning.learn_from_call
    search = ToolSearch(catalog, learnt=learning.of if learning is not None else None, unix_ms=clock.unix_ms)
    embedder = embedder_of(deps.settings)
    meanings = ToolMeanings(catalog, embedder, notify=notify, redact=redact) if embedder is not None else None
    return Searching(search, learning, meanings, notify)


def embedder_of(settings: Settings) -> Embedder | None:
    """Return the object that `search.embedder` names, called when it is a class or a function. Raises HubFailure."""
    path = settings.search.embedder
    if not path:
        return None
    module, _, name = path.partition(":")
    if not is_trusted(module, settings.tools.trusted_namespaces):
        raise _unusable(path, "its module is not in tools.trusted_namespaces")
    try:
        found = getattr(importlib.import_module(module), name)
        embedder: Embedder = found() if callable(found) else found
    except Exception as error:  # foreign code: whatever it raises, the operator sees its class
        raise _unusable(path, f"it could not be loaded: {type(error).__name__}") from error
    if not isinstance(getattr(embedder, "dimension", None), int):
        raise _unusable(path, "it has no `dimension`")
    return embedder


def _unusable(path: str, why: str) -> HubFailure:
    return HubFailure(StartReason.EMBEDDER_UNUSABLE, f"search.embedder {path}: {why}.", path=path)


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    adapter: CoreAdapter
    catalog: ToolCatalog
    custom: CustomTools
    http: EgressClient
    resolver: SystemResolver
    web: Web
    interpreter: Interpreter
    is_disabled: Callable[[str], bool]
    """By full name: whether the configuration switched a tool off."""
    databases: Sequence[Database] = ()

    async def start(self) -> None:
        """Load what the first call of a tool would have to wait for."""
        if self.databases:
            await asyncio.to_thread(load_parsers, [database.terms for database in self.databases])

    async def close(self) -> None:
        """End the processes of tools; close pooled connections and the resolver's threads."""
        await self.interpreter.close()
        await self.web.close()
        await self.http.aclose()
        self.resolver.close()

    def sources(self) -> Sequence[SourceStatus]:
        """Return the built-in and the custom source."""
        specs = self.catalog.all()
        broken = len(self.custom.unavailable)
        custom = [spec for spec in specs if spec.source == CUSTOM_SOURCE]
        core = [spec for spec in specs if spec.source == CORE_SOURCE]
        # A built-in tool without its library or configuration is no problem: it reports that itself.
        statuses = [SourceStatus(CORE_SOURCE, ToolKind.CORE, tool_count=len(core))]
        if custom:
            state = SourceState.PARTIAL if broken else SourceState.READY
            reason = f"{broken} custom tools could not be loaded" if broken else ""
            statuses.append(SourceStatus(CUSTOM_SOURCE, ToolKind.CORE, state, reason, tool_count=len(custom)))
        return statuses


def make_workspaces(settings: Settings, usage: WorkspaceUsage | None = None) -> Workspaces:
    """`usage`: None where no call writes."""
    of, keep_s = settings.workspace, settings.workspace.keep_days * _DAY_S
    # A folder must not vanish beneath a job that only reads in it, and no job runs for longer than a day.
    kept_s = max(keep_s, _DAY_S) if keep_s else 0.0
    return Workspaces(str(Paths(settings).workspaces), WorkspaceSharing(of.per), kept_s, usage)


def _memory_terms(settings: Settings) -> MemoryTerms:
    of = settings.memory
    return MemoryTerms(of.max_items, of.max_item_chars, of.ttl_s)


def _custom_tools(settings: Settings, databases: Sequence[Database]) -> CustomTools:
    of = settings.tools
    parts = Parts(databases, Paths(settings).bubblewrap, of.trusted_namespaces)
    return load_custom_tools(
        [ToolReference(custom.tool, custom.args) for custom in of.custom if not custom.type],
        trusted_namespaces=of.trusted_namespaces,
        allowed_entry_points=of.entry_points,
        built=[
            (each.name or each.type, partial(build_tool, ToolDescription(each.type, each.name, each.config), parts))
            for each in of.custom
            if each.type
        ],
    )


def make_toolbox(
    deps: Deps, stores: Stores, storage: Storage, jobs: JobService, artifacts: ArtifactService, vault: Vault
) -> Toolbox:
    """Return the toolbox of a serving hub. Raises HubFailure when callers' credentials of hosts cannot be kept."""
    hosts = open_hosts(deps, vault)
    return open_toolbox(
        deps.settings,
        deps.clock,
        deps.redactor,
        jobs,
        artifacts=artifacts,
        memory=stores.memory,
        ladder=deps.ladder,
        hosts=hosts,
        storage=storage,
    )


def open_toolbox(
    settings: Settings,
    clock: Clock,
    redactor: Redactor,
    jobs: JobService,
    *,
    artifacts: ArtifactService | None = None,
    memory: MemoryStore | None = None,
    ladder: Ladder | None = None,
    hosts: HostCredentials | None = None,
    storage: Storage | None = None,
) -> Toolbox:
    """Return the registered tools, ready to call. `memory`, `ladder`, `storage`: None when no tool is called."""
    resolver = SystemResolver()
    transport = GuardedTransport(resolver, max_connections=settings.tools.http_connections)
    user_agent = settings.tools.user_agent or f"tool-hub/{__version__}"
    http = EgressClient(transport, user_agent=user_agent)
    web = open_web(settings, http, resolver, redactor, hosts)
    databases = make_databases(settings, redactor)
    interpreter = Interpreter(
        ProgramLimits(**msgspec.structs.asdict(settings.programs)), ladder or make_ladder(settings)
    )
    custom = _custom_tools(settings, databases)
    remembered: MemoryRoom = Unbounded() if storage is None else storage.remembered
    usage = None if storage is None else storage.usage
    built_in: list[Tool[Any, Any, Any]] = [
        *fs_tools(),
        *http_tools(http, redactor, hosts),
        ExecRun(Confinement(Paths(settings).bubblewrap), own_files(settings)),
        *db_tools(databases),
        *job_tools(jobs),
        ToolDescribe(),
        *memory_tools(memory or InProcessItems(), _memory_terms(settings), remembered, clock),
        *endpoint_tools(settings, transport, redactor, user_agent),
        ProgramRun(interpreter, clock),
        *util_tools(clock),
        *web.tools,
    ]
    adapter = CoreAdapter(
        built_in, make_workspaces(settings, usage), custom_tools=custom.tools, artifact_service=artifacts
    )
    is_disabled = _match_disabled(settings)
    return Toolbox(
        adapter=adapter,
        catalog=_make_catalog(adapter, custom, is_disabled),
        custom=custom,
        http=http,
        resolver=resolver,
        web=web,
        interpreter=interpreter,
        is_disabled=is_disabled,
        databases=databases,
    )


def _match_disabled(settings: Settings) -> Callable[[str], bool]:
    """Return whether the configuration switched off a tool, by its full name."""
    disabled = tuple(settings.tools.disabled)
    return lambda name: any(fnmatchcase(name, pattern) for pattern in disabled)


def _make_catalog(adapter: CoreAdapter, custom: CustomTools, is_disabled: Callable[[str], bool]) -> ToolCatalog:
    catalog = ToolCatalog(check_schema=check_schema, check_relaxed=compile_relaxed)
    catalog.register_builtins(adapter.specs())
    catalog.register_all([*adapter.custom_specs(), *(tool.spec() for tool in custom.unavailable)])
    for spec in tuple(catalog.all()):
        if is_disabled(spec.name):
            catalog.set_state(spec.name, ToolState.DISABLED, "disabled by configuration (tools.disabled)")
    return catalog


class Web(msgspec.Struct, frozen=True):
    """Made by `open_web`; no process runs until a tool is called."""

    tools: Sequence[Tool[Any, Any]]
    reader: PageReader

    async def close(self) -> None:
        """End the processes that read pages."""
        await self.reader.close()


def open_web(
    settings: Settings, http: EgressClient, resolver: Resolver, redactor: Redactor, hosts: HostCredentials | None = None
) -> Web:
    """Return the tools; those that lack something have the reason."""
    services = HttpServices(http, redactor, hosts=hosts)
    reader = PageReader()
    engine, lacking = _search_engine(settings, redactor)
    tools = (
        WebFetch(services, reader),
        WebSearch(services, engine, lacking),
        WebScreenshot(find_browser(settings.browser.executable, settings.browser.sandbox), resolver),
        DesktopScreenshot(settings.desktop.display or os.environ.get("DISPLAY", "")),
    )
    return Web(tools, reader)


def _search_engine(settings: Settings, redactor: Redactor) -> tuple[SearchEngine | None, str]:
    """Return the configured engine, or what has to be configured."""
    of = settings.web.search
    if not of.provider:
        return None, (
            "set web.search.provider: `brave` with an API key in the variable BRAVE_API_KEY, or `searxng` with "
            "web.search.base_url"
        )
    if of.base_url and not _is_web(of.base_url):
        return None, "web.search.base_url must be an http:// or https:// URL without user name and query"
    if of.provider == "searxng":
        return (searxng(of.base_url), "") if of.base_url else (None, "set web.search.base_url to the SearXNG server")
    where = SecretRef(file=of.api_key_file) if of.api_key_file else SecretRef(env=of.api_key_env)
    read_key = partial(SourceValues(redactor).one, where)
    try:
        read_key()
    except (ValueError, OSError):
        named = f"a readable file {of.api_key_file}" if of.api_key_file else f"the variable {of.api_key_env}"
        return None, f"set {named} for the hub: the API key of Brave Search (web.search.api_key_env or api_key_file)"
    return brave(read_key, of.base_url), ""


def _is_web(url: str) -> bool:
    try:
        parse_url(url)
    except ToolFailure:
        return False
    return "?" not in url and "#" not in url
