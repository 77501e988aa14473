"""LangChain as a kind of source: its section of sources.yaml, its rules, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.domain.tool import ToolKind
from toolhub_service.sections.source_config import Source, SourceInvalid

Injected = Literal["principal", "user_id", "agent_id", "request_id", "task_id", "session_id", "call_id"]


_FILE_TOOLS = ("langchain_community.agent_toolkits", "langchain_community.tools")
# Tools of langchain_community that accept any path of the machine without `root_dir`.
_FILE_NAMES = frozenset(
    "FileManagementToolkit CopyFileTool DeleteFileTool FileSearchTool ListDirectoryTool MoveFileTool ReadFileTool "
    "WriteFileTool".split()
)


class LangChainSource(Source, frozen=True, tag="langchain"):
    """Python code that gives LangChain tools. Its modules must lie in `tools.trusted_namespaces`."""

    load: Annotated[
        tuple[str, ...],
        Meta(description="package.module:name of a tool, a list of tools, a toolkit, or a function that returns one."),
    ] = ()
    args: Annotated[dict[str, Any], Meta(description="Keyword arguments of the classes and functions in `load`.")] = (
        msgspec.field(default_factory=dict)
    )
    entry_points: Annotated[
        tuple[str, ...], Meta(description="Names of `toolhub.langchain` entry points; `*`: all that are installed.")
    ] = ()
    inject: Annotated[
        dict[str, Injected],
        Meta(description="Injected arguments by name, and the field of the call that each is filled with."),
    ] = msgspec.field(default_factory=dict)
    processes: Annotated[int, Meta(description="Worker processes; each runs one call at a time.", ge=1, le=64)] = 2
    in_hub: Annotated[
        bool,
        Meta(
            description="Run async tools inside the hub, any number at once: their code then sees the hub's own keys."
        ),
    ] = False


def _check_source(place: str, source: LangChainSource) -> None:
    if not source.load and not source.entry_points:
        raise SourceInvalid(f"{place}: needs `load` or `entry_points`")


def _missing(source: LangChainSource, trusted_namespaces: tuple[str, ...]) -> Iterator[str]:
    # Imported here, because a command line that only lists sources does not need the tools behind it.
    from toolhub_service.adapters.custom import is_trusted

    for reference in source.load:
        if not is_trusted(reference.partition(":")[0], trusted_namespaces):
            yield f"`{reference}` is not below one of tools.trusted_namespaces"
    yield from _find_open_roots(source)


def _find_open_roots(source: LangChainSource) -> Iterator[str]:
    if source.args.get("root_dir"):
        return
    for reference in source.load:
        module, _, name = reference.partition(":")
        if module.startswith(_FILE_TOOLS) and name in _FILE_NAMES:
            yield f"`{reference}` accepts any path of the machine: add `args: {{root_dir: FOLDER}}`"


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """What is loaded. Sent to worker processes as JSON."""

    load: tuple[str, ...] = ()
    """`package.module:name` of a tool, a list of tools, a toolkit, or a class or function that returns one of these."""
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keyword arguments of the classes and functions; values may be secrets."""
    entry_points: tuple[str, ...] = ()
    """Names of `toolhub.langchain` entry points; `*`: all."""
    trusted_namespaces: tuple[str, ...] = ()
    """Packages from which `load` may import."""

    @property
    def endpoint(self) -> str:
        """Return the origin of the source, for people and records."""
        named = (*self.load, *(f"entry point {name}" for name in self.entry_points))
        # Truncated for listings and logs, because a source may name hundreds.
        return f"python:{', '.join(named)}"[:300]


LANGCHAIN = SourceKind(
    ToolKind.LANGCHAIN,
    LangChainSource,
    {},
    _check_source,
    "toolhub_service.adapters.langchain.adapter:LangChainOpener",
    package="langchain_core",
    missing=_missing,
    unbounded=_find_open_roots,
    has_trust=False,
    registering="A LangChain tool is code: name it under `load` of a source of kind langchain in sources.yaml",
)
