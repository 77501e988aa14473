"""LangChain tools by dotted name or entry point, from trusted code only.

A reference `package.module:name` is checked before anything is imported: its module must lie in one of the trusted
namespaces, compared component by component. Entry points of the group `toolhub.langchain` are loaded only when they are
named, or all are allowed. What cannot be loaded is reported as a problem, by the class of its error or the rule it
breaks, and affects nothing else. What was loaded once is kept, because a toolkit may hold connections; what failed is
retried at the next reading.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Final

import langchain_core
import msgspec
from langchain_core.tools import BaseTool
from langchain_core.tools.base import BaseToolkit

from toolhub_service.adapters.custom import LoadRefused, import_trusted
from toolhub_service.adapters.definitions import (
    ANY_OBJECT,
    PROBLEM_MAX_CHARS,
    Overrides,
    RepairSchema,
    SourceTerms,
    UsableSchema,
    usable_input,
)
from toolhub_service.adapters.langchain.bound_tool import BoundTool, bind_tool
from toolhub_service.adapters.langchain.kind import LoadTerms
from toolhub_service.adapters.tool_names import OWN_NAME_MAX_CHARS, Unnamed, keep_apart, known_name
from toolhub_service.adapters.upstream import one_line
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.sections.source_config import ToolTerms

# Each tool is described independently, so that a broken one does not affect the others. LangChain does not declare
# whether a tool changes anything: it counts as changing, unless the operator's overrides say otherwise.

# Output schema of every LangChain tool.
OUTPUT_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The result for a model; text blocks joined by line breaks."},
        "content": {"type": "array", "description": "Content blocks, when the result is more than one text."},
        "artifact": {"description": "What it gives besides the text; described where it is not JSON or too large."},
    },
    "required": ["text"],
    "additionalProperties": False,
}


def definitions_of(
    tools: Iterable[BoundTool], terms: SourceTerms, overrides: Overrides, repair: RepairSchema
) -> tuple[tuple[Definition, ...], tuple[str, ...]]:
    """Return the definitions by name, and why tools were left out, one sentence each."""
    found: list[Definition] = []
    problems: list[str] = []
    for tool in tools:
        chosen = overrides.of(tool.own_name)
        if not chosen.offered:
            continue
        try:
            found.append(_definition(tool, terms, chosen, repair))
        except Unnamed as unnamed:
            problems.append(unnamed.problem)
    return tuple(keep_apart(found, problems)), tuple(problems)


def _definition(bound: BoundTool, terms: SourceTerms, chosen: ToolTerms, repair: RepairSchema) -> Definition:
    """Return the definition. Raises Unnamed."""
    if not bound.own_name or len(bound.own_name) > OWN_NAME_MAX_CHARS:
        raise Unnamed(f"{_name_for_message(bound)} was left out: its name is empty or too long.")
    name = known_name(terms.name, bound.own_name, "A tool")
    problem, usable = bound.problem, UsableSchema(ANY_OBJECT)
    if not problem:
        usable = _usable_arguments(bound.schema, repair)
        problem = f"Its argument schema cannot be used: {usable.problem}" if usable.problem else ""
    schema = ANY_OBJECT if problem else usable.schema
    spec = terms.spec(
        name,
        bound.own_name,
        chosen,
        description=bound.description,
        input_schema=schema,
        output_schema=OUTPUT_SCHEMA,
        annotations=Annotations(
            read_only=chosen.read_only is True,
            destructive=chosen.destructive is True,
            idempotent=chosen.idempotent is True,
        ),
    )
    spec = replace(spec, unenforced=usable.unenforced)
    remote: JsonObject = {"name": bound.own_name, "description": spec.description, "inputSchema": schema}
    return Definition(spec, remote, one_line(problem, PROBLEM_MAX_CHARS))


def _usable_arguments(schema: dict[str, Any], repair: RepairSchema) -> UsableSchema:
    """Return a copy that is plain JSON: the tool may change its own dict later, and the registry must hold what was
    checked."""
    try:
        copy: JsonObject = msgspec.json.decode(msgspec.json.encode(schema))
    except (ValueError, TypeError, RecursionError) as not_json:
        return UsableSchema(ANY_OBJECT, problem=str(not_json) or "it is nested too deeply.")
    return usable_input(copy, repair)


def _name_for_message(bound: BoundTool) -> str:
    return f"A tool named `{one_line(bound.own_name, 80)}`"


ENTRY_POINT_GROUP: Final = "toolhub.langchain"
TOOLS_MAX: Final = 1000  # per source


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """Something that could not be loaded."""

    label: str
    """The reference or the entry point."""
    reason: str
    """The rule that was broken, or the class of the error; no text of an exception."""
    cause: BaseException | None = None
    """For the log."""

    @property
    def sentence(self) -> str:
        return f"{self.label}: {self.reason}"


class Loader:
    """Loads what one source names. Not thread-safe."""

    def __init__(self, terms: LoadTerms) -> None:
        self._terms = terms
        self._loaded: dict[str, tuple[BaseTool, ...]] = {}

    def load(self) -> tuple[tuple[BaseTool, ...], tuple[LoadProblem, ...]]:
        """Return all tools, each name once, and what could not be loaded. Never raises for broken code."""
        tools: dict[str, BaseTool] = {}
        problems: list[LoadProblem] = []
        for label, find in self._candidates():
            try:
                # Made once: a toolkit may open connections, and each reading of the source would open more.
                found = self._loaded.get(label) or _tools_of(find(), self._terms.args)
                self._loaded[label] = found
            except LoadRefused as refused:
                problems.append(LoadProblem(label, str(refused)))
                continue
            except (Exception, SystemExit) as error:  # noqa: BLE001  whatever foreign code raises, the hub goes on
                problems.append(LoadProblem(label, f"it could not be loaded: {type(error).__name__}", error))
                continue
            problems += _add(tools, found, label)
        return tuple(tools.values()), tuple(problems)

    def _candidates(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for reference in dict.fromkeys(self._terms.load):
            yield reference, partial(import_trusted, reference, self._terms.trusted_namespaces)
        allowed = self._terms.entry_points
        if not allowed:
            return
        offered = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value))
        for point in offered:
            if "*" in allowed or point.name in allowed:
                yield f"entry point {point.name} ({point.value})", point.load
        for name in sorted(set(allowed) - {"*"} - {point.name for point in offered}):
            yield f"entry point {name}", _absent


def _absent() -> object:
    raise LoadRefused(f"no installed package offers it in the group {ENTRY_POINT_GROUP}")


def _tools_of(found: object, args: Mapping[str, Any], *, may_call: bool = True) -> tuple[BaseTool, ...]:
    """Return the tools that a loaded object is or provides. Raises LoadRefused, and any exception of foreign code."""
    if isinstance(found, BaseTool):
        return (found,)
    if isinstance(found, BaseToolkit):
        found = found.get_tools()
    if isinstance(found, list | tuple):
        if not found:
            raise LoadRefused("it contains no tools")
        if not all(isinstance(tool, BaseTool) for tool in found):
            raise LoadRefused("it holds something that is not a LangChain tool")
        return tuple(found)
    if may_call and callable(found):
        if inspect.iscoroutinefunction(found):
            raise LoadRefused("it is an async function: return the tools from a sync function")
        return _tools_of(found(**args), args, may_call=False)
    raise LoadRefused("it is not a LangChain tool, a list of tools, a toolkit, or a function that returns one of these")


def _add(tools: dict[str, BaseTool], found: tuple[BaseTool, ...], label: str) -> Iterator[LoadProblem]:
    for tool in found:
        if tool.name in tools:
            # Two references may lead to the same object (a toolkit, and one tool of it), which is no conflict.
            if tools[tool.name] is not tool:
                yield LoadProblem(label, f"another tool is already named {tool.name[:80]}")
        elif len(tools) == TOOLS_MAX:
            yield LoadProblem(label, f"the source has more than {TOOLS_MAX} tools")
            return
        else:
            tools[tool.name] = tool


SERVER = f"langchain-core {langchain_core.__version__}"


@dataclass(frozen=True, slots=True)
class Read:
    """The result of one reading."""

    tools: Mapping[str, BoundTool]
    """By their own names."""
    definitions: tuple[Definition, ...]
    left_out: tuple[str, ...]
    """Why tools have no definition, one sentence each."""
    unloaded: tuple[LoadProblem, ...]
    """What could not be loaded."""


class Reader:
    """Reads the tools of one source. A tool that was loaded and inspected once stays the same."""

    def __init__(
        self,
        terms: SourceTerms,
        loads: LoadTerms,
        injected: Iterable[str],
        overrides: Overrides,
        repair: RepairSchema,
        mask: Mask,
    ) -> None:
        """`injected`: arguments that the operator fills; `mask` hides the code's own arguments."""
        self._terms = terms
        self._overrides = overrides
        self._repair = repair
        self._loader = Loader(loads)
        self._injected = frozenset(injected)
        self._mask = mask
        self._bound: dict[str, tuple[BaseTool, BoundTool]] = {}

    def read(self) -> Read:
        loaded, unloaded = self._loader.load()
        for tool in loaded:
            known = self._bound.get(tool.name)
            # Inspected again only when the object changed: making a schema takes milliseconds for each tool.
            if known is None or known[0] is not tool:
                self._bound[tool.name] = tool, self._mask_tool(bind_tool(tool, self._injected))
        tools = {tool.name: self._bound[tool.name][1] for tool in loaded}
        definitions, left_out = definitions_of(tools.values(), self._terms, self._overrides, self._repair)
        return Read(tools, definitions, left_out, unloaded)

    def _mask_tool(self, tool: BoundTool) -> BoundTool:
        """Return the tool with the code's arguments masked: a toolkit may describe its database by a URL with a
        password."""
        contract = replace(tool.contract, schema=dict(self._mask.object(tool.contract.schema)))
        return replace(tool, description=self._mask.text(tool.description), contract=contract)
