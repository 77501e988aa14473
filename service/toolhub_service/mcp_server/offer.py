"""Tools as shown to a client: names of at most 60 characters, definitions, and the mode.

A list holds tools that can be called now and that policy could allow the caller; hidden and missing tools look alike.
Definitions are made once and kept while the tool is unchanged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.source import SourceState, known_to
from toolhub_service.domain.tool import Primitive, ToolSpec, ToolState
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.registry.export.definitions import Dialect, Exporter
from toolhub_service.registry.export.exported_names import MCP_MAX_CHARS, ExportedNames, plain_name
from toolhub_service.registry.export.names_given import NamesGiven
from toolhub_service.registry.export.stubs import FunctionName
from toolhub_service.schema import canonical_json

EVERY: Final = "*"
"""In place of a source's name: all."""
TTL_MS: Final = 60_000
"""How long a client may cache a list; one that listens for changes is notified sooner."""

FIND_IT: Final = "Find one with search_tools."
"""Where to look for a tool, in the words of this entrance."""

RUN_PROGRAM: Final = "run_program"
PROGRAM_TOOL: Final = "core/program.run"
"""What it is in the catalog: a call of it is a call of this tool."""
Mode = Literal["full", "search", "program"]

_PAGE_MAX_BYTES: Final = 2 * 1024 * 1024
_TOKEN_BYTES: Final = 4


# Many clients abort a call after a minute.
_LONG_S: Final = 60.0
_ADVICE: Final = (
    "Runs as a job: it answers with a job's id at once; ask job_result.",
    "May take longer than a minute: job_start starts it as a job.",
)


def lasts(spec: ToolSpec) -> bool:
    """Return whether a call may take longer than clients wait."""
    return spec.limits.usual_s > _LONG_S


_READ: Final = frozenset({SourceState.READY, SourceState.PARTIAL, SourceState.DISABLED})
"""States in which a tool that is not in the catalog does not exist."""


class Definition(NamedTuple):
    spec: ToolSpec
    tool: dict[str, Any]
    size_bytes: int


class Page(NamedTuple):
    tools: Sequence[dict[str, Any]]
    next_cursor: str | None


