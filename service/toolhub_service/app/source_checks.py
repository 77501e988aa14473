"""What sources refer to and is not here: looked for without starting or dialling anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from toolhub_service.adapters.custom import is_trusted
from toolhub_service.app.findings import Finding, fail, ok, warn
from toolhub_service.app.paths import Paths
from toolhub_service.app.source_rules import values_of
from toolhub_service.app.sources_file import SourcesFile, ValueMissing, resolve_value
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid
from toolhub_service.settings.sources import AnySource, LangChainSource, McpSource
from toolhub_service.settings.workflow_sources import ComfyUiSource


def source_checks(settings: Settings) -> Iterator[Finding]:
    """For `toolhub doctor`: one finding, and one for each source that lacks something."""
    path = Paths(settings).sources
    try:
        sources = SourcesFile(path, required=bool(settings.sources.file)).load().sources
    except SettingsInvalid as invalid:
        yield fail("sources", str(invalid), "Correct it; `toolhub sources check` says when it is right.")
        return
    if not sources:
        yield ok("sources", "none besides the hub itself; `toolhub sources add --help` shows how to add some")
        return
    lacking = {name: list(missing_for(source, settings)) for name, source in sources.items() if source.enabled}
    for name, problems in lacking.items():
        for problem in problems:
            yield warn("sources", f"{name}: {problem}", "See to it; until then the source is DOWN.", f"{name}/*")
    whole = sum(not problems for problems in lacking.values())
    off = f" {len(sources) - len(lacking)} switched off;" if len(lacking) < len(sources) else ""
    advice = "`toolhub sources list` tells how a running hub fares with them"
    yield ok("sources", f"{whole} of {len(lacking)} have what they need;{off} {advice}")


def missing_for(source: AnySource, settings: Settings) -> Iterator[str]:
    """What it refers to and is not here, a sentence each."""
    if isinstance(source, LangChainSource):
        yield from _missing_code(source, settings)
        return
    if isinstance(source, McpSource):
        yield from _missing_program(source)
    if isinstance(source, ComfyUiSource):
        yield from (f"templates: there is no {place}" for place in source.templates if not Path(place).exists())
    for name in ("ca_file", "certificate_file", "key_file"):
        file = getattr(source.tls, name)
        if file and not Path(file).expanduser().is_file():
            yield f"tls.{name}: there is no file {file}"
    for place, value in values_of(source).items():
        try:
            resolve_value(value)
        except ValueMissing as missing:
            yield f"{place}: {missing}"


def _missing_program(source: McpSource) -> Iterator[str]:
    if find_spec("mcp") is None:
        yield "its packages are not installed: pip install 'tool-hub[mcp]'"
    if source.command and shutil.which(source.command) is None:
        yield f"there is no program `{source.command}` on the path"


_FILE_TOOLS = ("langchain_community.agent_toolkits", "langchain_community.tools")
_FILE_NAMES = frozenset(
    "FileManagementToolkit CopyFileTool DeleteFileTool FileSearchTool ListDirectoryTool MoveFileTool ReadFileTool "
    "WriteFileTool".split()
)
"""Of langchain_community: without `root_dir` they take any path of the machine."""


def _missing_code(source: LangChainSource, settings: Settings) -> Iterator[str]:
    if find_spec("langchain_core") is None:
        yield "its packages are not installed: pip install 'tool-hub[langchain]'"
    for reference in source.load:
        if not is_trusted(reference.partition(":")[0], settings.tools.trusted_namespaces):
            yield f"`{reference}` is not below one of tools.trusted_namespaces"
    yield from unbounded(source)


def unbounded(source: AnySource) -> Iterator[str]:
    """What of it takes any path of the machine, a sentence each: `toolhub sources check` refuses it."""
    if not isinstance(source, LangChainSource) or source.args.get("root_dir"):
        return
    for reference in source.load:
        module, _, name = reference.partition(":")
        if module.startswith(_FILE_TOOLS) and name in _FILE_NAMES:
            yield f"`{reference}` takes any path of the machine: add `args: {{root_dir: FOLDER}}`"
