"""LangChain tools by dotted name or entry point, from trusted code only.

A reference `package.module:name` is judged before anything of it is imported: its module must lie in one of the trusted
namespaces, compared component by component. Entry points of the group `toolhub.langchain` are loaded only when they are
named, or all are allowed. What cannot be loaded is told as a problem, by the class of its error or the rule it breaks,
and harms nothing else. What was loaded once is kept, for a toolkit may hold connections; what failed is tried again at
the next reading.
"""

from __future__ import annotations

import importlib
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

from toolhub_service.adapters.custom import is_trusted
from toolhub_service.adapters.definitions import OWN_NAME_MAX_CHARS, CheckSchema, Override, Overrides, full_name
from toolhub_service.adapters.langchain.bound_tool import BoundTool, bound
from toolhub_service.adapters.langchain.kind import LangChainTerms, LoadTerms
from toolhub_service.adapters.upstream import one_line, shortened
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, ToolKind, ToolLimits, ToolSpec
from toolhub_service.guards.masking import Mask
from toolhub_service.registry.catalog import check_name, skeleton

# Each tool is described by itself, so that a broken one does not affect the others. Nothing in LangChain says whether a
# tool changes anything: it does, unless the operator's overrides say otherwise.

DESCRIPTION_MAX_BYTES: Final = 16 * 1024
PROBLEM_MAX_CHARS: Final = 500
RETRIES: Final = 2
"""Where the operator has said that a repeat is safe."""

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
"""Of every LangChain tool."""
_STAND_IN: Final[JsonObject] = {"type": "object"}


def definitions_of(
    tools: Iterable[BoundTool], terms: LangChainTerms, overrides: Overrides, check_schema: CheckSchema
) -> tuple[tuple[Definition, ...], tuple[str, ...]]:
    """Definitions by name, and why tools were left out, one sentence each."""
    found: dict[str, Definition] = {}
    problems: list[str] = []
    for tool in sorted(tools, key=lambda tool: tool.own_name):
        override = overrides.of(tool.own_name)
        if not override.offered:
            continue
        definition = _definition(tool, terms, override, check_schema)
        if isinstance(definition, str):
            problems.append(definition)
        elif found.setdefault(skeleton(definition.spec.name), definition) is not definition:
            problems.append(f"{_shown(tool)} was left out: its name reads like that of another tool.")
    return tuple(found.values()), tuple(problems)


def _definition(
    bound: BoundTool, terms: LangChainTerms, override: Override, check_schema: CheckSchema
) -> Definition | str:
    """The definition, or why there can be none."""
    if not bound.own_name or len(bound.own_name) > OWN_NAME_MAX_CHARS:
        return f"{_shown(bound)} was left out: its name is empty or too long."
    name = full_name(terms.name, bound.own_name)
    try:
        check_name(name)
    except HubFailure as refused:
        return f"{_shown(bound)} was left out: {refused.message}."
    problem = bound.problem or _unusable(bound.schema, check_schema)
    schema = _STAND_IN if problem else _plain(bound.schema)
    remote: JsonObject = {
        "name": bound.own_name,
        "description": shortened(bound.description, DESCRIPTION_MAX_BYTES),
        "inputSchema": schema,
    }
    return Definition(_spec(name, bound, schema, terms, override), remote, one_line(problem, PROBLEM_MAX_CHARS))


def _spec(name: str, bound: BoundTool, schema: JsonObject, terms: LangChainTerms, override: Override) -> ToolSpec:
    annotations = Annotations(
        read_only=override.read_only is True,
        destructive=override.destructive is True,
        idempotent=override.idempotent is True,
    )
    capabilities = terms.capabilities if override.capabilities is None else override.capabilities
    return ToolSpec(
        name=name,
        kind=ToolKind.LANGCHAIN,
        description=shortened(bound.description, DESCRIPTION_MAX_BYTES),
        input_schema=schema,
        output_schema=OUTPUT_SCHEMA,
        tags=tuple(dict.fromkeys((*terms.tags, "langchain", terms.name))),
        capabilities=frozenset(capabilities or (terms.upstream,)),
        annotations=annotations,
        limits=ToolLimits(
            timeout_s=override.timeout_s or terms.timeout_s,
            max_retries=RETRIES if annotations.safe_to_repeat else 0,
            max_concurrency=terms.max_concurrency,
        ),
        source=terms.name,
        endpoint=terms.endpoint,
        resource_id=bound.own_name,
        upstream=terms.upstream,
    )


def _unusable(schema: dict[str, Any], check_schema: CheckSchema) -> str:
    """Why; empty when it can be used."""
    try:
        check_schema(_plain(schema))
    except ToolFailure as failure:
        return f"Its argument schema cannot be used: {failure.error.message}"
    except HubFailure as failure:
        return f"Its argument schema cannot be used: {failure.message}"
    except (ValueError, TypeError, RecursionError) as refused:
        return f"Its argument schema cannot be used: {str(refused) or 'it is nested too deeply.'}"
    return ""


def _plain(schema: dict[str, Any]) -> JsonObject:
    """A copy that is JSON and nothing else. Raises TypeError, ValueError."""
    copy: JsonObject = msgspec.json.decode(msgspec.json.encode(schema))
    return copy


def _shown(bound: BoundTool) -> str:
    return f"A tool named `{one_line(bound.own_name, 80)}`"


