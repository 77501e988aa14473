"""Custom tools: found by a dotted name from the configuration or by an entry point, and loaded only where trusted.

A dotted name `package.module:ClassName` is checked before anything is imported: its module must lie in one of the
trusted namespaces, compared component by component (`acme.tools` covers `acme.tools.text`, never `acme.tools_evil`).
Entry points (group `toolhub.tools`) are read only when the configuration allows all of them or names them. A tool that
cannot be loaded is listed as UNAVAILABLE with the class of its error; the hub starts all the same.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import msgspec

from toolhub_service.adapters.core import CUSTOM_SOURCE, AnyTool
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState
from toolhub_service.registry.names import check_name, check_not_reserved, skeleton
from toolhub_service.tools.tool import Tool, spec_of

ENTRY_POINT_GROUP: Final = "toolhub.tools"

_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]+")


class ToolReference(msgspec.Struct, frozen=True):
    """One custom tool of the configuration."""

    path: str
    """`package.module:ClassName`."""
    arguments: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """Keyword arguments of the constructor."""


class UnavailableTool(msgspec.Struct, frozen=True):
    """A custom tool that could not be loaded."""

    name: str
    """Stands in for the tool's name, which may be unknown: `custom/` and the place that it was to be loaded from."""
    reason: str
    """Class of the error, or the rule that was broken; never the text of an exception."""
    cause: BaseException | None = None
    """For the log."""

    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            kind=ToolKind.CORE,
            description="A custom tool that could not be loaded.",
            input_schema={"type": "object"},
            output_schema={},
            source=CUSTOM_SOURCE,
            state=ToolState.UNAVAILABLE,
            state_reason=self.reason,
        )


class CustomTools(msgspec.Struct, frozen=True):
    tools: tuple[AnyTool, ...]
    unavailable: tuple[UnavailableTool, ...]


class LoadRefused(Exception):
    """The tool breaks a rule; the message may be shown."""


def load_custom_tools(
    references: Iterable[ToolReference] = (),
    *,
    trusted_namespaces: Collection[str] = (),
    allowed_entry_points: Collection[str] = (),
    built: Iterable[tuple[str, Callable[[], AnyTool]]] = (),
) -> CustomTools:
    """Load what the configuration names. Does not raise for a tool that is broken or not trusted.

    `built`: names of further tools, each with its factory.

    `allowed_entry_points`: `*` for all, or names: of a distribution, of one of its entry points (`distribution:entry`),
    or of an entry point that only one installed distribution offers.
    """

    def load_reference(reference: ToolReference) -> AnyTool:
        return make_tool(import_trusted(reference.path, trusted_namespaces), reference.arguments)

    def load_entry_point(point: EntryPoint) -> AnyTool:
        return make_tool(point.load(), {})

    candidates = [(reference.path, partial(load_reference, reference)) for reference in references]
    candidates += [
        (f"{_distribution(point)}.{point.name}", partial(load_entry_point, point))
        for point in _entry_points(allowed_entry_points)
    ]
    makers: list[tuple[str, Callable[[], AnyTool]]] = [*candidates, *built]
    tools: dict[str, AnyTool] = {}
    unavailable: dict[str, UnavailableTool] = {}
    for label, make in makers:
        try:
            tool = make()
            _examine(tool, tools)
        # SystemExit too: some modules exit the interpreter when a dependency is missing.
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever foreign code raises, the hub starts
            stand_in = _unavailable(label, error)
            # Keyed by skeleton, as in the registry, which would refuse two stand-ins with names that look alike.
            unavailable.setdefault(skeleton(stand_in.name), stand_in)
        else:
            tools[tool.name] = tool
    return CustomTools(tuple(tools.values()), tuple(unavailable.values()))


def is_trusted(module: str, trusted_namespaces: Collection[str]) -> bool:
    """Return whether a dotted module name equals a trusted namespace or lies beneath one, compared component by
    component."""
    if _DOTTED.fullmatch(module) is None:
        return False
    parts = module.split(".")
    # Component by component, because `acme.tools` must not cover `acme.tools_evil`.
    return any(
        _DOTTED.fullmatch(namespace) is not None and parts[: len(namespace.split("."))] == namespace.split(".")
        for namespace in trusted_namespaces
    )


def import_trusted(reference: str, trusted_namespaces: Collection[str]) -> object:
    """Import and return `package.module:name`. Raises LoadRefused before anything is imported; later any exception of
    the foreign code."""
    module, colon, attribute = reference.partition(":")
    if not colon or not attribute.isidentifier():
        raise LoadRefused("the name is not of the form package.module:name")
    if not is_trusted(module, trusted_namespaces):
        raise LoadRefused("the module is not in a trusted namespace (tools.trusted_namespaces)")
    return getattr(importlib.import_module(module), attribute)


def _entry_points(allowed: Collection[str]) -> list[EntryPoint]:
    """Return the allowed entry points."""
    if not allowed:
        return []
    # A bare name that two distributions offer allows neither: one of them may be a squatter.
    found = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (_distribution(point), point.name))
    offers = Counter(point.name for point in found)
    names = {_normal(name) for name in allowed}
    return [
        point
        for point in found
        if "*" in allowed
        or not names.isdisjoint({_distribution(point), f"{_distribution(point)}:{_normal(point.name)}"})
        or (offers[point.name] == 1 and point.name in allowed)
    ]


def _distribution(point: EntryPoint) -> str:
    return _normal(point.dist.name) if point.dist else ""


def _normal(name: str) -> str:
    """Return a distribution's normalized name (PEP 503); the part after a colon is normalized in the same way."""
    return re.sub(r"[-_.]+", "-", name).lower()


def make_tool(found: object, arguments: Mapping[str, Any]) -> AnyTool:
    """Return an instance of the imported class. Raises LoadRefused when it is no tool, and any exception of its
    constructor."""
    if not (isinstance(found, type) and issubclass(found, Tool)):
        raise LoadRefused("it is not a subclass of Tool")
    return found(**arguments)


def _examine(tool: AnyTool, loaded: Mapping[str, AnyTool]) -> None:
    """Raises LoadRefused or HubFailure when the tool cannot be registered."""
    # A blocking run() would stop the event loop, and with it every other call.
    if not inspect.iscoroutinefunction(tool.run):
        raise LoadRefused("its run() is not an async function")
    spec = spec_of(tool, source=CUSTOM_SOURCE)
    check_name(spec.name)
    check_not_reserved(spec.name)
    if spec.name in loaded:
        raise LoadRefused(f"another custom tool is named {spec.name}")


def _unavailable(label: str, error: BaseException) -> UnavailableTool:
    """Return what is listed in place of a tool; it shows texts of the hub only."""
    name = f"custom/{_FOREIGN.sub('_', label).strip('_-') or 'unnamed'}"[:128]
    if isinstance(error, LoadRefused):
        return UnavailableTool(name, str(error))
    if isinstance(error, HubFailure):
        return UnavailableTool(name, error.message)
    return UnavailableTool(name, f"it could not be loaded: {type(error).__name__}", error)
