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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Final

from langchain_core.tools import BaseTool
from langchain_core.tools.base import BaseToolkit

from toolhub_service.adapters.custom import is_trusted
from toolhub_service.adapters.langchain.terms import LoadTerms

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
