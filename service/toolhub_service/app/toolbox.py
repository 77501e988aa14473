"""Which tools this hub offers: the built-in ones, the custom ones of the configuration, less the disabled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from toolhub_service import __version__
from toolhub_service.adapters.core import CORE_SOURCE, CUSTOM_SOURCE, CoreAdapter
from toolhub_service.adapters.custom import CustomTools, ToolReference, load_custom_tools
from toolhub_service.adapters.workspaces import Workspaces, WorkspaceSharing
from toolhub_service.app.paths import Paths
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.job_ports import JobDesk
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolKind, ToolState
from toolhub_service.guards.secrets import Redactor
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.schema.compiled import check_schema
from toolhub_service.settings.document import Settings
from toolhub_service.tools.confinement import Confinement
from toolhub_service.tools.egress.client import EgressClient
from toolhub_service.tools.egress.resolver import SystemResolver
from toolhub_service.tools.egress.transport import GuardedTransport
from toolhub_service.tools.exec_run import ExecRun
from toolhub_service.tools.fs_tools import fs_tools
from toolhub_service.tools.http_tools import http_tools
from toolhub_service.tools.job_tools import job_tools
from toolhub_service.tools.tool import Tool
from toolhub_service.tools.util_tools import util_tools


@dataclass(frozen=True, slots=True)
class Toolbox:
    adapter: CoreAdapter
    catalog: ToolCatalog
    custom: CustomTools
    http: EgressClient
    resolver: SystemResolver
    is_disabled: Callable[[str], bool]
    """By full name: whether the configuration switched it off."""

    async def close(self) -> None:
        """Close pooled connections and the resolver's threads."""
        await self.http.aclose()
        self.resolver.close()

    def sources(self) -> Sequence[SourceStatus]:
        """The built-in and the custom source."""
        specs = self.catalog.all()
        broken = len(self.custom.unavailable)
        custom = [spec for spec in specs if spec.source == CUSTOM_SOURCE]
        core = [spec for spec in specs if spec.source == CORE_SOURCE]
        unmet = sum(spec.state is ToolState.UNAVAILABLE for spec in core)
        statuses = [
            SourceStatus(
                CORE_SOURCE, ToolKind.CORE, tool_count=len(core), reason=f"{unmet} unavailable" if unmet else ""
            )
        ]
        if custom:
            state = SourceState.PARTIAL if broken else SourceState.READY
            reason = f"{broken} custom tools could not be loaded" if broken else ""
            statuses.append(SourceStatus(CUSTOM_SOURCE, ToolKind.CORE, state, reason, tool_count=len(custom)))
        return statuses


def open_toolbox(
    settings: Settings, clock: Clock, redactor: Redactor, jobs: JobDesk, artifacts: ArtifactDesk | None = None
) -> Toolbox:
    """Everything that can be called, registered and ready."""
    resolver = SystemResolver()
    transport = GuardedTransport(resolver, max_connections=settings.tools.http_connections)
    http = EgressClient(transport, user_agent=settings.tools.user_agent or f"tool-hub/{__version__}")
    custom = _custom_tools(settings)
    built_in: list[Tool[Any, Any]] = [
        *fs_tools(),
        *http_tools(http, redactor),
        ExecRun(Confinement(bubblewrap_of(settings.tools.bubblewrap))),
        *job_tools(jobs),
        *util_tools(clock),
    ]
    workspaces = Workspaces(str(Paths(settings).workspaces), WorkspaceSharing(settings.workspace.per))
    adapter = CoreAdapter(built_in, workspaces, custom_tools=custom.tools, desk=artifacts)
    catalog = ToolCatalog(check_schema=check_schema)
    catalog.register_builtins(adapter.specs())
    catalog.register_all([*adapter.custom_specs(), *(tool.spec() for tool in custom.unavailable)])
    is_disabled = _disabled(settings.tools.disabled)
    for spec in tuple(catalog.all()):
        if is_disabled(spec.name):
            catalog.set_state(spec.name, ToolState.DISABLED, "disabled by configuration (tools.disabled)")
    return Toolbox(adapter, catalog, custom, http, resolver, is_disabled)


def _custom_tools(settings: Settings) -> CustomTools:
    names = settings.tools.entry_points
    return load_custom_tools(
        [ToolReference(custom.tool, custom.args) for custom in settings.tools.custom],
        trusted_namespaces=settings.tools.trusted_namespaces,
        allowed_entry_points=True if "*" in names else list(names),
    )


def bubblewrap_of(setting: str) -> str | None:
    """None: look for it; empty: do without."""
    return "" if setting == "off" else setting or None


def _disabled(globs: Iterable[str]) -> Callable[[str], bool]:
    patterns = tuple(globs)
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)