ENTRY_POINT_GROUP: Final = "toolhub.langchain"
TOOLS_MAX: Final = 1000
"""Of one source."""


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """Something that could not be loaded."""

    label: str
    """The reference or the entry point."""
    reason: str
    """A rule that was broken, or the class of the error; no text of an exception."""
    cause: BaseException | None = None
    """For the log."""

    @property
    def sentence(self) -> str:
        return f"{self.label}: {self.reason}"


class _Refused(Exception):
    """A rule was broken; the message is fit to be shown."""


class Loader:
    """Loads what one source names. Not for use by several threads at once."""

    def __init__(self, terms: LoadTerms) -> None:
        self._terms = terms
        self._loaded: dict[str, tuple[BaseTool, ...]] = {}

    def load(self) -> tuple[tuple[BaseTool, ...], tuple[LoadProblem, ...]]:
        """All tools, each name once, and what could not be loaded. Never raises for code that is broken."""
        tools: dict[str, BaseTool] = {}
        problems: list[LoadProblem] = []
        for label, find in self._candidates():
            try:
                found = self._loaded.get(label) or _tools_of(find(), self._terms.args)
                self._loaded[label] = found
            except _Refused as refused:
                problems.append(LoadProblem(label, str(refused)))
                continue
            except (Exception, SystemExit) as error:  # noqa: BLE001  whatever foreign code raises, the hub goes on
                problems.append(LoadProblem(label, f"it could not be loaded: {type(error).__name__}", error))
                continue
            problems += _add(tools, found, label)
        return tuple(tools.values()), tuple(problems)

    def _candidates(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for reference in dict.fromkeys(self._terms.load):
            yield reference, partial(_import, reference, self._terms)
        allowed = self._terms.entry_points
        if not allowed:
            return
        offered = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value))
        for point in offered:
            if "*" in allowed or point.name in allowed:
                yield f"entry point {point.name} ({point.value})", point.load
        for name in sorted(set(allowed) - {"*"} - {point.name for point in offered}):
            yield f"entry point {name}", _absent


def _import(reference: str, terms: LoadTerms) -> object:
    module, colon, attribute = reference.partition(":")
    if not colon or not attribute.isidentifier():
        raise _Refused("the name is not of the form package.module:name")
    if not is_trusted(module, terms.trusted_namespaces):
        raise _Refused("the module is not in a trusted namespace (tools.trusted_namespaces)")
    return getattr(importlib.import_module(module), attribute)


def _absent() -> object:
    raise _Refused(f"no installed package offers it in the group {ENTRY_POINT_GROUP}")


def _tools_of(found: object, args: Mapping[str, Any], *, may_call: bool = True) -> tuple[BaseTool, ...]:
    """The tools that a loaded object is or gives. Raises _Refused, and whatever foreign code raises."""
    if isinstance(found, BaseTool):
        return (found,)
    if isinstance(found, BaseToolkit):
        found = found.get_tools()
    if isinstance(found, list | tuple):
        if not found:
            raise _Refused("it gives no tools")
        if not all(isinstance(tool, BaseTool) for tool in found):
            raise _Refused("it holds something that is not a LangChain tool")
        return tuple(found)
    if may_call and callable(found):
        if inspect.iscoroutinefunction(found):
            raise _Refused("it is an async function: give its tools from a plain one")
        return _tools_of(found(**args), args, may_call=False)
    raise _Refused("it is not a LangChain tool, a list of tools, a toolkit, or a function that gives one of these")


def _add(tools: dict[str, BaseTool], found: tuple[BaseTool, ...], label: str) -> Iterator[LoadProblem]:
    for tool in found:
        if tool.name in tools:
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
    """What one reading gave."""

    tools: Mapping[str, BoundTool]
    """By their own names."""
    definitions: tuple[Definition, ...]
    left_out: tuple[str, ...]
    """Why tools have no definition, one sentence each."""
    unloaded: tuple[LoadProblem, ...]
    """What could not be loaded."""


class Reader:
    """Reads the tools of one source. What was loaded and examined once stays as it is."""

    def __init__(self, terms: LangChainTerms, overrides: Overrides, check_schema: CheckSchema) -> None:
        self._terms = terms
        self._overrides = overrides
        self._check_schema = check_schema
        self._loader = Loader(terms.loads)
        self._mask = Mask(terms.secrets)
        self._bound: dict[str, tuple[BaseTool, BoundTool]] = {}

    def read(self) -> Read:
        loaded, unloaded = self._loader.load()
        given = frozenset(self._terms.inject)
        for tool in loaded:
            known = self._bound.get(tool.name)
            if known is None or known[0] is not tool:
                self._bound[tool.name] = tool, self._masked(bound(tool, given))
        tools = {tool.name: self._bound[tool.name][1] for tool in loaded}
        definitions, left_out = definitions_of(tools.values(), self._terms, self._overrides, self._check_schema)
        return Read(tools, definitions, left_out, unloaded)

    def _masked(self, tool: BoundTool) -> BoundTool:
        """Without what the code was given: a toolkit may tell of its database by a URL with a password."""
        contract = replace(tool.contract, schema=dict(self._mask.object(tool.contract.schema)))
        return replace(tool, description=self._mask.text(tool.description), contract=contract)
