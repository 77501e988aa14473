"""Custom tools: found by a dotted name from the configuration or by an entry point, and only where trust was stated.

A dotted name `package.module:ClassName` is judged before anything of it is imported: its module must lie in one of the
trusted namespaces, compared component by component (`acme.tools` covers `acme.tools.text`, never `acme.tools_evil`).
Entry points (group `toolhub.tools`) are looked at only when the configuration allows all of them or names theirs. What
cannot be loaded is listed UNAVAILABLE with the class of its error, and never stops the start.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from toolhub_service.adapters.core import CUSTOM_SOURCE, AnyTool
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState
from toolhub_service.registry.catalog import check_name, check_not_reserved, skeleton
from toolhub_service.tools.tool import Tool, spec_of

ENTRY_POINT_GROUP: Final = "toolhub.tools"

_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ToolReference:
    """One custom tool of the configuration."""

    path: str
    """`package.module:ClassName`."""
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keyword arguments of the constructor."""


@dataclass(frozen=True, slots=True)
class UnavailableTool:
    """A custom tool that could not be loaded."""

    name: str
    """Stands in for the tool's own, which may be unknown: `custom/` and where it was to come from."""
    reason: str
    """Class of the error or the rule that was broken; no text of an exception."""
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


@dataclass(frozen=True, slots=True)
class CustomTools:
    tools: tuple[AnyTool, ...]
    unavailable: tuple[UnavailableTool, ...]


class _Refused(Exception):
    """A rule was broken; the message is fit to be shown."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A tool to be loaded, and how."""

    label: str
    find: Callable[[], object]
    arguments: Mapping[str, JsonValue]

    @property
    def stand_in_name(self) -> str:
        return f"custom/{_FOREIGN.sub('_', self.label).strip('_-') or 'unnamed'}"[:128]


def load_custom_tools(
    references: Iterable[ToolReference] = (),
    *,
    trusted_namespaces: Collection[str] = (),
    allowed_entry_points: bool | Collection[str] = False,
    entry_point_arguments: Mapping[str, Mapping[str, JsonValue]] | None = None,
) -> CustomTools:
    """Load what the configuration names. Never raises for a tool that is broken or not trusted.

    `allowed_entry_points`: False for none, True or `*` for all, or names, each of a distribution, of one of its entry
    points (`distribution:entry`), or of an entry point that only one installed distribution offers.
    `entry_point_arguments`: constructor arguments by entry point name.
    """
    candidates = [
        _Candidate(reference.path, _finder(reference.path, trusted_namespaces), reference.arguments)
        for reference in references
    ]
    candidates += _entry_point_candidates(allowed_entry_points, entry_point_arguments or {})
    tools: dict[str, AnyTool] = {}
    unavailable: dict[str, UnavailableTool] = {}
    for candidate in candidates:
        loaded = _load(candidate, tools)
        if isinstance(loaded, UnavailableTool):
            unavailable.setdefault(skeleton(loaded.name), loaded)
        else:
            tools[loaded.name] = loaded
    return CustomTools(tuple(tools.values()), tuple(unavailable.values()))


def is_trusted(module: str, trusted_namespaces: Collection[str]) -> bool:
    """Whether a dotted module name equals a trusted namespace or lies beneath one, component by component."""
    if _DOTTED.fullmatch(module) is None:
        return False
    parts = module.split(".")
    return any(
        _DOTTED.fullmatch(namespace) is not None and parts[: len(namespace.split("."))] == namespace.split(".")
        for namespace in trusted_namespaces
    )


def _finder(path: str, trusted_namespaces: Collection[str]) -> Callable[[], object]:
    def find() -> object:
        module, colon, attribute = path.partition(":")
        if not colon or not attribute.isidentifier():
            raise _Refused("the name is not of the form package.module:ClassName")
        if not is_trusted(module, trusted_namespaces):
            raise _Refused("the module is not in a trusted namespace")
        return getattr(importlib.import_module(module), attribute)

    return find


def _entry_point_candidates(
    allowed: bool | Collection[str], arguments: Mapping[str, Mapping[str, JsonValue]]
) -> list[_Candidate]:
    if allowed is not True and allowed is not False and "*" in allowed:
        allowed = True
    if allowed is False:
        return []
    found = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (_distribution(point), point.name))
    offers = Counter(point.name for point in found)
    return [
        _Candidate(f"{_distribution(point)}.{point.name}", point.load, arguments.get(point.name, {}))
        for point in found
        if allowed is True or _is_allowed(point, allowed, unique=offers[point.name] == 1)
    ]


def _is_allowed(point: EntryPoint, allowed: Collection[str], *, unique: bool) -> bool:
    distribution = _distribution(point)
    names = {_normal(name) for name in allowed}
    if distribution in names or f"{distribution}:{_normal(point.name)}" in names:
        return True
    return unique and point.name in allowed


def _distribution(point: EntryPoint) -> str:
    return _normal(point.dist.name) if point.dist else ""


def _normal(name: str) -> str:
    """A distribution's name in its one spelling (PEP 503); the part after a colon is treated alike."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _load(candidate: _Candidate, loaded: Mapping[str, AnyTool]) -> AnyTool | UnavailableTool:
    try:
        tool = _construct(candidate, loaded)
    except _Refused as refused:
        return UnavailableTool(candidate.stand_in_name, str(refused))
    except HubFailure as refused:
        return UnavailableTool(candidate.stand_in_name, refused.message)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever foreign code raises, the hub starts
        return UnavailableTool(candidate.stand_in_name, f"it could not be loaded: {type(error).__name__}", error)
    return tool


def _construct(candidate: _Candidate, loaded: Mapping[str, AnyTool]) -> AnyTool:
    """Import, construct and examine. Raises whatever the tool's code raises, besides _Refused and HubFailure."""
    found: Any = candidate.find()
    if not (isinstance(found, type) and issubclass(found, Tool)):
        raise _Refused("it is not a subclass of Tool")
    tool: AnyTool = found(**candidate.arguments)
    if not inspect.iscoroutinefunction(tool.run):
        raise _Refused("its run() is not an async function")
    spec = spec_of(tool, source=CUSTOM_SOURCE)
    check_name(spec.name)
    check_not_reserved(spec.name)
    if spec.name in loaded:
        raise _Refused(f"another custom tool is named {spec.name}")
    return tool