class Offer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._exporter = Exporter(engine.catalog)
        self._reserved = frozenset({RUN_PROGRAM})
        self._names = ExportedNames((), MCP_MAX_CHARS)
        self._names_of = ""
        self._names_given = NamesGiven(engine.catalog)
        self._definitions: dict[tuple[str, bool], Definition] = {}
        """By name, and whether with the argument for a plan."""

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve names: no tool of the catalog is shown under one of them."""
        self._reserved |= frozenset(names)
        self._names_of = ""

    def tool_of(self, name: str) -> str:
        """Return the tool that a client names by its listed name, by that of any other export, or by the catalog's."""
        known = self._current_names().original(name) or (PROGRAM_TOOL if name == RUN_PROGRAM else "")
        if not known and "/" not in name:
            known = self._names_given.tool_of(name)
        return known or self._of_silent_source(name)

    def tool_to_call(self, principal: Principal, name: str) -> str:
        """Return the tool as `tool_of`; one that the principal may not know of by `name` itself, if the pipeline finds
        it by that name: the refusal then is made of what the client knows, as for a tool that does not exist."""
        tool = self.tool_of(name)
        spec = self._engine.catalog.get(tool)
        is_hidden = spec is not None and not self._engine.policy.could_allow(principal, spec)
        return name if is_hidden and self._names_given.tool_of(name) == tool else tool

    def name_of(self, tool: str) -> str:
        """Return the listed name of a tool of the catalog; that which any other would have."""
        try:
            return self._current_names().exported_name(tool)
        except KeyError:
            return plain_name(tool, MCP_MAX_CHARS)

    def _of_silent_source(self, name: str) -> str:
        """Return the tool of a source that has not been read, so that its refusal says so; else the name."""
        for status in self._engine.sources():
            prefix = plain_name(f"{status.name}/", MCP_MAX_CHARS)
            if not status.ok and name.startswith(prefix):
                return f"{status.name}/{name.removeprefix(prefix)}"
        return name

    def may_see(self, principal: Principal, spec: ToolSpec) -> bool:
        return spec.state is ToolState.ACTIVE and self._engine.policy.could_allow(principal, spec)

    def visible(self, principal: Principal, tool: str) -> ToolSpec | None:
        """Return the tool, if it can be called now and the principal may know of it."""
        spec = self._engine.catalog.get(tool)
        return spec if spec is not None and self.may_see(principal, spec) else None

    def absence(self, principal: Principal, name: str) -> ToolError:
        """Return why a tool cannot be described that a client names, and that is not `visible`."""
        tool = self.tool_of(name)
        spec = self._engine.catalog.get(tool)
        is_away = spec is not None and spec.state is ToolState.UNAVAILABLE
        if spec is not None and is_away and self._engine.policy.could_allow(principal, spec):
            why = f"{name} cannot be used now: {spec.state_reason.removesuffix('.')}."
            return ToolError(kind=ErrorKind.TOOL_UNAVAILABLE, message=why)
        source = tool.partition("/")[0]
        shown = known_to(principal, self._engine.sources())
        silent = next((status for status in shown if status.name == source and status.state not in _READ), None)
        may_know = any(self._engine.policy.could_allow(principal, each) for each in self._engine.stand_ins(tool))
        if spec is None and silent is not None and may_know:
            why = f"{name} cannot be used now, because its source `{source}` cannot: {silent.reason.removesuffix('.')}."
            return ToolError(kind=ErrorKind.TOOL_UNAVAILABLE, message=why)
        message = f"There is no tool named {name!r} that you may call. {FIND_IT}"
        return ToolError(kind=ErrorKind.TOOL_NOT_FOUND, message=message)

    def definition(self, principal: Principal, spec: ToolSpec) -> Definition:
        """Return the tool as listed for a principal: with the argument for a plan where its call may need one."""
        may_need_plan = self._engine.policy.could_require_plan(principal, spec)
        known = self._definitions.get((spec.name, may_need_plan))
        # By identity: the catalog keeps one object as long as the tool is unchanged.
        if known is not None and known.spec is spec:
            return known
        name = self.name_of(spec.name)
        tool = dict(self._exporter.definition(Dialect.MCP, name, spec, may_need_plan=may_need_plan))
        if spec.cost.is_async:
            tool.pop("outputSchema", None)  # it answers with a job, and a client would miss the output
        advice = _ADVICE[0] if spec.cost.is_async else _ADVICE[1] if lasts(spec) else ""
        if advice:
            tool["description"] = f"{tool.get('description', '')}\n\n{advice}".strip()
        made = Definition(spec, tool, len(canonical_json.dumps(tool)))
        self._definitions[spec.name, may_need_plan] = made
        return made

    def page(self, principal: Principal, cursor: str) -> Page:
        """Return callable tools by name, after `cursor`: as many as an answer may hold."""
        specs = [spec for spec in self._engine.catalog.all() if _is_tool(spec) and self.may_see(principal, spec)]
        start = bisect_right(specs, cursor, key=lambda spec: spec.name) if cursor else 0
        tools: list[dict[str, Any]] = []
        size_bytes = 0
        for spec in specs[start:]:
            definition = self.definition(principal, spec)
            size_bytes += definition.size_bytes
            # At least one definition: a single one beyond the bound must not make an empty page.
            if tools and size_bytes > _PAGE_MAX_BYTES:
                return Page(tools, specs[start + len(tools) - 1].name)
            tools.append(definition.tool)
        return Page(tools, None)

    def program_tool(self, principal: Principal) -> dict[str, Any] | None:
        """Return `run_program` as listed; None when the principal can run no programs."""
        spec = self.visible(principal, PROGRAM_TOOL)
        if spec is None:
            return None
        shown = {**self.definition(principal, spec).tool, "name": RUN_PROGRAM}
        # Useless for writing a program: every call includes the result's schema.
        shown.pop("outputSchema", None)
        return shown

    def mode_for(self, principal: Principal) -> Mode:
        """Return what the principal is shown: all tools, a search, or a search and programs that call tools."""
        match self._engine.mode:
            case "program":
                return "program" if self.visible(principal, PROGRAM_TOOL) else "search"
            case "search":
                return "search"
            case "auto" if self._is_long_for(principal):
                return "search"
        return "full"

    def functions(self) -> Mapping[str, FunctionName]:
        """Return the function name in programs of each tool of the catalog."""
        return self._exporter.functions()

    def _is_long_for(self, principal: Principal) -> bool:
        left_bytes = self._engine.full_max_tokens * _TOKEN_BYTES
        for spec in self._engine.catalog.all():
            if _is_tool(spec) and self.may_see(principal, spec):
                left_bytes -= self.definition(principal, spec).size_bytes
                if left_bytes < 0:
                    return True
        return False

    def _current_names(self) -> ExportedNames:
        revision = self._engine.catalog.revision
        if revision != self._names_of:
            specs = self._engine.catalog.all()
            names = [spec.name for spec in specs]
            bare = [spec.name for spec in specs if _is_tool(spec) and self.is_unprefixed(spec.name)]
            known = self._names.prefixed
            self._names = ExportedNames(names, MCP_MAX_CHARS, unprefixed=bare, reserved=self._reserved)
            self._names_of = revision
            if self._names.prefixed and self._names.prefixed != known:
                self._engine.names_clash(self._names.prefixed)
            # A tool's name may have changed because of others.
            self._definitions = {}
        return self._names

    def is_unprefixed(self, name: str) -> bool:
        """Return whether the operator wants the source's tools listed without its name."""
        chosen = self._engine.unprefixed_sources
        return name.partition("/")[0] in chosen or EVERY in chosen


def _is_tool(spec: ToolSpec) -> bool:
    """Prompts and resources have their own lists; they can also be found and called as tools."""
    return spec.primitive is Primitive.TOOL
